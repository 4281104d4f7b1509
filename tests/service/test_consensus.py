"""A served robot whose model votes with a second opinion and a rule, 2 of 3."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.doubles import service, until
from tests.service.raw import Raw, state
from wmrt.control import Channel
from wmrt.core.errors import SafetyError, UsageError
from wmrt.service import consensus
from wmrt.service.consensus import load_rule
from wmrt.service.crew import load_crew
from wmrt.service.settings import ServeSettings, read_settings

QUICK: dict[str, Any] = {"threads": 1, "cpu": -1, "recipe": "nvfp4"}


class Voters:
    """Two channels that say what the model says, but for what is added."""

    def __init__(self) -> None:
        self.added = [0.0, 0.0]
        self.resets = 0

    def channels(self) -> tuple[Channel, ...]:
        def voice(which: int) -> Any:
            return lambda seen, previous: np.array(
                [seen["canary"] + self.added[which], previous[1]], np.float32
            )

        def reset() -> None:
            self.resets += 1

        return Channel("second", voice(0), reset=reset), Channel("third", voice(1))


def drive(raw: Raw, first: int, count: int) -> list[Any]:
    return [raw.acted(first + i, state=state(0.01)) for i in range(count)]


def test_two_of_three(tmp_path: Path) -> None:
    voters = Voters()
    with service(tmp_path, channels=voters.channels(), tcp=True) as running:
        raw = running.raw()
        raw.open()
        desk = running.host.registry.places["r1"].desk
        (answer,) = drive(raw, 0, 1)
        assert (answer.source, answer.breakers) == ("consensus", "closed")  # the median
        voters.added = [2.0, 0.0]  # one is out
        (answer,) = drive(raw, 1, 1)
        assert (answer.source, answer.breakers) == ("policy", "degraded")
        voters.added = [2.0, 2.0]  # nobody agrees with the model
        (answer,) = drive(raw, 2, 1)
        assert (answer.source, answer.breakers, answer.tripped) == ("fallback", "open", (3,))
        voters.added = [0.0, 0.0]
        numbers = iter(range(3, 400))
        until(lambda: drive(raw, next(numbers), 1)[0].breakers != "open")
        assert desk.breakers.state.value == "half_open"
        told = desk.call(desk.controller.stats).result(10.0)
        assert told["channels"]["second"]["votes"] >= 3
        assert voters.resets >= 1


@pytest.mark.parametrize("how", ["new session", "restart"])
def test_a_channel_that_is_out_is_not_forgotten(tmp_path: Path, how: str) -> None:
    voters = Voters()
    options: dict[str, Any] = {"snapshots": tmp_path / "kept", "channels": voters.channels()}
    with service(tmp_path, hold=0.01, **options) as running:
        raw = running.raw()
        own = raw.open()
        voters.added = [2.0, 0.0]
        assert drive(raw, 0, 1)[0].breakers == "degraded"
        voters.added = [0.0, 0.0]
        if how == "new session":
            raw.channel.close()
            until(lambda: running.host.registry.places["r1"].session.holder is None)
            time.sleep(0.05)
            again = running.raw()
            assert again.open()["memory"] == "fresh"
            assert drive(again, 0, 1)[0].breakers == "degraded"
            return
    with service(tmp_path, **options) as running:
        raw = running.raw()
        assert raw.open(session=own["session"])["memory"] == "restored"
        answer = drive(raw, 1, 1)[0]  # fresh breakers cannot be degraded: the fallback, until it is
        assert (answer.source, answer.breakers) == ("fallback", "open")  # seen that all agree


def test_the_model_s_second_opinion_votes() -> None:
    crew = load_crew(
        ServeSettings(consensus="auto", consensus_rule="hold", consensus_every=3, **QUICK)
    )
    try:
        told = crew.described["consensus"]
        assert told["requested"] == {"second": "auto", "rule": "hold"}
        assert told["resolved"] == ["model nvfp4", "model bf16", "rule hold"]
        assert told["every"] == 3 and told["run"]["resolved"]["recipe"] == "bf16"
        second, rule = crew.channels
        assert second.every == rule.every == 3
        previous = np.array([0.25, -0.5], np.float32)
        assert rule.fn({}, previous) is previous
        schema = crew.seats[0].schema
        whole = schema.decode(schema.encode({}).q)
        assert np.asarray(second.fn(whole, previous)).shape == (2,)
    finally:
        crew.close()


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"consensus": "nvfp4"}, SafetyError, "always agree"),
        ({"consensus": "no-such-model"}, Exception, "no-such-model"),
        ({"consensus_rule": "nothing"}, UsageError, "hold, or module:function"),
        ({"consensus_rule": "math:nothing"}, UsageError, "hold, or module:function"),
        ({"consensus_rule": "math:pi"}, UsageError, "that is a float, no function"),
    ],
)
def test_a_vote_that_would_show_nothing_is_refused(
    given: dict[str, Any], error: type[Exception], said: str
) -> None:
    settings = ServeSettings(**{"consensus": "auto", "consensus_rule": "hold", **QUICK, **given})
    with pytest.raises(error, match=said):
        load_crew(settings)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"consensus": "auto"}, "name the third with consensus_rule"),
        ({"consensus_rule": "hold"}, "they belong to consensus"),
        ({"consensus_every": 2}, "they belong to consensus"),
        ({"consensus": "auto", "consensus_rule": "hold", "robots": 2}, "and robots is 2"),
        ({"consensus": "auto", "consensus_rule": "hold", "consensus_every": 0}, "consensus_every"),
    ],
)
def test_settings_that_make_no_vote(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_settings(**given)


def test_a_rule_of_one_s_own() -> None:
    rule = load_rule("wmrt.envs.rules:rule_action")
    from wmrt.envs.rules import rule_action

    assert rule is rule_action


def test_the_second_opinion_is_asked_by_one_thread_at_a_time() -> None:
    inside: list[int] = []
    most = [0]
    gate = threading.Lock()

    def slow(*_: object) -> None:
        with gate:
            inside.append(1)
            most[0] = max(most[0], len(inside))
        time.sleep(0.01)
        with gate:
            inside.pop()

    alone = consensus._alone(Channel("slow", slow, reset=slow, observe=slow))
    assert alone.reset is not None and alone.observe is not None
    with ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(alone.fn, {}, None) for _ in range(3)]
        calls += [pool.submit(alone.observe, {}, None), pool.submit(alone.reset)]
        for call in calls:
            call.result(10.0)
    assert most == [1]
    assert consensus._alone(Channel("plain", slow)).reset is None
