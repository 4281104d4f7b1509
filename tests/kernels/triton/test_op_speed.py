"""Speed of every operator at the shapes of the shipped model, one robot: on the CPU what the
operators compute there, on a GPU the kernels.

Run it: ``pytest tests/kernels/triton/test_op_speed.py --benchmark-enable``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels import oracle
from wmrt.kernels.triton import ops, ops_fused, ops_heads, ops_state
from wmrt.model.checkpoint import load_checkpoint
from wmrt.model.trunk import RMS_EPS
from wmrt.quant.layouts import to_layout
from wmrt.runtime.build import build_network
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_state import TritonState

OPS = torch.ops.wmrt
MODULES = (ops, ops_fused, ops_heads, ops_state)  # importing them registers the operators
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
WIDE = 256  # of the shipped model


class Listener:
    """Stands for the operators of a step; keeps the first call of each."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[Any, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            self.calls.setdefault(name, given)
            return getattr(OPS, name)(*given)

        return call


@cache
@torch.inference_mode()
def calls(device: str) -> dict[str, tuple[Any, ...]]:
    """Arguments of every operator."""
    network = build_network(load_checkpoint("highway"), "nvfp4", torch.device(device)).network
    heard = Listener()
    TritonState(network, TritonModel(network), 1, heard).run()  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    x, norm = torch.randn(1, WIDE, generator=generator), torch.ones(WIDE)
    codes = OPS.quantize_int8_g32(x, WIDE)
    made: dict[str, tuple[Any, ...]] = {
        "quantize_int8_g32": (x, WIDE),
        "rms_norm": (x, norm, RMS_EPS),
        "rms_norm_int8": (x, norm, RMS_EPS, WIDE),
        "action_pack": (torch.rand(1, 8, 2, generator=generator) * 2 - 1,),
    }
    for format in ("nvfp4", "mxfp4", "int4-g128"):
        weight = oracle.random_weight(format, (3 * WIDE, WIDE), np.random.default_rng(1))
        laid = to_layout(weight, "gpu_gemv")
        rows = (laid["words"], laid["lane_scales"])
        more = (weight.global_scale,) if format == "nvfp4" else ()
        more += (weight.spec.block,) if format == "int4-g128" else ()
        name = "gemv_w4a8" if format == "int4-g128" else f"gemv_{format}"
        made[name] = (*codes, *rows, *more)
        if format != "int4-g128":
            made[f"{name}_a16"] = (x, *rows, *more)
    q, *ring = heard.calls["transition_attention_int8"][:5]
    made["transition_attention"] = (q, *ring, torch.zeros_like(q))
    return heard.calls | {
        name: tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in given)
        for name, given in made.items()
    }


def registered() -> set[str]:
    names = (schema.name for schema in torch._C._jit_get_all_schemas())
    return {name.partition("::")[2] for name in names if name.startswith("wmrt::")}


def test_every_operator_is_here() -> None:
    assert set(calls("cpu")) == registered()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(registered()))
def test_operator(name: str, device: str, benchmark: Any) -> None:
    given = calls(device)[name]
    operator = getattr(OPS, name)

    def finished() -> Any:
        found = operator(*given)
        if device == "cuda":
            torch.cuda.synchronize()
        return found

    with torch.inference_mode():
        found = benchmark(finished)
    results = found if isinstance(found, (tuple, list)) else [found]
    written = [a for a in given if isinstance(a, torch.Tensor) and a.is_floating_point()]
    checked = [r for r in results if isinstance(r, torch.Tensor)] or written
    assert checked and not any(bool(t.float().isnan().any()) for t in checked)
