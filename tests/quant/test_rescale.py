"""Scales moved with their codes: what is stored stays valid, and no row gets worse."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tests.quant.test_gptq import FOUR_BIT, MAIN, cost, problem
from wmrt.quant import rescale as module
from wmrt.quant.formats import block_format, decode_scales, unpack_nibbles
from wmrt.quant.gptq import gptq
from wmrt.quant.scales import Chosen, choose_scales
from wmrt.quant.steps import Clip, Gptq, Rescale
from wmrt.quant.tensor import QuantizedTensor

FIXED = Gptq(passes=0)


def damped(hessian: Tensor, damp: float) -> Tensor:
    return hessian + damp * hessian.diagonal().mean() * torch.eye(len(hessian))


@pytest.mark.parametrize("name", FOUR_BIT)
@pytest.mark.parametrize("columns", [256, 130, 9])
def test_no_row_gets_worse_and_most_get_better(name: str, columns: int, seed: int) -> None:
    w, h = problem(seed, 24, columns)
    chosen = choose_scales(w, name, Clip(weighted=False))
    kept = chosen.scales.clone()
    found = [gptq(w, h, name, chosen, FIXED, a) for a in (None, Rescale(1), Rescale(3))]
    costs = [cost(w, q, damped(h, FIXED.damp)) for q in found]
    for before, after in itertools.pairwise(costs):
        # Costs are compared in float32, of rows as they are after it.
        assert bool((after <= before * (1 + 1e-4)).all())
    if columns > 9:
        assert float(costs[2].sum()) < 0.999 * float(costs[0].sum())
    assert torch.equal(chosen.scales, kept)
    for q in found:
        QuantizedTensor.from_tensors(name, q.shape, q.tensors())


@pytest.mark.parametrize("name", MAIN)
def test_further_passes_start_from_the_moved_scales(name: str, seed: int) -> None:
    w, h = problem(seed, 32, 256)
    chosen = choose_scales(w, name, Clip(weighted=False))
    moved = gptq(w, h, name, chosen, FIXED, Rescale())
    more = gptq(w, h, name, chosen, Gptq(passes=2), Rescale())
    assert torch.equal(moved.scales, more.scales)
    least = cost(w, moved, damped(h, 0.01))
    assert bool((cost(w, more, damped(h, 0.01)) <= least * (1 + 1e-4)).all())
    # Passes from scales that stay may by luck end lower, in one seed of 50: over 72 seeds the cost
    # was 0.93 to 1.003 times theirs, with int4-g128 0.983 +-0.009.
    fixed = gptq(w, h, name, chosen, Gptq(passes=2))
    assert float(cost(w, more, h).sum()) < 1.04 * float(cost(w, fixed, h).sum())
    again = gptq(w, h, name, chosen, Gptq(passes=2), Rescale())
    assert torch.equal(again.codes, more.codes) and torch.equal(again.scales, more.scales)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "int4-g32"])
def test_of_one_block_without_coupling_it_finds_the_best_scale_in_reach(
    name: str, seed: int
) -> None:
    # Every scale in reach is tried here with codes to nearest, which nothing beats when H is 1.
    spec = block_format(name)
    w = torch.randn(16, spec.block, generator=torch.Generator().manual_seed(seed))
    chosen = choose_scales(w, name)
    got = gptq(w, torch.eye(spec.block), name, chosen, FIXED, Rescale(1))
    factor = chosen.global_scale or 1.0
    block = module._Block.of(torch.eye(spec.block), spec, chosen, 0, Rescale(1))
    assert block is not None
    tried = decode_scales(block.candidates(chosen.scales[:, 0]), spec) * factor
    levels = torch.tensor(sorted(set(spec.levels)))
    near = (w[..., None] - levels * tried[..., None, None]).abs().amin(-1).square().sum(-1)
    found = (got.dequantize() - w).square().sum(-1)
    torch.testing.assert_close(found, near.amin(0), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", MAIN)
def test_blocks_of_zeros_keep_their_scale(name: str, seed: int) -> None:
    w, h = problem(seed, 6, 256)
    w[2] = 0.0
    w[3, :128] = 0.0
    chosen = choose_scales(w, name)
    got = gptq(w, h, name, chosen, Gptq(), Rescale())
    assert not got.dequantize()[2].any() and not got.dequantize()[3, :128].any()
    assert torch.equal(got.scales[2], chosen.scales[2]) and got.zeroed_blocks == 0


@pytest.mark.parametrize("name", FOUR_BIT)
def test_padding_stays_zero(name: str, seed: int) -> None:
    w, h = problem(seed, 6, 133)
    got = gptq(w, h, name, choose_scales(w, name), Gptq(), Rescale())
    tail = unpack_nibbles(got.codes)[:, 133:]
    zero = torch.full((6, 1), got.spec.zero_code, dtype=torch.uint8)
    if got.zero_points is not None:
        zero = got.zero_points[:, -1:]
    assert bool((tail == zero).all())


def test_slices_of_rows_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    w, h = problem(seed, 50, 64)
    chosen = choose_scales(w, "nvfp4")
    whole = gptq(w, h, "nvfp4", chosen, FIXED, Rescale())
    monkeypatch.setattr(module, "SLICE", 60)
    parts = gptq(w, h, "nvfp4", chosen, FIXED, Rescale())
    # The solve of another width may round another way; a row in which it decides a tie differs.
    same = (whole.dequantize() == parts.dequantize()).all(1)
    assert float(same.double().mean()) >= 0.9


def test_the_ends_of_what_a_scale_can_be(seed: int) -> None:
    w, h = problem(seed, 4, 64)
    for name, ends in (("nvfp4", (0, 0x7E)), ("mxfp4", (0, 254))):
        for end in ends:
            scales = torch.full((4, block_format(name).scale_shape((4, 64))[1]), end).byte()
            chosen = Chosen(scales, 1e-4 if name == "nvfp4" else None)
            got = gptq(w, h, name, chosen, FIXED, Rescale())
            assert bool(torch.isfinite(got.dequantize()).all())
            QuantizedTensor.from_tensors(name, got.shape, got.tensors())
    large = Chosen(torch.full((4, 2), 65504.0, dtype=torch.float16))
    got = gptq(w * 2e6, h, "int4-g32", large, FIXED, Rescale())
    assert bool(torch.isfinite(got.scales).all())


def test_a_singular_hessian_and_one_of_zeros(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 64, generator=g)
    w = torch.randn(8, 64, generator=g)
    chosen = choose_scales(w, "nvfp4")
    for hessian in (x.T @ x / 2, torch.zeros(64, 64)):
        fixed = gptq(w, hessian, "nvfp4", chosen, Gptq(1e-9))
        got = gptq(w, hessian, "nvfp4", chosen, Gptq(1e-9), Rescale())
        assert float(cost(w, got, hessian).sum()) <= float(cost(w, fixed, hessian).sum()) + 1e-6
