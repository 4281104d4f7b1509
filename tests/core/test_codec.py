"""Which codec it is: what was asked for, and what there is."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.core.codecs import require_native
from wmrt.core import codec as chosen
from wmrt.core.codec import VARIABLE, Choice
from wmrt.core.errors import UnsupportedError, UsageError


def test_the_codec_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "python")
    assert chosen.codec().choice == Choice("python", "python") and chosen.codec().native is None
    require_native()
    monkeypatch.setenv(VARIABLE, "c")
    assert chosen.codec().choice == Choice("c", "c") and chosen.codec().native is not None
    monkeypatch.delenv(VARIABLE)
    assert chosen.codec().choice == Choice("auto", "c")
    assert chosen.codec() is chosen.codec()


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("cannot import name '_codec' from 'wmrt.core' (/a/b.py)", "not built for this Python"),
        (
            "/a/_codec.abi3.so: undefined symbol: PyThing",
            "does not load: undefined symbol: PyThing",
        ),
    ],
)
def test_without_the_module_in_c(raised: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` says why it is Python, ``c`` how to build it, and neither where anything lies."""

    class Finder:
        def find_spec(self, name: str, *more: Any) -> None:
            if name == "wmrt.core._codec":
                raise ImportError(raised)

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "wmrt.core._codec", raising=False)
    monkeypatch.delattr("wmrt.core._codec", raising=False)
    chosen._made.cache_clear()
    try:
        monkeypatch.setenv(VARIABLE, "auto")
        requested, resolved, reason = chosen.codec().choice
        assert (requested, resolved) == ("auto", "python") and said in reason
        monkeypatch.setenv(VARIABLE, "c")
        with pytest.raises(UnsupportedError, match=r"apt install gcc python3-dev") as refused:
            chosen.codec()
        assert said in str(refused.value) and "/" not in str(refused.value) + reason
    finally:
        chosen._made.cache_clear()


@pytest.mark.parametrize("name", ["", "C", "rust"])
def test_a_codec_that_there_is_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(UsageError, match=r"WMRT_CODEC=.*auto, c, python"):
        chosen.codec()
