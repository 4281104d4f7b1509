"""The torch operators: on the CPU the model's own numbers, on Meta their shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from wmrt.core.errors import UnsupportedError
from wmrt.kernels.triton import checks_ops
from wmrt.kernels.triton import ops as module
from wmrt.kernels.triton.interpreter import repaired
from wmrt.model import action_quant
from wmrt.model.trunk import RMS_EPS, RMSNorm

OPS = torch.ops.wmrt


def arguments(seed: int) -> dict[str, tuple[Any, ...]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 100, generator=generator)
    weight = torch.randn(100, generator=generator)
    return {
        "rms_norm": (x, weight, RMS_EPS),
        "rms_norm_int8": (x, weight, RMS_EPS, 256),
        "action_pack": (torch.rand(2, 5, 8, 3, generator=generator) * 2 - 1,),
    }


def tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


@pytest.mark.full  # it loads torch's compiler: 5 s
@pytest.mark.parametrize("name", arguments(0))
def test_torch_accepts_the_registration(name: str, seed: int) -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(getattr(OPS, name).default, arguments(seed)[name], test_utils=checks)


@pytest.mark.parametrize("name", arguments(0))
def test_meta_tells_the_shapes_and_types(name: str, seed: int) -> None:
    given = arguments(seed)[name]
    moved = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in given]
    found = tensors(getattr(OPS, name)(*moved))
    want = tensors(getattr(OPS, name)(*given))
    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in want]


@pytest.mark.parametrize("name", ["rms_norm_int8", "action_pack"])
def test_the_kernel_has_the_shapes_and_types_too(name: str, seed: int) -> None:
    from wmrt.kernels.triton import norm
    from wmrt.kernels.triton.action_quant import action_pack

    given = arguments(seed)[name]
    want = tensors(getattr(OPS, name)(*given))
    with repaired():
        if name == "action_pack":
            found = tensors(action_pack(*given))
        else:
            found = tensors(norm.rms_norm_int8(*given[:3], padded_to=given[3]))
    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in want]


@torch.no_grad()
def test_rms_norm_on_the_cpu_is_the_models(seed: int) -> None:
    x, weight, eps = arguments(seed)["rms_norm"]
    norm = RMSNorm(100)
    norm.weight.copy_(weight)
    assert torch.equal(OPS.rms_norm(x, weight, eps), norm(x))


@pytest.mark.parametrize(("steps", "dims"), [(8, 2), (1, 1), (17, 16)])
def test_action_pack_on_the_cpu_is_the_models(steps: int, dims: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    chunks = torch.rand(6, steps, dims, generator=generator) * 2 - 1
    chunks[1] = chunks[1].round(decimals=1)
    chunks[2] = 0.0
    chunks[3] *= 1e-7
    chunks[4, 0, 0] = torch.inf
    codec = action_quant.ActionQuant(steps, dims)
    got = OPS.action_pack(chunks)
    want = np.stack([np.frombuffer(codec.pack(chunk), np.uint8) for chunk in chunks])
    np.testing.assert_array_equal(got.numpy(), want)
    assert (checks_ops.ACTIONS, module._LEVELS, module._BYTES) == (
        action_quant.GROUP,
        action_quant.LEVELS,
        action_quant.GROUP_BYTES,
    )


def test_on_cuda_what_is_missing_is_told(seed: int) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here, and nothing is missing")
    with FakeTensorMode():
        x = torch.empty(1, 8, device="cuda")
    with pytest.raises(UnsupportedError, match=r"without CUDA|no CUDA device"):
        module._norm_on_cuda(x, x, 1e-5)
