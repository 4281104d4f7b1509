"""The operators of a step's heads as torch sees them: schemas, launches, Meta and CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from wmrt.core.errors import UnsupportedError
from wmrt.kernels.triton import ops_heads

OPS = torch.ops.wmrt


def attention(generator: torch.Generator) -> list[torch.Tensor]:
    ring = [torch.randn(2, 5, 2, 32, generator=generator) for _ in range(2)]
    slots = torch.tensor([[4, 0, 2], [1, 3, 0]]).int()
    return [torch.randn(2, 4, 32, generator=generator), *ring, slots, torch.zeros(2, 3)]


def dense(generator: torch.Generator) -> list[Any]:
    x, weight = (torch.randn(n, generator=generator) for n in ((2, 20), (5, 24)))
    return [x, torch.ones(20), 1e-5, weight.bfloat16(), torch.zeros(5), "gelu"]


def arguments(seed: int) -> dict[str, tuple[Any, ...]]:
    """A call of every operator, what it writes at the end."""
    generator = torch.Generator().manual_seed(seed)
    shared = attention(generator)
    decode = [torch.randn(2, 3, 2, 7, generator=generator), torch.linspace(-1, 1, 7)]
    decode.append(torch.randn(2, 5, 4, generator=generator))
    int8 = (torch.zeros(2, 256, dtype=torch.int8), torch.zeros(2, 8))
    return {
        "transition_attention": (*shared, torch.zeros(2, 4, 32)),
        "transition_attention_int8": (*shared, *int8),
        "dense": (*dense(generator), torch.zeros(2, 9)[:, 1:6]),
        "rms_norm_to": (dense(generator)[0], torch.ones(20), 1e-5, torch.zeros(2, 33)[:, 3:23]),
        "action_decode": (*decode, torch.zeros(2, 3, 2), torch.zeros(2, 2), torch.zeros(2, 8)),
    }


def test_every_operator_is_here() -> None:
    assert list(arguments(0)) == list(ops_heads.LAUNCHES)


@pytest.mark.full  # it loads torch's compiler: 5 s
@pytest.mark.parametrize("name", arguments(0))
def test_torch_accepts_the_registration(name: str, seed: int) -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(getattr(OPS, name).default, arguments(seed)[name], test_utils=checks)


@pytest.mark.parametrize("name", arguments(0))
def test_on_meta_nothing_is_computed(name: str, seed: int) -> None:
    given = arguments(seed)[name]
    moved = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in given]
    assert getattr(OPS, name)(*moved) is None


@pytest.mark.parametrize("name", arguments(0))
def test_on_cuda_what_is_missing_is_told(name: str, seed: int) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here, and nothing is missing")
    with FakeTensorMode(allow_non_fake_inputs=True):
        moved = [
            torch.empty(a.shape, dtype=a.dtype, device="cuda") if isinstance(a, torch.Tensor) else a
            for a in arguments(seed)[name]
        ]
    with pytest.raises(UnsupportedError, match=r"without CUDA|no CUDA device"):
        ops_heads.ON_CUDA[name](*moved)
