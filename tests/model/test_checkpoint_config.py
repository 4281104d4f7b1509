"""``config.json`` of a checkpoint, and pairing it with another schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from wmrt.core.errors import CheckpointError
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.checkpoint import Checkpoint, check_schema, load_checkpoint, save_checkpoint
from wmrt.model.config import PRESETS
from wmrt.model.schema import Field, StateSchema, category, flag, numeric


def make_schema(high: float = 40.0, **extra: Field) -> StateSchema:
    speed, lane = numeric("m/s", 0.0, high, required=True), category(["left", "right"])
    return StateSchema({"speed": speed, "lane": lane, **extra}, neutral=[0.0])


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    actions = ActionSpec((ActionDim("steering", "rad", -0.06, 0.06, 0.3, 0.3),))
    checkpoint = Checkpoint(
        make_schema(), PRESETS["tiny"].to_json(), actions, None, {}, {"w": torch.ones(3)}
    )
    save_checkpoint(tmp_path / "saved", checkpoint, card="# a test")
    return tmp_path / "saved"


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / "config.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def error_of(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    text = str(caught.value)
    assert "\n" not in text and str(folder) in text
    return text


@pytest.mark.parametrize("version", [2, 0, "1", True, None])
def test_unknown_format_version(saved: Path, version: object) -> None:
    edit_config(saved, lambda c: c.update(format_version=version, novelty=1))
    assert f"format_version is {version!r}" in error_of(saved)


def test_unknown_and_missing_keys_are_named(saved: Path) -> None:
    edit_config(saved, lambda c: (c.update(novelty=1), c.pop("actions")))
    text = error_of(saved)
    assert "unknown keys: 'novelty'" in text and "missing keys: 'actions'" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(model=[]), "model must be dict, got list"),
        (lambda c: c["model"].update(d_modle=3), "config.json: model: model config: unknown keys"),
        (lambda c: c["model"].pop("heads"), "missing keys ['heads']"),
        (lambda c: c["model"].update(heads="4"), "heads must be of type int, got '4'"),
        (lambda c: c["model"].update(past=99), "config.json: model: past must be 0 to window - 1"),
        (lambda c: c.update(quantization=1), "quantization must be dict or NoneType, got int"),
        (lambda c: c["weights"].update(other={}), "unknown keys: 'other'"),
        (lambda c: c["weights"]["model.safetensors"].pop("bytes"), "missing keys: 'bytes'"),
        (lambda c: c["weights"].update({"model.safetensors": 3}), "must be dict, got int"),
        (lambda c: c["tensors"]["w"].update(dtype="nn"), "unknown dtype 'nn'"),
        (lambda c: c["tensors"]["w"].update(shape=[-1]), "shape must be whole numbers"),
        (lambda c: c["tensors"].update(w=None), "expected an object, got NoneType"),
        (lambda c: c["tensors"].pop("w"), "unexpected tensors: w"),
        (lambda c: c["actions"][0].pop("unit"), "'unit'"),
        (lambda c: c["actions"].append(3), "actions"),
        (lambda c: c["schema"].update(fields=3), "schema"),
        (lambda c: c.update(schema_hash="00"), "schema_hash records 00"),
    ],
)
def test_wrong_values_in_the_configuration(
    saved: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    edit_config(saved, change)
    text = error_of(saved)
    assert said in text


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b"[" * 100_000])
def test_unreadable_configuration(saved: Path, content: bytes) -> None:
    (saved / "config.json").write_bytes(content)
    assert "config.json" in error_of(saved)


def test_other_schema_lists_the_fields() -> None:
    with pytest.raises(CheckpointError) as caught:
        check_schema(make_schema(wet=flag()), make_schema(high=50.0, dark=flag()))
    for said in ("'wet'", "'dark'", "'speed': high 40.0 against 50.0"):
        assert said in str(caught.value)
    other = StateSchema({"speed": numeric("m/s", 0.0, 40.0)}, neutral=[0.5])
    with pytest.raises(CheckpointError, match="neutral"):
        check_schema(StateSchema({"speed": numeric("m/s", 0.0, 40.0)}, neutral=[0.0]), other)


def test_knots_fitted_in_training_are_no_other_schema() -> None:
    fitted = make_schema().with_knots({"speed": [i**2 * 40.0 / 64**2 for i in range(65)]})
    assert fitted.hash != make_schema().hash
    check_schema(make_schema(), fitted)
