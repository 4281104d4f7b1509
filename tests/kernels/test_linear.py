"""Every registered linear operator, each implementation, against a float64 oracle."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.kernels import oracle
from wmrt.core.errors import QuantizationError
from wmrt.kernels import LinearOp, linear, operators, reference, reference_w8

# Those of triton need a GPU; tests/kernels/triton/test_gemv.py interprets their kernels.
EVERY = [oracle.reading_canonical(op) for op in operators() if op.implementation != "triton"]
OPS = [pytest.param(op, id=op.name) for op in EVERY]
A8 = [pytest.param(op, id=op.name) for op in EVERY if op.activation != "bf16"]
# One element, tails of every block size, exact blocks, one row, and more than one slice of rows.
SHAPES = [(1, 1), (3, 16), (5, 40), (7, 48), (2, 129), (33, 200), (64, 256), (1, 768), (1100, 300)]
BATCHES = [(), (1,), (3,), (2, 5), (0,)]


def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 2, (*shape[:-1], 1))
    return torch.from_numpy(x.astype(np.float32))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_equals_float64(op: LinearOp, shape: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(op.format, shape, rng)
    for batch in BATCHES:
        x = draw(rng, (*batch, shape[1]))
        got = op(x, weight)
        assert got.shape == (*batch, shape[0])
        oracle.answer(op.activation, x, weight).check(got)


@pytest.mark.parametrize("op", OPS)
def test_inputs_of_other_float_types_and_strides(op: LinearOp, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(op.format, (24, 96), rng)
    x = draw(rng, (4, 96))
    for other in (x.to(torch.bfloat16), x.double()):
        assert torch.equal(op(other, weight), op(other.float(), weight))
    wide = draw(rng, (96, 4)).t()
    assert torch.equal(op(wide, weight), op(wide.contiguous(), weight))
    assert torch.equal(op(x[:, None].expand(4, 2, 96), weight)[:, 1], op(x, weight))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_row_and_is_seen(
    op: LinearOp, bad: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(op.format, (40, 100), rng)
    clean = draw(rng, (3, 100))
    dirty = clean.clone()
    dirty[1, 37] = bad
    before, after = op(clean, weight), op(dirty, weight)
    assert not after[1].isfinite().any()
    if op.activation != "bf16" or bad != bad:
        assert after[1].isnan().all()
    assert torch.equal(after[::2], before[::2])


@pytest.mark.parametrize("op", A8)
def test_a_zero_block_of_weights_does_not_hide_nan(op: LinearOp, seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = draw(rng, (4, 256))
    w[:, 128:] = 0.0
    weight = oracle.quantize(w, op.format)
    x = draw(rng, (1, 256))
    x[0, 200] = torch.nan
    assert op(x, weight).isnan().all()


@pytest.mark.parametrize("op", A8)
def test_bits_depend_on_neither_batch_nor_slices(
    op: LinearOp, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Dot products within a block are exact, and blocks are added in one order.
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(op.format, (50, 512), rng)
    x = draw(rng, (6, 512))
    whole = op(x, weight)
    assert torch.equal(torch.cat([op(row[None], weight) for row in x]), whole)
    for module in (reference, reference_w8):
        monkeypatch.setattr(module, "SLICE", 512 * 7)
    assert torch.equal(op(x, weight), whole)
    monkeypatch.setattr(reference, "SUMS", 6 * 32 * 3)
    assert torch.equal(op(x, weight), whole)


@pytest.mark.parametrize("op", A8)
def test_the_number_of_threads_changes_no_bit(op: LinearOp, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(op.format, (301, 512), rng)
    x = draw(rng, (1, 512))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = op(x, weight)
        torch.set_num_threads(2)
        assert torch.equal(op(x, weight), one)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("op", OPS)
def test_zero_in_zero_out(op: LinearOp, seed: int) -> None:
    weight = oracle.random_weight(op.format, (5, 64), np.random.default_rng(seed))
    assert not op(torch.zeros(2, 64), weight).any()


@pytest.mark.parametrize("op", OPS)
def test_a_wrong_input_is_an_error(op: LinearOp, seed: int) -> None:
    weight = oracle.random_weight(op.format, (5, 64), np.random.default_rng(seed))
    with pytest.raises(QuantizationError, match=r"\[\.\.\., 64\], got torch.float32 \[2, 63\]"):
        op(torch.ones(2, 63), weight)
    with pytest.raises(QuantizationError, match="int32"):
        op(torch.ones(2, 64, dtype=torch.int32), weight)


@pytest.mark.parametrize("op", [p for p in OPS if p.values[0].format != "bf16"])
def test_rounding_is_what_the_error_is(op: LinearOp, seed: int) -> None:
    # White inputs pass the weight's own relative error on as it is; the activations add at most
    # 0.9% in int8 and 2.7% in E4M3. Over 16 x 256 random inputs the ratio spread by under 6% in
    # 2 000 draws, 15% is allowed.
    rng = np.random.default_rng(seed)
    # Rows of one scale: with `draw`'s, a few rows make up the norm and the ratio spreads by 5%.
    w, x = (
        torch.from_numpy(rng.standard_normal(shape)).float() for shape in ((256, 256), (16, 256))
    )
    exact = x @ w.t()
    weight = oracle.quantize(w, op.format)
    error = float((op(x, weight) - exact).norm() / exact.norm())
    own = float((weight.dequantize() - w).norm() / w.norm())
    rounded = 0.027 if op.activation == "fp8-token" else 0.009
    assert 0.85 * own < error < 1.15 * math.hypot(own, rounded)


@pytest.mark.parametrize("name", ["fp8-channel", "int8-channel"])
def test_dot_products_of_eight_bits_are_exact(name: str) -> None:
    # The largest codes cancel but for one smallest product: float32 sums would lose it.
    columns = 4096
    w = torch.full((1, columns), 448.0 if name == "fp8-channel" else 127.0)
    x = w.clone()
    x[0, 1::2] *= -1
    small = 2.0**-9 if name == "fp8-channel" else 1.0
    x[0, -1], w[0, -1] = 0.0, small
    x[0, -2] = small
    op = linear(name, "fp8-token" if name == "fp8-channel" else "int8-token")
    weight = oracle.quantize(w, name)
    assert weight.scales.item() == 1.0
    assert op(x, weight).item() == small * w[0, 0].item()


def test_zero_points_shift_every_group(seed: int) -> None:
    # All weights positive: half the codes of a symmetric format go unused.
    rng = np.random.default_rng(seed)
    w = torch.from_numpy(rng.uniform(0.5, 1.5, (16, 256))).float()
    x = draw(rng, (3, 256))
    plain, shifted = (linear(name, "int8-g32") for name in ("int4-g128", "int4-g128-zp"))
    exact = x.double() @ w.double().t()
    errors = [
        float((op(x, oracle.quantize(w, op.format)) - exact).norm()) for op in (plain, shifted)
    ]
    assert errors[1] < errors[0]
