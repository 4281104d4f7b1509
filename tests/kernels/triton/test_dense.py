"""Small matrices times vectors: the kernel and the operator on the CPU against float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from wmrt.core.errors import UsageError
from wmrt.kernels import reference
from wmrt.kernels.triton import dense as kernel
from wmrt.kernels.triton import interpreter
from wmrt.kernels.triton.interpreter import repaired

UNIT = 2.0**-24
EPS = 1e-5
OPS = torch.ops.wmrt
# Vectors, rows, columns: one turn; rows that fill no program and columns that end within a turn;
# columns that are no multiple of 8; several turns with a loop; 16 vectors.
SHAPES = [(1, 2, 256), (1, 5, 304), (3, 6, 77), (2, 3, 1100), (16, 1, 40), (1, 1, 1)]
Call = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def runs() -> Iterator[None]:
    with repaired():
        yield


def run(*given: Any, **more: Any) -> torch.Tensor:
    out = torch.full((len(given[0]), given[3].shape[0]), math.nan)
    kernel.dense(*given, out, **more)
    return out


def on_cpu(*given: Any, **more: Any) -> torch.Tensor:
    out = torch.full((len(given[0]), given[3].shape[0]), math.nan)
    OPS.dense(*given, out, **more)
    return out


def draw(
    seed: int, shape: tuple[int, int, int], dtype: torch.dtype, norm: bool = True
) -> list[Any]:
    batch, rows, columns = shape
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, columns, generator=g)
    weight = torch.zeros(rows, -(-columns // 8) * 8, dtype=dtype)
    weight[:, :columns] = torch.randn(rows, columns, generator=g)
    gain = torch.randn(columns, generator=g) if norm else None
    return [x, gain, EPS, weight, torch.randn(rows, generator=g), "gelu" if norm else "none"]


def check(given: list[Any], wide: bool, how: Call) -> None:
    """Half an ulp of float32 for each step of the sum, for each of its terms six for norm, gain and
    product, and of bfloat16 one more where x is rounded to it: the last bit of a normed number may
    decide which way. GELU's slope is at most 1.13, and its own error that of erf near -1."""
    x, gain, eps, weight, bias, activation = given
    wide_x = x.double()
    if gain is not None:
        wide_x = wide_x / (wide_x.square().mean(-1, keepdim=True) + eps).sqrt() * gain.double()
    each = 6 + math.log2(x.shape[1] + 1) + x.shape[1] / 256
    loose = each * UNIT
    if weight.dtype == torch.bfloat16 and not wide:
        if gain is None:
            wide_x = x.to(torch.bfloat16).double()
        else:
            loose += 2.0**-8
    matrix = weight[:, : x.shape[1]].double()
    y = wide_x @ matrix.T + bias.double()
    bound = (loose + x.shape[1] * UNIT) * (wide_x.abs() @ matrix.abs().T) + UNIT * bias.abs()
    if activation == "gelu":
        bound = 1.13 * bound + 8 * UNIT * y.abs()
        y = F.gelu(y)
    got = how(*given, wide=wide)
    assert (np.abs(got.double().numpy() - y.numpy()) <= (bound + 4 * UNIT * y.abs()).numpy()).all()


@pytest.mark.parametrize("how", [run, on_cpu])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "wide"), [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False)]
)
def test_against_float64(
    dtype: torch.dtype, wide: bool, shape: tuple[int, int, int], how: Call, seed: int
) -> None:
    check(draw(seed, shape, dtype, norm=False), wide, how)


@pytest.mark.parametrize("how", [run, on_cpu])
@pytest.mark.parametrize("shape", [(1, 3, 304), (3, 2, 77)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_with_norm_bias_and_gelu(
    dtype: torch.dtype, shape: tuple[int, int, int], how: Call, seed: int
) -> None:
    check(draw(seed, shape, dtype), False, how)


def test_x_is_rounded_as_linears_of_bf16_do(seed: int) -> None:
    x, _, eps, weight, _, _ = draw(seed, (2, 3, 304), torch.bfloat16, norm=False)
    want = reference.linear_bf16(x, weight)
    for how in (run, on_cpu):
        got = how(x, None, eps, weight, None, "none")
        bound = 304 * UNIT * (x.to(torch.bfloat16).float().abs() @ weight.float().abs().T)
        assert ((got - want).abs() <= bound).all()


def test_rows_may_lie_apart_and_nothing_between_them_changes(seed: int) -> None:
    given = draw(seed, (3, 5, 100), torch.bfloat16)
    want = run(*given)
    x, out = torch.full((3, 160), math.nan), torch.full((3, 9), 7.0)
    x[:, 33:133] = given[0]
    kernel.dense(x[:, 33:133], *given[1:], out[:, 2:7])
    assert torch.equal(out[:, 2:7], want)
    assert (out[:, :2] == 7).all() and (out[:, 7:] == 7).all()


def test_the_bits_of_a_vector_do_not_depend_on_the_others(seed: int) -> None:
    given = draw(seed, (3, 5, 1100), torch.bfloat16)
    together = run(*given)
    for b in range(3):
        assert torch.equal(run(given[0][b : b + 1], *given[1:]), together[b : b + 1])


def test_a_launch_takes_no_more_vectors_than_fit_its_registers(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, launched = draw(seed, (11, 5, 100), torch.bfloat16), []
    together, launch = run(*given), interpreter._run

    def heard(function: Any, *args: Any, **options: Any) -> None:
        launched.append(options["BATCH"])
        launch(function, *args, **options)

    monkeypatch.setattr(interpreter, "_run", heard)
    with interpreter.repaired():
        again = run(*given)
    assert torch.equal(again, together) and launched == [kernel.VECTORS, 11 - kernel.VECTORS]
    for b in (0, 7, 8, 10):
        assert torch.equal(run(given[0][b : b + 1], *given[1:]), together[b : b + 1])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_stays_with_its_vector(bad: float, seed: int) -> None:
    given = draw(seed, (3, 5, 77), torch.bfloat16)
    dirty = [given[0].clone(), *given[1:]]
    dirty[0][1, 7] = bad
    for how in (run, on_cpu):
        got = how(*dirty)
        assert not got[1].isfinite().any() and torch.equal(got[::2], how(*given)[::2])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({0: torch.zeros(17, 20)}, "first of 1 to 16 robots"),
        ({0: torch.zeros(20, 2).T}, r"x is torch.float32 \[2, 20\] with strides .* each is dense"),
        ({1: torch.zeros(19)}, r"norm is .*\[19\].*\[20\]"),
        ({3: torch.zeros(3, 20)}, r"weight is .*\[3, 20\].*\[3, 24\]"),
        ({3: torch.zeros(3, 24).half()}, "weight is torch.float16 .* torch.float32"),
        ({4: torch.zeros(4)}, r"bias is .*\[4\].*\[3\]"),
        ({5: "relu"}, "'relu': allowed are none, gelu"),
        ({6: torch.zeros(2, 4)}, r"out is .*\[2, 4\].*\[2, 3\]"),
    ],
)
@pytest.mark.parametrize("call", [kernel.dense, OPS.dense])
def test_arguments_are_checked(change: dict[int, Any], says: str, call: Call) -> None:
    x, out = torch.zeros(2, 20), torch.zeros(2, 3)
    given = [x, torch.ones(20), EPS, torch.zeros(3, 24), torch.zeros(3), "none", out]
    for place, value in change.items():
        given[place] = value
    with pytest.raises(UsageError, match=says):
        call(*given)
