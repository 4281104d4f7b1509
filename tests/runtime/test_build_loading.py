"""What building a network from a checkpoint takes: no widened weights, no file kept for nothing."""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.runtime.models import tiny
from wmrt.core.errors import QuantizationError
from wmrt.model.checkpoint import load_checkpoint, save_checkpoint
from wmrt.runtime.build import build_network, float_network, linears, to_checkpoint

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Numbers in the largest float32 tensor that an operator returned."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float32:
            self.numbers = max(self.numbers, 0 if result.is_meta else result.numel())
        return result


@pytest.mark.parametrize("recipe", ["nvfp4", "bf16"])
def test_no_weight_is_ever_widened(recipe: str, seed: int) -> None:
    packed = build_network(tiny(seed), recipe, CPU)
    checkpoint = to_checkpoint(packed.network, packed.recipe, {})
    smallest = min(m.in_features * m.out_features for m in linears(packed.network).values())
    with Largest() as seen:
        network = build_network(checkpoint, None, CPU, "native").network
    assert seen.numbers < smallest
    for name, module in linears(network).items():
        for part, tensor in module.state_dict().items():
            if module.stored_layout == module.layout:
                held = checkpoint.tensors[f"{name}.{part}"]
                assert tensor.data_ptr() == held.data_ptr(), name


def mapped(file: Path) -> bool:
    gc.collect()
    return str(file.resolve()) in Path("/proc/self/maps").read_text("utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
@pytest.mark.parametrize(
    ("stored", "layout", "recipe", "stays"),
    [
        ("nvfp4", "canonical", None, True),
        ("nvfp4", "cpu_interleaved", None, False),
        (None, None, "bf16", True),
        (None, None, "nvfp4", False),
    ],
)
def test_a_file_whose_weights_are_not_read_in_place_is_given_up(
    stored: str | None, layout: str | None, recipe: str | None, stays: bool,
    tmp_path: Path, seed: int,
) -> None:  # fmt: skip
    checkpoint = tiny(seed)
    if stored is not None:
        built = build_network(checkpoint, stored, CPU)
        checkpoint = to_checkpoint(built.network, built.recipe, {}, layout)
    save_checkpoint(tmp_path / "c", checkpoint, card="x")
    file = tmp_path / "c" / "model.safetensors"
    network = build_network(load_checkpoint(tmp_path / "c"), recipe, CPU).network
    assert mapped(file) == stays
    del network
    assert not mapped(file)
    if stored is None:
        network = float_network(load_checkpoint(tmp_path / "c"))
        assert not mapped(file)
        assert {t.dtype for t in network.parameters()} == {torch.float32}


def test_a_head_that_is_no_number_is_refused(seed: int) -> None:
    built = build_network(tiny(seed), "nvfp4", CPU)
    packed = to_checkpoint(built.network, built.recipe, {})
    for bad in (float("nan"), float("inf"), float("-inf")):
        head = packed.tensors["action_head.out.weight"].clone()
        head[1, 2] = bad
        spoiled = replace(packed, tensors={**packed.tensors, "action_head.out.weight": head})
        with pytest.raises(QuantizationError, match=r"^action_head\.out: the weight holds NaN or"):
            build_network(spoiled, None, CPU)
