"""Consensus channels in the controller."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.control.support import STATE, Bench, FakePolicy, answer, constant
from wmrt.control import Channel
from wmrt.core.errors import SafetyError
from wmrt.safety import Level, State


def fixed(name: str, action: Any, **rest: Any) -> Channel:
    return Channel(name, lambda state, previous: action, **rest)


def test_three_that_agree() -> None:
    bench = Bench(constant(0.1, 0.1), channels=[fixed("a", (0.0, 0.2)), fixed("b", [0.2, 0.0])])
    outcome = bench.act()
    assert outcome.action == pytest.approx((0.1, 0.1))
    assert (outcome.after, bench.causes()) == (State.CLOSED, [])


def raises(state: Any, previous: Any) -> Any:
    raise RuntimeError


@pytest.mark.parametrize(
    "fn",
    [
        raises,
        lambda s, p: None,
        lambda s, p: (math.nan, 0.0),
        lambda s, p: (0.0, math.inf),
        lambda s, p: "ab",
        lambda s, p: ["0.1", "0.1"],
        lambda s, p: (0.1,),
        lambda s, p: [[0.1, 0.1]],
        lambda s, p: (True, False),
        lambda s, p: (10**400, 0.0),
        lambda s, p: {"steering": 0.1},
    ],
)
def test_a_failed_channel_degrades_and_is_named(fn: Any) -> None:
    bench = Bench(constant(0.1, 0.1), channels=[Channel("odd", fn), fixed("b", (0.1, 0.1))])
    outcome = bench.act()
    assert (outcome.source, outcome.after) == ("policy", State.DEGRADED)
    events = bench.controller.breakers.events.snapshot()
    assert [e.cause.value for e in events] == ["channel", "pair"]
    assert (events[0].field, events[0].level) == ("odd", Level.CONSENSUS)
    stats = bench.controller.stats()
    assert stats["channel_failures"] == {"odd": 1, "b": 0}
    assert stats["degraded_votes"] == 1


def test_a_channel_out_of_range_does_not_vote() -> None:
    bench = Bench(constant(0.1, 0.1), channels=[fixed("a", (3.0, 0.0)), fixed("b", (0.1, 0.1))])
    assert bench.act().after is State.DEGRADED


def test_a_model_that_raises_is_outvoted_until_it_opens() -> None:
    channels = [fixed("a", (0.1, 0.1)), fixed("b", (0.2, 0.1))]
    bench = Bench(FakePolicy(raises), channels=channels)
    outcome = bench.act()
    assert (outcome.source, outcome.after) == ("consensus", State.DEGRADED)
    assert outcome.action == pytest.approx((0.15, 0.1))
    assert outcome.tripped == {Level.RANGE}
    bench.act()
    assert bench.act().after is State.OPEN


def test_all_dead_opens() -> None:
    channels = [Channel("a", raises), Channel("b", raises)]
    assert Bench(FakePolicy(raises), channels=channels).act().after is State.OPEN


def test_channels_may_vote_every_so_many_steps() -> None:
    asked: list[str] = []

    def count(name: str) -> Any:
        return lambda state, previous: asked.append(name) or (0.1, 0.1)

    channels = [Channel("a", count("a"), every=2), Channel("b", count("b"), every=3)]
    bench = Bench(constant(0.1, 0.1), channels=channels)
    for step in range(1, 14):
        before = len(asked)
        bench.act()
        assert len(asked) - before == (2 if step in (1, 7, 13) else 0)


def test_channels_get_their_own_copies() -> None:
    seen: list[Any] = []

    def spoil(state: Any, previous: Any) -> Any:
        seen.append((dict(state), previous.tolist()))
        state.clear()
        previous[:] = 7.0
        return (0.1, 0.1)

    bench = Bench(constant(0.1, 0.1), channels=[Channel("a", spoil), Channel("b", spoil)])
    bench.act(STATE | {"gap": math.nan})
    assert seen == [(STATE | {"gap": None}, [0.0, 0.0])] * 2


def test_a_policy_as_a_channel_is_reset_with_the_episode() -> None:
    twin = FakePolicy(lambda s, p: answer([0.1, 0.1]))
    bench = Bench(
        constant(0.1, 0.1), channels=[Channel.from_policy("twin", twin), fixed("b", (0, 0))]
    )
    bench.acts(2)
    bench.controller.reset()
    assert (len(twin.seen), twin.resets) == (2, 1)


class Forgetful(FakePolicy):
    """Votes with the number of steps it has seen."""

    def __init__(self) -> None:
        super().__init__(lambda state, previous: answer([len(self.seen) / 100, 0.0]))
        self.observed = 0


class Remembering(Forgetful):
    """The same; ``observe`` sees without an answer."""

    def observe(self, state: Any, previous: Any) -> None:
        self.seen.append((state, previous))
        self.observed += 1


@pytest.mark.parametrize(("kind", "observed"), [(Remembering, 5), (Forgetful, 0)])
def test_a_model_that_votes_every_so_many_steps_sees_them_all(kind: Any, observed: int) -> None:
    twin, votes = kind(), []
    channel = Channel.from_policy("twin", twin, every=3)
    watched = dataclasses.replace(
        channel, fn=lambda s, p: votes.append(channel.fn(s, p)) or votes[-1]
    )
    bench = Bench(constant(0.0, 0.0), channels=[watched, fixed("b", (0.0, 0.0))])
    bench.acts(8)
    assert [vote[0] for vote in votes] == [0.01, 0.04, 0.07]  # no gaps
    assert [state for state, _ in twin.seen] == [STATE] * 8
    assert twin.observed == observed
    report = bench.controller.stats()["channels"]
    assert (report["twin"]["votes"], report["twin"]["ms"]["n"]) == (3, 3)
    assert report["twin"]["observe_ms"]["n"] == 5
    assert (report["b"]["every"], report["b"]["votes"], report["b"]["observe_ms"]["n"]) == (1, 3, 0)


def test_a_channel_that_fails_between_votes_is_named() -> None:
    channels = [Channel("a", lambda s, p: (0, 0), every=2, observe=raises), fixed("b", (0, 0))]
    bench = Bench(constant(0.0, 0.0), channels=channels)
    bench.act()
    assert bench.causes() == []
    assert bench.act().after is State.CLOSED
    event = bench.last_event()
    assert (event.cause.value, event.field, event.kind) == ("channel", "a", "RuntimeError")
    assert bench.controller.stats()["channel_failures"] == {"a": 1, "b": 0}


def test_a_vote_that_takes_too_long_is_named_and_the_next_is_not_asked() -> None:
    bench: Bench
    calls: list[str] = []

    def slow(state: Any, previous: Any) -> Any:
        bench.timer.advance(0.2 if len(calls) == 0 else 0.001)
        calls.append("slow")
        return (0.1, 0.1)

    second = Remembering()
    channels = [Channel("slow", slow), Channel.from_policy("second", second)]
    bench = Bench(constant(0.1, 0.1), channels=channels)
    outcome = bench.act()
    assert outcome.late and bench.causes() == ["channel", "deadline", "starved"]
    event = bench.controller.breakers.events.snapshot()[0]
    assert (event.field, event.kind, event.value) == ("slow", "late", 200_000_000)
    assert (second.observed, len(second.seen)) == (1, 1)  # it saw the step all the same
    assert not bench.act().late and calls == ["slow"] * 2
    report = bench.controller.stats()["channels"]
    assert [report[name]["late"] for name in ("slow", "second")] == [1, 1]
    assert [report[name]["votes"] for name in ("slow", "second")] == [1, 1]
    assert report["slow"]["ms"]["max"] == pytest.approx(200.0)
    assert [report[name]["failures"] for name in ("slow", "second")] == [0, 0]


def test_a_late_policy_leaves_no_time_to_vote() -> None:
    bench: Bench
    policy = FakePolicy(lambda s, p: (bench.timer.advance(0.2), answer([0.1, 0.1]))[1])
    twin = Remembering()
    bench = Bench(policy, channels=[Channel.from_policy("twin", twin), fixed("b", (0.1, 0.1))])
    assert bench.act().late and twin.observed == 1
    assert "channel" not in bench.causes()


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", "b", "c"]])
def test_none_or_two_channels(names: list[str]) -> None:
    with pytest.raises(SafetyError, match="give none or two different ones"):
        Bench(constant(0, 0), channels=[fixed(name, (0, 0)) for name in names])


def test_a_memory_that_is_kept_can_be_given_back() -> None:
    own = {"snapshot": lambda: 1, "restore": lambda kept: None}
    Channel("a", lambda *_: None, **own)
    for name, do in own.items():
        with pytest.raises(SafetyError, match="snapshot and restore go together"):
            Channel("a", lambda *_: None, **{name: do})
        with pytest.raises(SafetyError, match=f"channel 'a': {name}"):
            Channel("a", lambda *_: None, **{**own, name: 3})


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_every_is_a_whole_number(every: Any) -> None:
    with pytest.raises(SafetyError, match="every must be at least 1"):
        fixed("a", (0, 0), every=every)


def test_the_record_says_what_became_of_each_channel() -> None:
    rows: list[Any] = []
    recorder = SimpleNamespace(record=lambda outcome, inputs: rows.append(inputs), command=print)
    bench: Bench

    def slow(state: Any, previous: Any) -> Any:
        bench.timer.advance(0.2 * (len(rows) == 2))
        return (0.1, 0.1)

    channels = [Channel("odd", raises, every=2), Channel("slow", slow)]
    bench = Bench(constant(0.1, 0.1), channels=channels, recorder=recorder)
    bench.acts(3)
    bench.act({})
    nobody = ("not due", "not due")
    assert [row.channels for row in rows] == [("failed", "voted"), nobody, ("late", "late"), nobody]
    assert [(row.asked, row.answered, row.late) for row in rows] == [
        (True, True, False), (True, True, False), (True, True, True), (False, False, False),
    ]  # fmt: skip
