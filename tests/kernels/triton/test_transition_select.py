"""The choice of past states, on a GPU or in the interpreter, against float64 of its scores."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels import state_oracle as oracle
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.transition_select import transition_select
from wmrt.model.network import Network
from wmrt.runtime.gpu_weights_state import selector_weights

#: The first step, few written, all but one, all, wrapped around, and far on.
STEPS = [0, 3, 12, 13, 25, 10**9 + 7]
BARE = {"d_model": 10, "action_embed": 4, "lstm": 3, "select_dim": 3, "head_dim": 4}


@pytest.fixture(autouse=True)
def runs() -> object:
    with nullcontext() if oracle.DEVICE == "cuda" else repaired():
        yield


def near(got: Tensor, want: Tensor, bound: Tensor) -> None:
    off = (got.double() - want).abs()
    assert bool((off <= bound).all()), float((off / bound).max())


def check_choice(
    net: Network, given: oracle.Scene, got: oracle.Selected, kind: str = "learned"
) -> None:
    """The present slot with bias 0, then distinct past ones, no better one left out, as far as
    scores are known; and their biases."""
    exact, window = oracle.selected(net, given), net.config.window
    for robot, (slots, bias) in enumerate(zip(got.slots.long(), got.bias, strict=True)):
        age = exact.age[robot]
        assert age[slots[0]] == 0 and bias[0] == 0.0
        chosen, count = slots[1:], len(slots) - 1
        assert len(set(slots.tolist())) == len(slots) and bool((slots < window).all())
        written = int((age > 0).sum())
        assert bool((age[chosen[:written]] > 0).all()), "a slot not written before one that is"
        assert bool(bias[1 + written :].isneginf().all())
        chosen = chosen[:written]
        if kind != "learned":
            assert age[chosen].tolist() == list(range(1, min(written, count) + 1))
            assert not bias[1 : 1 + written].any()
            continue
        score, bound = exact.scores[robot], exact.scores_bound[robot]
        low, high = (score - bound)[chosen], (score + bound)[chosen]
        assert bool((high[:-1] >= low[1:]).all())
        others = (age > 0).scatter(0, chosen, False)
        if len(chosen) and bool(others.any()):
            assert float(high[-1]) >= float((score - bound)[others].max())
        want = torch.nn.functional.logsigmoid(score)[chosen]
        # exp and log1p of up to 3 roundings, exp also of its argument's.
        near(bias[1 : 1 + written], want, bound[chosen] + 8 * oracle.U * (1 + want.abs()))


@pytest.mark.parametrize("narrow", [True, False])
def test_a_step_at_any_time(narrow: bool, seed: int) -> None:
    check_step(oracle.network(seed, narrow=narrow), STEPS, seed)


def test_widths_of_the_largest_preset(seed: int) -> None:
    check_step(oracle.network(seed, **oracle.WIDE), [100], seed)


def check_step(net: Network, steps: list[int], seed: int) -> None:
    given = oracle.scene(net, steps, seed)
    exact, got = oracle.selected(net, given), oracle.select(transition_select, net, given)
    check_choice(net, given, got)
    near(got.hidden, exact.hidden, exact.hidden_bound)
    near(got.cell, exact.cell, exact.cell_bound)
    row, present = torch.arange(len(steps)), given.step % net.config.window
    near(got.select_keys[row, present], exact.key, exact.key_bound)
    kept = exact.age != 0
    assert torch.equal(got.select_keys[kept].nan_to_num(7), given.select_keys[kept].nan_to_num(7))
    ulp = torch.finfo(torch.float32).eps / 2
    for phases, want in ((got.cos, exact.cos), (got.sin, exact.sin)):
        near(phases, want.double(), 4 * ulp * want.double().abs() + 2.0**-50)


def test_slots_are_torchs_where_scores_are_far_apart(seed: int) -> None:
    net = oracle.network(seed, **BARE)
    given = oracle.scene(net, [40], seed)
    exact = oracle.selected(net, given)
    past = exact.age > 0
    scores = exact.scores.masked_fill(~past, -math.inf)
    ordered, slots = scores.topk(13, dim=-1)
    gaps = (ordered[0, :11] - ordered[0, 1:12]).min()
    got = oracle.select(transition_select, net, given, count=12)
    check_choice(net, given, got)
    if float(gaps) > 2 * float(exact.scores_bound[past].max()):
        assert torch.equal(got.slots[:, 1:].long(), slots[:, :12])


@pytest.mark.parametrize("kind", ["recent", "full"])
def test_control_arms(kind: str, seed: int) -> None:
    net = oracle.network(seed, **BARE, selector=kind)
    given = oracle.scene(net, STEPS[1:4], seed)
    got = oracle.select(transition_select, net, given, kind, count=12 if kind == "full" else 5)
    check_choice(net, given, got, kind)
    near(got.hidden, *oracle.selected(net, given)[:2])


@pytest.mark.parametrize("count", [0, 1, 12])
def test_none_one_and_all_past_slots(count: int, seed: int) -> None:
    net = oracle.network(seed, **BARE)
    given = oracle.scene(net, [4, 30], seed)
    check_choice(net, given, oracle.select(transition_select, net, given, count=count))


def test_a_window_of_one_state(seed: int) -> None:
    net = oracle.network(seed, **BARE | {"window": 1, "past": 0})
    given = oracle.scene(net, [9], seed)
    got = oracle.select(transition_select, net, given)
    assert got.slots.tolist() == [[0]] and got.bias.tolist() == [[0.0]]


def test_of_equal_scores_the_lowest_slots(seed: int) -> None:
    """`torch.topk` leaves their order open; any choice of them has the same biases."""
    net = oracle.network(seed, **BARE)
    net.selector.age_bias.zero_()
    given = oracle.scene(net, [4, 30], seed)
    given.select_keys[:] = given.select_keys[1, 0]
    got = oracle.select(transition_select, net, given)
    check_choice(net, given, got)
    assert got.slots.tolist() == [[4, 0, 1, 2, 3, 5], [4, 0, 1, 2, 3, 5]]
    assert len(set(got.bias[1, 1:].tolist())) == 1
    given.select_keys[:, 2] *= -0.0  # zeros of both signs are one score, and so is the bias
    given.select_keys[:, 1] = 0.0
    got = oracle.select(transition_select, net, given, count=12)
    order = got.slots[1].tolist()
    assert order.index(2) == order.index(1) + 1


def test_scores_that_are_no_numbers(seed: int) -> None:
    """NaN comes before any number and infinity next, as in torch; what is not written stays out."""
    net = oracle.network(seed, **BARE)
    net.selector.query.weight.zero_()
    net.selector.query.bias.fill_(1.0)
    given = oracle.scene(net, [8, 8], seed)
    clean = oracle.select(transition_select, net, given)
    given.select_keys[0, 3, 0] = -math.nan
    given.select_keys[0, 5, 0] = math.inf
    given.select_keys[0, 1, 0] = -math.inf
    got = oracle.select(transition_select, net, given, count=8)
    assert got.slots[0, :3].tolist() == [8, 3, 5] and got.slots[0, -1] == 1
    assert bool(got.bias[0, 1].isnan()) and float(got.bias[0, 2]) == 0.0
    assert float(got.bias[0, -1]) == -math.inf
    assert torch.equal(got.slots[1, :6], clean.slots[1])
    assert torch.equal(got.bias[1, :6], clean.bias[1])


def test_a_robot_has_the_same_bits_beside_any_others(seed: int) -> None:
    net = oracle.network(seed, **BARE)
    given = oracle.scene(net, [4, 30, 12], seed)
    together = oracle.select(transition_select, net, given)
    for robot in range(3):
        alone = oracle.select(transition_select, net, given.of(robot))
        for name, mine, all_of in zip(alone._fields, alone, together, strict=True):
            if name != "work":
                assert torch.equal(mine[0].nan_to_num(7), all_of[robot].nan_to_num(7)), name
    given.token[1], given.action[1], given.hidden[1] = math.nan, math.nan, math.nan
    broken = oracle.select(transition_select, net, given)
    assert bool(broken.hidden[1].isnan().all()) and bool(broken.bias[1, 1:].isnan().all())
    assert torch.equal(broken.hidden[::2], together.hidden[::2])
    assert torch.equal(broken.bias[::2], together.bias[::2])


@pytest.mark.parametrize("kind", ["learned", "recent"])
@pytest.mark.parametrize("op", [transition_select, torch.ops.wmrt.transition_select])
def test_some_robots_of_a_group_step_as_each_does_alone(op: Any, kind: str, seed: int) -> None:
    """In any order, on slots of their own rings; the others keep every bit. Torch's products round
    otherwise for three rows than for one."""
    off = 0.0 if op is transition_select or oracle.DEVICE == "cuda" else 1e-5
    net = oracle.network(seed, **BARE, selector=kind)
    whole = oracle.scene(net, [4, 30, 12, 9], seed)
    chosen = torch.randperm(4, generator=torch.Generator().manual_seed(seed))[:3].int()
    given = oracle.Scene(*(t[chosen] for t in whole[:2]), *whole[2:])
    got = oracle.select(op, net, given, kind, robots=chosen)
    for row, robot in enumerate(chosen.tolist()):
        alone = oracle.select(op, net, whole.of(robot), kind)
        for name in ("hidden", "cell", "select_keys"):
            mine, want = getattr(got, name)[robot], getattr(alone, name)[0]
            torch.testing.assert_close(mine, want, rtol=0, atol=off, equal_nan=True)
        assert torch.equal(got.slots[row] - 13 * robot, alone.slots[0])
        torch.testing.assert_close(got.bias[row], alone.bias[0], rtol=0, atol=off)
        assert torch.equal(got.cos[row], alone.cos[0]) and torch.equal(got.sin[row], alone.sin[0])
    (stays,) = {0, 1, 2, 3} - set(chosen.tolist())
    for name in ("hidden", "cell", "select_keys"):
        kept, before = getattr(got, name)[stays], getattr(whole, name)[stays]
        assert torch.equal(kept.nan_to_num(7), before.nan_to_num(7)), name


def arguments() -> dict[str, Any]:
    net = oracle.network(0, **BARE)
    given = oracle.scene(net, [4, 30], 0)
    slots = torch.zeros(2, 6, dtype=torch.int32)
    out = (*given[3:], torch.zeros(6), slots, *(torch.zeros(2, n) for n in (6, 2, 2)))
    names = "token action step weights kind hidden cell select_keys work slots bias cos sin"
    values = (*given[:3], selector_weights(net), "learned", *out)
    return dict(zip(names.split(), values, strict=True))


def keys(window: int, size: int) -> dict[str, Any]:
    weights = list(arguments()["weights"])
    weights[7], weights[5] = torch.zeros(window), torch.zeros(size, 10)
    return {"weights": weights}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"kind": "random"}, UnsupportedError, "selector 'random' .* use executor=eager"),
        ({"kind": "oldest"}, UsageError, "'oldest': transition_select knows learned, recent, full"),
        ({"kind": "full"}, UsageError, r"slots is \[2, 6\]; 'full' gives \[B, 13\]"),
        ({"slots": torch.zeros(2, 14, dtype=torch.int32)}, UsageError, r"gives \[B, 1 to 13\]"),
        ({"slots": torch.zeros(2, 6)}, UsageError, "takes contiguous int32"),
        ({"step": torch.zeros(2)}, UsageError, r"contiguous int64 \[2\] on cpu"),
        ({"token": torch.zeros(10, 2).t()}, UsageError, "not contiguous; transition_select takes"),
        ({"hidden": torch.zeros(2, 4)}, UsageError, r"hidden is torch.float32 \[2, 4\]"),
        ({"weights": []}, UsageError, "which are 9: lstm_in, lstm_hidden"),
        (
            {"robots": torch.zeros(2)},
            UsageError,
            r"robots is .* takes contiguous int32 \[2\]",
        ),
        ({"robots": torch.zeros(3).int()}, UsageError, r"robots is .*\[3\].* int32 \[2\]"),
        (
            {"robots": torch.zeros(2).int(), "step": torch.zeros(3).long()},
            UsageError,
            r"hidden is torch.float32 \[2, 3\] .* \[3, 3\]",
        ),
        ({"step": torch.zeros(3).long()}, UsageError, r"step is torch.int64 \[3\].* \[2\] on cpu"),
        (keys(257, 3), UnsupportedError, "a window of 257 states with keys of 3"),
        (keys(200, 70), UnsupportedError, "16384 numbers of keys"),
    ],
)
def test_arguments_are_checked(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        transition_select(**{**arguments(), **change})
