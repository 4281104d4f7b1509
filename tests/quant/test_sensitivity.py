"""The sweep's errors are those of single rounded layers, and picks stay within their budget."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.quant.toy_target import Toy, inputs, toy
from wmrt.core.errors import UsageError
from wmrt.quant import RECIPES, quantize
from wmrt.quant.emulate import emulate_input
from wmrt.quant.meter import ModelError
from wmrt.quant.sensitivity import Cost, parse_budget, pick, sweep
from wmrt.quant.steps import Gptq

NVFP4 = RECIPES["nvfp4"]
NAMES = ["s0.a", "s0.b", "s1.a", "s1.b"]


def outputs(target: Toy, x: Tensor, rounded: frozenset[str]) -> Tensor:
    """By hand: the linears in ``rounded`` packed, the others float."""

    def product(name: str, weight: Tensor, given: Tensor) -> Tensor:
        if name not in rounded:
            return given @ weight.T
        return emulate_input(given, "int8-g32") @ quantize(weight, "nvfp4").dequantize().T

    for stage in target.parts:
        (a, first), (b, second) = stage.stored.items()
        x = x + product(b, second, torch.relu(product(a, first, x)))
    return x


def test_variants_are_what_they_say(seed: int) -> None:
    target, x = toy(seed), inputs(seed)
    sets = [{n} for n in NAMES] + [set(NAMES), set(NAMES) - {"s0.b"}, set()]
    variants = [frozenset(names) for names in sets]
    found = sweep(target, NVFP4, x, variants)
    assert list(found) == variants
    exact = outputs(target, x, frozenset())
    for variant in variants:
        change = outputs(target, x, variant) - exact
        expected = float(change.square().mean().sqrt())
        assert found[variant].hidden == pytest.approx(expected, rel=1e-4, abs=1e-9)
        expected = float(change[..., :2].square().mean().sqrt())
        assert found[variant].action == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert all(not stage.held and not stage.packed for stage in target.parts)


def test_progress_reaches_the_end(seed: int) -> None:
    told: list[tuple[int, int, str]] = []
    sweep(toy(seed), NVFP4.with_(steps=(Gptq(),)), inputs(seed), [], lambda *now: told.append(now))
    assert told == [(2, 4, "s0.b"), (4, 4, "s1.b")]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10_000)), max_size=12),
    st.integers(0, 40_000),
)
def test_a_pick_fits_and_leaves_nothing_that_would(
    drawn: list[tuple[float, int]], room: int
) -> None:
    costs = [Cost(f"l{i}", ModelError(e, 0.0), size) for i, (e, size) in enumerate(drawn)]
    chosen = pick(costs, room)
    left = room - sum(c.extra for c in costs if c.name in chosen)
    assert left >= 0 and len(set(chosen)) == len(chosen)
    assert all(c.extra > left for c in costs if c.name not in chosen)


def test_the_worst_per_byte_goes_first() -> None:
    costs = [
        Cost("small", ModelError(0.1, 0.0), 10),
        Cost("large", ModelError(0.2, 0.0), 100),
        Cost("mild", ModelError(0.02, 0.0), 10),
    ]
    assert pick(costs, 15) == ["small"] and pick(costs, 20) == ["small", "mild"]
    assert pick(costs, 110) == ["small", "large"] and pick(costs, 9) == []


def test_budgets() -> None:
    assert parse_budget("1.1x", 1000) == 1100 and parse_budget(" 2X ", 1000) == 2000
    assert parse_budget("1500", 1000) == 1500 and parse_budget("1x", 1000) == 1000
    for text in ("", "x", "lots", "1.5", "nanx", "infx", "12MB"):
        with pytest.raises(UsageError, match=r"1\.1x, or bytes"):
            parse_budget(text, 1000)
    with pytest.raises(UsageError, match=r"'999' is 999 bytes; packed in full it takes 1,000"):
        parse_budget("999", 1000)
