"""Attention of one step: the kernel and the operator on the CPU against float64 and the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import pytest
import torch

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton import transition_attention as kernel
from wmrt.kernels.triton.interpreter import repaired
from wmrt.model.config import ModelConfig
from wmrt.model.transition import Selection
from wmrt.model.trunk import Block
from wmrt.quant.activations import quantize_groups

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPS = torch.ops.wmrt
UNIT = 2.0**-24
# Robots, heads, heads of keys, their width, window, slots read: the tiny preset; no powers of two;
# k = 0; k = W - 1; a query head for each head of keys; several turns of the warps.
SHAPES = [
    (1, 2, 1, 32, 16, 5),
    (3, 6, 2, 24, 7, 4),
    (2, 3, 1, 20, 5, 1),
    (1, 4, 2, 10, 6, 6),
    (2, 2, 2, 40, 9, 3),
    (1, 2, 1, 96, 40, 33),
]


class Case(NamedTuple):
    q: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor
    bias: torch.Tensor


@pytest.fixture(autouse=True)
def runs() -> Iterator[None]:
    with nullcontext() if DEVICE == "cuda" else repaired():
        yield


def draw(seed: int, shape: tuple[int, ...], unwritten: int = 0) -> Case:
    """Slots in any order, as after the ring went round; the last `unwritten` hold NaN and infinity
    and have a bias of -inf."""
    batch, heads, kv_heads, dim, window, count = shape
    g = torch.Generator().manual_seed(seed)
    q = 2 * torch.randn(batch, heads, dim, generator=g)
    keys, values = (torch.randn(batch, window, kv_heads, dim, generator=g) for _ in range(2))
    slots = torch.stack([torch.randperm(window, generator=g)[:count] for _ in range(batch)])
    bias = torch.nn.functional.logsigmoid(torch.randn(batch, count, generator=g))
    bias[:, 0] = 0.0
    for b in range(batch):
        for n in range(count - unwritten, count):
            bias[b, n] = -math.inf
            keys[b, slots[b, n]] = math.nan if n % 2 else math.inf
            values[b, slots[b, n]] = -math.inf if n % 2 else math.nan
    return Case(q, keys, values, slots.int(), bias)


def run(case: Case) -> torch.Tensor:
    moved = [t.to(DEVICE) for t in case]
    out = torch.full(case.q.shape, math.nan, device=DEVICE)
    kernel.transition_attention(*moved, out)
    return out.cpu()


def run_int8(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    width = -(-case.q[0].numel() // 256) * 256
    codes = torch.full((len(case.q), width), 99, dtype=torch.int8, device=DEVICE)
    factors = torch.full((len(case.q), width // 32), 99.0, device=DEVICE)
    kernel.transition_attention_int8(*(t.to(DEVICE) for t in case), codes, factors)
    return codes.cpu(), factors.cpu()


def on_cpu(case: Case) -> torch.Tensor:
    out = torch.empty_like(case.q)
    OPS.transition_attention(*case, out)
    return out


def exact(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """float64, and how far float32 may be from it: half an ulp for each term of the logits, then
    of the exponential (taken from a product with log2 e) and of each term of both sums."""
    q, keys, values, bias = (t.double() for t in (case.q, case.keys, case.values, case.bias))
    batch, heads, dim = q.shape
    found, bound = np.zeros(q.shape), np.zeros(q.shape)
    share = heads // keys.shape[2]
    for b in range(batch):
        live = (bias[b] != -math.inf).nonzero().flatten()
        k, v = (t[b, case.slots[b, live].long()] for t in (keys, values))
        for h in range(heads):
            kh, vh = k[:, h // share], v[:, h // share]
            logits = kh @ q[b, h] / math.sqrt(dim) + bias[b, live]
            size = (kh.abs() @ q[b, h].abs()) / math.sqrt(dim) + bias[b, live].abs()
            away = (dim + 4) * UNIT * size + 4 * UNIT * (logits.max() - logits)
            weights = logits.softmax(0)
            found[b, h] = weights @ vh
            relative = 2 * away.max() + (2 * len(live) + 8) * UNIT
            bound[b, h] = (relative * (weights @ vh.abs())).numpy()
    return found, bound


@pytest.mark.parametrize("how", [run, on_cpu])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_float64(
    shape: tuple[int, ...], how: Callable[..., torch.Tensor], seed: int
) -> None:
    case = draw(seed, shape)
    want, bound = exact(case)
    assert (np.abs(how(case).double().numpy() - want) <= bound).all()


@pytest.mark.parametrize("how", [run, on_cpu])
@pytest.mark.parametrize("unwritten", [1, 3])
def test_what_was_not_written_has_weight_zero(
    unwritten: int, how: Callable[..., torch.Tensor], seed: int
) -> None:
    """NaN and infinity there change no bit: the same slots alone give the same."""
    case = draw(seed, SHAPES[1], unwritten)
    want, bound = exact(case)
    got = how(case)
    assert (np.abs(got.double().numpy() - want) <= bound).all()
    clean = Case(case.q, *(t.nan_to_num(0, 0, 0) for t in case[1:3]), *case[3:])
    assert torch.equal(how(clean), got)


@torch.no_grad()
def test_it_is_the_models(seed: int) -> None:
    config = ModelConfig(d_model=24, heads=6, kv_heads=2, head_dim=24, window=7, past=3, dropout=0)
    case = draw(seed, SHAPES[1])
    row = torch.arange(3)
    current = case.slots[:, 0].long()
    k, v = case.keys[row, current], case.values[row, current]
    chosen = Selection(case.slots[:, 1:].long(), case.bias[:, 1:])
    want = Block(config).look(case.q, k, v, case.keys, case.values, current, chosen)
    assert torch.equal(on_cpu(case), want)


@pytest.mark.parametrize("shape", [SHAPES[0], (3, 3, 1, 96, 5, 3), (1, 2, 2, 160, 3, 2)])
def test_int8_is_the_quantized_result(shape: tuple[int, ...], seed: int) -> None:
    """Of the same bits; and behind the heads nothing is written."""
    case = draw(seed, shape, 1)
    values = run(case).flatten(1)
    codes, factors = run_int8(case)
    want, want_factors = quantize_groups(values)
    width = values.shape[1]
    assert torch.equal(codes[:, :width].float(), want)
    assert torch.equal(factors[:, : width // 32], want_factors)
    assert (codes[:, width:] == 99).all() and (factors[:, width // 32 :] == 99).all()
    codes, factors = torch.zeros_like(codes), torch.zeros_like(factors)
    OPS.transition_attention_int8(*case, codes, factors)
    want, want_factors = quantize_groups(on_cpu(case).flatten(1))
    assert torch.equal(codes[:, :width].float(), want)
    assert torch.equal(factors[:, : width // 32], want_factors)
    assert not codes[:, width:].any() and not factors[:, width // 32 :].any()


@pytest.mark.parametrize("name", ["q", "keys", "values", "bias"])
def test_nan_stays_with_its_robot(name: str, seed: int) -> None:
    shape = (3, 4, 2, 32, 5, 3)
    case, dirty = draw(seed, shape), draw(seed, shape)
    current = int(dirty.slots[1, 0])
    {
        "q": dirty.q[1],
        "keys": dirty.keys[1, current],
        "values": dirty.values[1, current],
        "bias": dirty.bias[1, :1],
    }[name].fill_(math.nan)
    for how in (run, on_cpu):
        got = how(dirty)
        assert got[1].isnan().all() and torch.equal(got[::2], how(case)[::2])
    (codes, factors), before = run_int8(dirty), run_int8(case)
    assert factors[1, :4].isnan().all() and not codes[1, :128].any()
    assert torch.equal(codes[::2], before[0][::2]) and torch.equal(factors[::2], before[1][::2])


def test_the_bits_of_a_robot_do_not_depend_on_the_others(seed: int) -> None:
    case = draw(seed, (3, 2, 1, 32, 9, 4))
    together = run(case)
    assert torch.equal(run(case), together)
    for b in range(3):
        assert torch.equal(run(Case(*(t[b : b + 1] for t in case))), together[b : b + 1])


@pytest.mark.parametrize("how", [run, on_cpu])
def test_slots_may_count_over_all_rings(how: Callable[..., torch.Tensor], seed: int) -> None:
    """Of more rings than robots, the others full of NaN."""
    shape = (3, 2, 1, 32, 9, 4)
    case = draw(seed, shape)
    owner = torch.randperm(5, generator=torch.Generator().manual_seed(seed))[:3]
    rings = torch.full((2, 5, 9, 1, 32), torch.nan)
    rings[:, owner] = torch.stack([case.keys, case.values])
    slots = case.slots + 9 * owner[:, None].int()
    pooled = Case(case.q, *rings.flatten(1, 2), slots, case.bias)
    assert torch.equal(how(pooled), how(case))
    if how is run:
        for got, want in zip(run_int8(pooled), run_int8(case), strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"q": torch.zeros(17, 4, 8)}, UsageError, r"first of 1 to 16 robots"),
        (
            {"q": torch.zeros(8, 4, 2).mT},
            UsageError,
            r"q is torch.float32 \[8, 2, 4\] with strides",
        ),
        ({"q": torch.zeros(2, 3, 8)}, UsageError, r"3 heads over 2 of keys"),
        (
            {"keys": torch.zeros(2, 5, 2, 9)},
            UsageError,
            r"keys is .*\[2, 5, 2, 9\].*\[2, 5, 2, 8\]",
        ),
        ({"values": torch.zeros(2, 5, 2, 8).double()}, UsageError, "values is torch.float64"),
        ({"slots": torch.zeros(2, 3)}, UsageError, "slots is torch.float32 .*to be torch.int32"),
        ({"slots": torch.zeros(2, 6).int()}, UsageError, "reading 6 of 5 slots"),
        ({"keys": torch.zeros(10, 2, 8)}, UsageError, r"values is .*\[2, 5, 2, 8\].*\[10, 2, 8\]"),
        ({"keys": torch.zeros(5, 8)}, UsageError, r"\[B, W, KV, hd\], or \[S, KV, hd\] of all"),
        ({"bias": torch.zeros(2, 2)}, UsageError, r"bias is .*\[2, 2\].*\[2, 3\]"),
        ({"out": torch.zeros(2, 8, 4).mT}, UsageError, "attended is .* contiguous"),
    ],
)
@pytest.mark.parametrize("where", ["kernel", "cpu", "meta"])
def test_arguments_are_checked(
    change: dict[str, torch.Tensor], error: type[Exception], says: str, where: str
) -> None:
    given = {
        "q": torch.zeros(2, 4, 8),
        "keys": torch.zeros(2, 5, 2, 8),
        "values": torch.zeros(2, 5, 2, 8),
        "slots": torch.zeros(2, 3).int(),
        "bias": torch.zeros(2, 3),
        "out": torch.zeros(2, 4, 8),
    } | change
    call = kernel.transition_attention if where == "kernel" else OPS.transition_attention
    with pytest.raises(error, match=says):
        call(*(t.to("meta") if where == "meta" else t for t in given.values()))


def test_what_int8_does_not_take(seed: int) -> None:
    case = draw(seed, SHAPES[1])
    codes, factors = torch.zeros(3, 256, dtype=torch.int8), torch.zeros(3, 8)
    for call in (kernel.transition_attention_int8, OPS.transition_attention_int8):
        with pytest.raises(UnsupportedError, match=r"heads are 24 wide; as int8 .* multiple of 32"):
            call(*case, codes, factors)
        with pytest.raises(UsageError, match=r"codes is .*\[3, 256\].*to be torch.int8 \[1, 256\]"):
            call(*draw(seed, SHAPES[0]), codes, factors)
