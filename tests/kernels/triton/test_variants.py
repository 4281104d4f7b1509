"""What a compute capability gets, and what changes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton import library, variants
from wmrt.kernels.triton.variants import Variant, variant, varied


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variants.ASKED, raising=False)


def test_every_capability_has_a_variant() -> None:
    for capability in library.CAPABILITIES:
        found = variant(capability)
        assert found.bf16 == ("cvt" if capability >= 100 else "prmt")
        assert found.dependent == (capability >= 90) and found.ahead_kib > 0
    with pytest.raises(UnsupportedError, match="75; there are: 80, 86"):
        variant(75)


def test_dependent_launches_need_a_gpu_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"int8": "prmt", "bf16": "prmt", "two_rows_from": 1, "dependent": True}
    table = tmp_path / "gemv.json"
    table.write_text(json.dumps({"89": entry, "90": entry}))
    monkeypatch.setattr(variants, "TABLE", table)
    variants._variant.cache_clear()
    try:
        assert variant(90).dependent and variant(90).ahead_kib == 0
        with pytest.raises(UnsupportedError, match="capability 89; there are such from 90 on"):
            variant(89)
    finally:
        variants._variant.cache_clear()


def test_an_arm_is_varied_within_a_process_and_asked_for_from_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = variant(90)
    with varied(dependent=False):
        assert variant(90) == Variant(**{**vars(whole), "dependent": False})
        with varied(ahead_kib=0):
            assert not variant(90).dependent and variant(90).ahead_kib == 0
        assert variant(90).ahead_kib == whole.ahead_kib
    assert variant(90) == whole
    monkeypatch.setenv(variants.ASKED, "dependent=0, ahead_kib=77")
    assert (variant(90).dependent, variant(90).ahead_kib) == (False, 77)
    with varied(dependent=True):  # what is written in a program comes last
        assert variant(90).dependent
    monkeypatch.setenv(variants.ASKED, "dependent=1")
    with pytest.raises(UnsupportedError, match=r"capability 87; .* set dependent to false in"):
        variant(87)


@pytest.mark.parametrize(
    "changes",
    [{"nonsense": 1}, {"dependent": 1}, {"ahead_kib": 1.0}, {"ahead_kib": True}, {"int8": "fast"}],
)
def test_a_field_that_is_none_or_of_another_type(changes: dict[str, Any]) -> None:
    ((name, value),) = changes.items()
    with (
        pytest.raises(
            UsageError, match=rf"varied\({name}={value!r}\): a variant has int8: str, .*"
        ),
        varied(**changes),
    ):
        pass
    with varied(int8="plain"):
        assert variant(90).int8 == "plain"


@pytest.mark.parametrize("most", [variants.MOST_AHEAD_KIB, 99999999999999])
def test_no_more_is_asked_ahead_than_a_cache_holds(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variants.ASKED, f"ahead_kib={most}")
    if most == variants.MOST_AHEAD_KIB:
        assert variant(90).ahead_kib == most
        most += 1
    with (
        pytest.raises(UsageError, match=f"ahead_kib={most}: 0 to 129024 KiB .* cache holds"),
        varied(ahead_kib=most),
    ):
        variant(90)
    with pytest.raises(UsageError, match="ahead_kib=-1: 0 to"), varied(ahead_kib=-1):
        variant(90)


@pytest.mark.parametrize(
    "text", ["dependent", "dependent=2", "dependent=yes", "ahead_kib=-1", "int8=prmt", "speed=1"]
)
def test_what_is_not_understood_is_told(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variants.ASKED, f"ahead_kib=1,{text}")
    says = f"WMRT_GPU_VARIANT='ahead_kib=1,{text}': '{text}' is not understood; give .*ahead_kib="
    with pytest.raises(UsageError, match=says):
        variant(90)
