"""Checkpoints: round trip, every way the weights can be wrong, the verdict cache."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from wmrt.core.errors import CheckpointError, UsageError
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.checkpoint import (
    Checkpoint,
    check_tensors,
    load_checkpoint,
    save_checkpoint,
)
from wmrt.model.config import PRESETS
from wmrt.model.schema import StateSchema, category, numeric
from wmrt.model.tree_hash import tree_hash

ACTIONS = ActionSpec((ActionDim("steering", "rad", -0.06, 0.06, 0.3, 0.3),))


def make_schema() -> StateSchema:
    speed, lane = numeric("m/s", 0.0, 40.0, required=True), category(["left", "right"])
    return StateSchema({"speed": speed, "lane": lane}, neutral=[0.0])


def make(tensors: dict[str, torch.Tensor], **provenance: Any) -> Checkpoint:
    return Checkpoint(
        make_schema(), PRESETS["tiny"].to_json(), ACTIONS, {"recipe": "nvfp4"}, provenance, tensors
    )


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def saved(tmp_path: Path, seed: int) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "trunk.weight": torch.randn(48, 32, generator=generator),
        "trunk.codes": torch.randint(0, 256, (16, 8), dtype=torch.uint8, generator=generator),
        "head.bias": torch.randn(7, generator=generator).bfloat16(),
        "scalar": torch.tensor(3.5),
    }
    folder = tmp_path / "saved"
    save_checkpoint(folder, make(tensors, note="π"), card="# a test")
    settle(folder)
    return folder


def settle(folder: Path) -> None:
    """Date the weights an hour back, so that a verdict about them may be remembered."""
    file = folder / "model.safetensors"
    old = file.stat().st_mtime_ns - 3_600_000_000_000
    os.utime(file, ns=(old, old))


def record_size(folder: Path, size: int) -> None:
    """Make config.json agree with a weight file of this size."""
    file = folder / "config.json"
    data = json.loads(file.read_text())
    data["weights"]["model.safetensors"]["bytes"] = size
    file.write_text(json.dumps(data))


def rewrite_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def flip_bit(file: Path, offset: int = -3) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x10
    file.write_bytes(data)


def error_of(folder: Path | str, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


# ---- round trip ----


def test_round_trip_keeps_everything_bit_for_bit(saved: Path) -> None:
    got = load_checkpoint(saved)
    assert got.schema.hash == make_schema().hash
    assert (got.model, got.actions, got.quantization) == (
        PRESETS["tiny"].to_json(),
        ACTIONS,
        {"recipe": "nvfp4"},
    )
    assert got.provenance == {"note": "π"} and got.path == saved
    assert got.weights_sha256 == tree_hash(saved / "model.safetensors")
    again = saved.parent / "again"
    save_checkpoint(again, got, card="# a test")
    for name in ("config.json", "model.safetensors", "README.md"):
        assert (again / name).read_bytes() == (saved / name).read_bytes()


def test_tensors_are_the_mapped_file_and_writing_to_them_does_not_reach_it(saved: Path) -> None:
    before = (saved / "model.safetensors").read_bytes()
    got = load_checkpoint(saved)
    assert "model.safetensors" in Path("/proc/self/maps").read_text()
    got.tensors["trunk.weight"].zero_()
    assert (saved / "model.safetensors").read_bytes() == before


def test_non_contiguous_and_gradient_tensors_are_saved(tmp_path: Path) -> None:
    weight = torch.randn(4, 6, requires_grad=True)
    save_checkpoint(tmp_path / "c", make({"w": weight.T}), card="x")
    assert torch.equal(load_checkpoint(tmp_path / "c").tensors["w"], weight.detach().T)


# ---- the weight file ----


CUTS = ["empty", "length", "header", "after header", "data", "last byte"]


@pytest.mark.parametrize("where", CUTS)
def test_truncated_weights(saved: Path, where: str) -> None:
    file = saved / "model.safetensors"
    data = file.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    keep = {"empty": 0, "length": 5, "header": header // 2, "after header": header,
            "data": (header + len(data)) // 2, "last byte": len(data) - 1}[where]  # fmt: skip
    file.write_bytes(data[:keep])
    text = error_of(saved)
    assert str(file) in text and f"truncated: {keep} bytes" in text and str(len(data)) in text
    # even if the recorded size agrees with the cut file
    record_size(saved, keep)
    assert str(file) in error_of(saved)


def test_a_pickle_is_not_opened(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved.parent)
    (saved / "model.safetensors").write_bytes(b"cos\nmkdir\n(S'opened'\ntR.")
    record_size(saved, 0)
    assert "not a valid safetensors file" in error_of(saved)
    assert not (saved.parent / "opened").exists()


def test_missing_weights(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    assert "model.safetensors" in error_of(saved)


def test_trailing_bytes(saved: Path) -> None:
    with open(saved / "model.safetensors", "ab") as file:
        file.write(b"more")
    assert "not a valid safetensors file" in error_of(saved)


def test_another_size_than_recorded(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    config["weights"]["model.safetensors"]["bytes"] += 1
    (saved / "config.json").write_text(json.dumps(config))
    assert "copy both again" in error_of(saved)


def test_one_extra_tensor_is_named(saved: Path) -> None:
    rewrite_weights(saved, lambda t: t.update(extra=torch.zeros(2)))
    assert "unexpected tensors: extra" in error_of(saved)


def test_missing_misshapen_and_mistyped_tensors_are_all_named(saved: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["scalar"]
        tensors["trunk.weight"] = tensors["trunk.weight"].T.contiguous()
        tensors["head.bias"] = tensors["head.bias"].half()

    rewrite_weights(saved, change)
    text = error_of(saved)
    assert "missing tensors: scalar" in text
    assert "trunk.weight is [32, 48], expected [48, 32]" in text
    assert "head.bias is float16, expected bfloat16" in text


def test_a_flipped_bit_is_found_on_first_open(saved: Path) -> None:
    flip_bit(saved / "model.safetensors")
    text = error_of(saved)
    assert "SHA-256" in text and "altered or damaged" in text


def test_check_tensors_shortens_long_lists() -> None:
    with pytest.raises(CheckpointError, match=r"missing tensors: n00, .*n07 and 12 more$"):
        check_tensors({f"n{i:02}": ((1,), torch.float32) for i in range(20)}, {})


# ---- the verdict cache ----


def flip_unseen(folder: Path) -> None:
    """Damage the weights and put their mtime back: only hashing again can tell."""
    file = folder / "model.safetensors"
    stat = file.stat()
    flip_bit(file)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_verdict_is_reused_while_the_file_is_the_same_and_always_redoes_it(saved: Path) -> None:
    load_checkpoint(saved)
    flip_unseen(saved)
    load_checkpoint(saved)  # from the cache
    assert "SHA-256" in error_of(saved, verify="always")


def test_new_mtime_redoes_the_hash(saved: Path) -> None:
    load_checkpoint(saved)
    flip_unseen(saved)
    os.utime(saved / "model.safetensors")
    assert "SHA-256" in error_of(saved)


def test_fresh_file_is_not_trusted_by_its_mtime(saved: Path) -> None:
    os.utime(saved / "model.safetensors")
    load_checkpoint(saved)
    flip_unseen(saved)
    assert "SHA-256" in error_of(saved)


def test_bad_verdict_is_not_remembered(saved: Path) -> None:
    flip_unseen(saved)
    assert error_of(saved) == error_of(saved)


def test_garbage_in_the_cache_means_hashing_again(saved: Path, own_cache: Path) -> None:
    load_checkpoint(saved)
    (entry,) = (own_cache / "wmrt" / "verified").iterdir()
    entry.write_bytes(b"\xff{")
    flip_unseen(saved)
    assert "SHA-256" in error_of(saved)


@pytest.mark.parametrize("cache", ["a file in the way", "relative", "no home"])
def test_unusable_cache_is_no_error(
    saved: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    if cache == "a file in the way":
        own_cache.write_text("not a folder")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        monkeypatch.setenv("HOME", str(own_cache))
    if cache == "no home":

        def fail() -> Path:
            raise RuntimeError("no home")

        monkeypatch.setattr(Path, "home", fail)
    load_checkpoint(saved)
    flip_unseen(saved)
    if cache == "relative":
        load_checkpoint(saved)  # remembered below HOME instead
    else:
        assert "SHA-256" in error_of(saved)


def test_unknown_verify_mode(saved: Path) -> None:
    with pytest.raises(UsageError, match="'cached' or 'always'"):
        load_checkpoint(saved, verify="never")  # type: ignore[arg-type]
