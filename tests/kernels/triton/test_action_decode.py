"""From logits to an action: the kernel and the operator on the CPU against the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton import action_decode as kernel
from wmrt.kernels.triton import checks_heads
from wmrt.kernels.triton.interpreter import repaired
from wmrt.model import twohot
from wmrt.model.fusion import ActionEmbedding

OPS = torch.ops.wmrt
UNIT = 2.0**-24
# Robots, steps, dimensions, bins, knots, embedding of a dimension.
SHAPES = [(1, 8, 2, 64, 33, 16), (3, 3, 3, 21, 9, 5), (2, 1, 1, 2, 2, 1), (1, 5, 7, 3, 4, 2)]
Call = Callable[..., tuple[torch.Tensor, ...]]


@pytest.fixture(autouse=True)
def runs() -> Iterator[None]:
    with repaired():
        yield


def draw(seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Any]:
    batch, steps, dims, bins, knots, each = shape
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, steps, dims, bins, generator=g)
    table = torch.randn(dims, knots, each, generator=g).to(dtype)
    return [logits, twohot.bin_centers(-1, 1, bins), table]


def outputs(given: list[Any]) -> tuple[torch.Tensor, ...]:
    batch, steps, dims, _ = given[0].shape
    wide = torch.full((batch, dims * given[2].shape[2] + 3), math.nan)
    empty = [torch.full(s, math.nan) for s in ((batch, steps, dims), (batch, dims))]
    return (*empty, wide[:, 2:-1])


def run(given: list[Any]) -> tuple[torch.Tensor, ...]:
    made = outputs(given)
    kernel.action_decode(*given, *made)
    return made


def on_cpu(given: list[Any]) -> tuple[torch.Tensor, ...]:
    made = outputs(given)
    OPS.action_decode(*given, *made)
    return made


@pytest.mark.parametrize("how", [run, on_cpu])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_it_is_the_models(shape: tuple[int, ...], dtype: torch.dtype, how: Call, seed: int) -> None:
    """Five weights and centers within 1: some 16 roundings, and logits up to 30 apart in the
    exponential. Between knots the model's own function of the same action."""
    given = draw(seed, shape, dtype)
    chunk, action, embedded = how(given)
    want = twohot.decode_mode(given[0].double(), given[1].double())
    assert np.abs(chunk.double().numpy() - want.numpy()).max() <= 64 * UNIT
    assert torch.equal(action, chunk[:, 0])
    _, _, dims, _, knots, each = shape
    module = ActionEmbedding(dims, knots, dims * each)
    module.weight.copy_(given[2].float())
    bound = 16 * UNIT * knots * given[2].float().abs().max()
    assert (embedded - module(action)).abs().max() <= bound


def test_the_first_of_equal_modes_and_zeros_of_both_signs() -> None:
    logits = torch.full((1, 3, 1, 9), -5.0)
    logits[0, 0, 0, [2, 7]] = 4.0
    logits[0, 1, 0] = torch.tensor([-1.0, -0.0, 0.0, -0.0, -9, -9, -9, -9, 0.0])
    logits[0, 2, 0, 0] = math.inf
    given = [logits, twohot.bin_centers(-1, 1, 9), torch.zeros(1, 2, 1)]
    want = twohot.decode_mode(logits, given[1])
    for how in (run, on_cpu):
        chunk = how(given)[0]
        np.testing.assert_allclose(chunk.numpy(), want.numpy(), atol=16 * UNIT)
        assert chunk[0, 2].isnan().all()  # infinity less itself, as the model's


def test_a_far_second_mode_does_not_count(seed: int) -> None:
    given = draw(seed, SHAPES[0])
    given[0][:] = -30.0
    given[0][..., 10], given[0][..., 50] = 5.0, 4.99
    for how in (run, on_cpu):
        assert torch.allclose(how(given)[0], given[1][10], atol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_nan_stays_with_its_robot(sign: int, seed: int) -> None:
    given = draw(seed, (3, 2, 2, 21, 9, 5))
    dirty = [given[0].clone(), *given[1:]]
    dirty[0][1, 0, 1, 20] = math.copysign(math.nan, sign)
    for how in (run, on_cpu):
        before, after = how(given), how(dirty)
        assert after[0][1, 0, 1].isnan() and not after[0][1, 1].isnan().any()
        assert after[1][1].isnan().tolist() == [False, True]
        assert after[2][1].isnan().tolist() == [False] * 5 + [True] * 5
        for got, want in zip(after, before, strict=True):
            assert torch.equal(got[::2], want[::2])


def test_only_the_embedding_is_written_of_its_rows(seed: int) -> None:
    given = draw(seed, SHAPES[1])
    for how in (run, on_cpu):
        embedded = how(given)[2]
        assert embedded._base is not None and embedded._base.isnan().sum() == 3 * 3


def test_the_radius_is_the_models() -> None:
    assert twohot.decode_mode.__defaults__ == (checks_heads.RADIUS,)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({0: torch.zeros(0, 4, 2, 5)}, UsageError, "first of 1 to 16 robots"),
        ({0: torch.zeros(2, 5, 2, 4).mT}, UsageError, r"logits is .* contiguous"),
        ({1: torch.zeros(4)}, UsageError, r"centers is .*\[4\].*\[5\]"),
        ({2: torch.zeros(3, 9, 4)}, UsageError, r"embedding is .*\[3, 9, 4\].*\[2, 9, 4\]"),
        ({2: torch.zeros(2, 1, 4)}, UsageError, "1 knots; it takes 2"),
        ({3: torch.zeros(2, 4, 1)}, UsageError, r"chunk is .*\[2, 4, 2\]"),
        ({4: torch.zeros(2, 2).double()}, UsageError, "action is torch.float64"),
        ({5: torch.zeros(8, 2).T}, UsageError, "embedded is .* each is dense"),
        ({0: torch.zeros(1, 64, 16, 65)}, UnsupportedError, "64 x 16 x 65 logits"),
    ],
)
@pytest.mark.parametrize("call", [kernel.action_decode, OPS.action_decode])
def test_arguments_are_checked(
    change: dict[int, torch.Tensor], error: type[Exception], says: str, call: Call
) -> None:
    given = [
        torch.zeros(2, 4, 2, 5),
        torch.zeros(5),
        torch.zeros(2, 9, 4),
        torch.zeros(2, 4, 2),
        torch.zeros(2, 2),
        torch.zeros(2, 8),
    ]
    if error is UnsupportedError:
        given[1:] = [torch.zeros(65), torch.zeros(16, 9, 4), torch.zeros(1, 64, 16)]
        given += [torch.zeros(1, 16), torch.zeros(1, 64)]
    for place, value in change.items():
        given[place] = value
    with pytest.raises(error, match=says):
        call(*given)
