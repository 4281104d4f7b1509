"""Every kernel of every instruction set that this processor has, against float64 and each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.kernels import oracle
from tests.kernels.native import call
from tests.kernels.native.call import Layer, activations, run, same
from wmrt.core import machine
from wmrt.kernels import linear
from wmrt.kernels.native.library import Isa, Pool

ISAS = [pytest.param(isa, id=isa.name) for isa in call.ISAS]
PORTABLE = call.ISAS[0]
PAIRS = [pytest.param(p, id="-".join(p)) for p in call.A8 + call.A16 + call.PLAIN]
A8 = [pytest.param(p[0], id=p[0]) for p in call.A8]
# Less than a unit of 256, whole units, one weight more or less; rows fewer than a group, and odd.
SHAPES = [(1, 1), (3, 40), (1, 255), (2, 256), (5, 257), (17, 800), (3, 2048)]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("isa", ISAS)
def test_equals_float64(isa: Isa, pair: tuple[str, str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for shape, batch in itertools.product(SHAPES, (1, 2, 3, 16)):
        layer, x = call.layer(pair, shape, rng), activations(rng, (batch, shape[1]))
        layer.exact(x).check(run(isa, layer, x))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("isa", ISAS)
def test_bits_depend_on_neither_batch_nor_rows_nor_threads(
    isa: Isa, pair: tuple[str, str], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    layer, x = call.layer(pair, (37, 700), rng), activations(rng, (16, 700))
    whole = torch.cat([run(isa, layer, row[None]) for row in x])
    for batch in range(1, 17):
        assert torch.equal(run(isa, layer, x[:batch]), whole[:batch])
    for begin, end in ((0, 1), (1, 2), (3, 8), (5, 37), (36, 37)):
        for batch in (1, 5):
            part = run(isa, layer, x[:batch], rows=(begin, end))
            assert torch.equal(part, whole[:batch, begin:end])
    with Pool(machine.usable_cpus()) as pool:
        for batch in (1, 3, 16):
            assert torch.equal(run(isa, layer, x[:batch], pool), whole[:batch])


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("isa", ISAS)
def test_bias_is_added_once(isa: Isa, pair: tuple[str, str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer, x = call.layer(pair, (9, 300), rng, bias=True), activations(rng, (2, 300))
    assert layer.bias is not None
    plain = run(isa, Layer(layer.weight, layer.activation), x)
    assert torch.equal(run(isa, layer, x), plain + layer.bias)


@pytest.mark.parametrize("format", A8)
@pytest.mark.parametrize("isa", ISAS)
def test_integer_sums_are_exact_at_the_largest_codes(isa: Isa, format: str, seed: int) -> None:
    # Scales of 1 on both sides, so every partial sum is an integer below 2^24: any order gives it.
    rng = np.random.default_rng(seed)
    columns = 2048
    block, one = {"nvfp4": (16, 0x38), "mxfp4": (32, 127), "int4-g128": (128, 1.0)}[format]
    largest = {"int4-g128": [0, 15]}.get(format, [7, 15])  # -8 and 7; 6 and -6
    rows = [np.full(columns, c) for c in (*largest, 0, 8)]
    rows += [rng.choice(largest, columns), rng.integers(0, 16, columns)]
    codes = np.stack(rows).astype(np.uint8)
    weight = call.packed(format, codes, np.full((len(codes), columns // block), one))
    signs = np.stack([np.ones(columns), -np.ones(columns), rng.choice([-1, 1], columns)])
    x = torch.from_numpy((127 * signs).astype(np.float32))
    exact = weight.dequantize().double() @ x.double().t()
    assert torch.equal(run(isa, Layer(weight, "int8-g32"), x).double(), exact.t())


@pytest.mark.parametrize("format", A8)
@pytest.mark.parametrize("isa", ISAS)
def test_single_terms_have_the_bits_of_the_reference(isa: Isa, format: str, seed: int) -> None:
    # One block that is not zero: nothing is left to the order of the sum.
    rng = np.random.default_rng(seed)
    block = {"nvfp4": 16, "mxfp4": 32, "int4-g128": 32}[format]
    w = np.zeros((64, 1024), np.float32)
    for row in w:
        start = block * rng.integers(0, 1024 // block)
        row[start : start + block] = rng.standard_normal(block) * 10.0 ** rng.uniform(-3, 3)
    weight, x = oracle.quantize(torch.from_numpy(w), format), activations(rng, (7, 1024))
    expected = linear(format, "int8-g32")(x, weight)
    assert same(run(isa, Layer(weight, "int8-g32"), x), expected)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_seen_in_its_row_alone(
    isa: Isa, pair: tuple[str, str], bad: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    layer, clean = call.layer(pair, (6, 600), rng), activations(rng, (3, 600))
    dirty = clean.clone()
    dirty[1, rng.integers(0, 600)] = bad
    before, after = run(isa, layer, clean), run(isa, layer, dirty)
    assert not after[1].isfinite().any()
    if pair[1] == "int8-g32" or bad != bad:
        assert after[1].isnan().all()
    assert torch.equal(after[::2], before[::2])


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("isa", ISAS)
def test_zero_rows_and_zero_activations(isa: Isa, pair: tuple[str, str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer = call.layer(pair, (5, 520), rng)
    assert not run(isa, layer, torch.zeros(3, 520)).any()
    zeros = torch.zeros(5, 520)
    kind = {"float32": torch.float32, "bf16": torch.bfloat16}.get(pair[0])
    weight = oracle.quantize(zeros, pair[0]) if kind is None else zeros.to(kind)
    assert not run(isa, Layer(weight, pair[1]), activations(rng, (3, 520))).any()


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("isa", [p for p in ISAS if p.values[0] != PORTABLE])
def test_agrees_with_the_portable_kernels(isa: Isa, pair: tuple[str, str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer, x = call.layer(pair, (64, 1536), rng), activations(rng, (4, 1536))
    bound = 2 * layer.exact(x).bound
    difference = run(isa, layer, x).double() - run(PORTABLE, layer, x).double()
    assert (difference.abs().numpy() <= bound).all()
