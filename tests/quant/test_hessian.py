"""Statistics of inputs: exact on small integers, close to float64, refusals."""

from __future__ import annotations

import pytest
import torch

from wmrt.core.errors import QuantizationError
from wmrt.quant.hessian import Hessian


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_moments_of_small_integers_are_exact(seed: int) -> None:
    x = torch.randint(-9, 10, (7, 5, 12), generator=generator(seed)).float()
    whole, parts = Hessian(12), Hessian(12)
    whole.add(x)
    for part in x:
        parts.add(part)
    rows = x.reshape(-1, 12).double()
    for h in (whole, parts):
        assert h.count == 35
        # Sums are integers below 2^24; the mean rounds once.
        assert torch.equal(h.matrix(), (rows.T @ rows).float() / 35)
        assert torch.equal(h.mean_square(), rows.square().sum(0).float() / 35)
        assert torch.equal(h.mean_abs(), (rows.abs().sum(0) / 35).float())
        assert torch.equal(h.amax(), rows.abs().amax(0).float())


def test_float32_sums_are_close_to_float64(seed: int) -> None:
    g = generator(seed)
    mix = torch.randn(96, 96, generator=g)
    single, double = Hessian(96), Hessian(96, dtype=torch.float64)
    for _ in range(64):
        x = torch.randn(512, 96, generator=g) @ mix
        single.add(x)
        double.add(x)
    error = (single.matrix().double() - double.matrix()).norm() / double.matrix().norm()
    # 64 running additions each round by at most 2^-24 of the sum; the products within one add less.
    assert float(error) < 64 * 2.0**-24
    assert torch.equal(single.amax(), double.amax())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_float_type_is_taken(dtype: torch.dtype, seed: int) -> None:
    x = torch.randn(6, 8, generator=generator(seed)).to(dtype)
    a, b = Hessian(8), Hessian(8)
    a.add(x)
    b.add(x.float())
    assert torch.equal(a.matrix(), b.matrix())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_inputs_that_are_not_finite_are_refused_and_not_counted(bad: float) -> None:
    h = Hessian(4)
    h.add(torch.ones(3, 4))
    x = torch.ones(2, 4)
    x[1, 2] = bad
    with pytest.raises(QuantizationError, match="column 2"):
        h.add(x)
    assert h.count == 3 and torch.equal(h.matrix(), torch.ones(4, 4))


@pytest.mark.parametrize("x", [torch.ones(3, 5), torch.tensor(1.0), torch.ones(2, 4).int()])
def test_inputs_of_another_kind_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(QuantizationError, match=r"float \[\.\.\., 4\]"):
        Hessian(4).add(x)


def test_nothing_counted_is_an_error() -> None:
    h = Hessian(4)
    h.add(torch.ones(0, 4))
    for ask in (h.matrix, h.mean_square, h.mean_abs, h.amax):
        with pytest.raises(QuantizationError, match="calibration data"):
            ask()
    with pytest.raises(QuantizationError, match="at least one column"):
        Hessian(0)
