"""A served robot whose model votes with a second opinion and a rule, 2 of 3."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.service.doubles import ACTIONS, SCHEMA, service, until
from tests.service.raw import Raw, state
from wmrt.control import Channel
from wmrt.core.errors import SafetyError, UsageError
from wmrt.runtime.snapshot import Origin, Snapshot
from wmrt.service import consensus
from wmrt.service.consensus import load_rule
from wmrt.service.crew import load_crew
from wmrt.service.memories import Memory
from wmrt.service.settings import ServeSettings, read_settings
from wmrt.service.snapshots import SnapshotStore

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


class Remembering:
    """A second opinion that goes by how often it was asked."""

    schema: Any = SCHEMA
    actions = ACTIONS

    def __init__(self, weights: str = "second") -> None:
        self.steps, self.weights = 0, weights

    def reset(self) -> None:
        self.steps = 0

    def step(self, seen: Any, previous: Any) -> Any:
        self.steps += 1
        off = 0.002 * (self.steps % 7)
        return SimpleNamespace(action=np.array([seen["canary"] + off, previous[1]], np.float32))

    def snapshot(self) -> Snapshot:
        origin = Origin("schema", {}, self.weights, {"name": "second"})
        return Snapshot(origin, {"steps": torch.tensor([self.steps])}, torch.zeros(1), (0.0, 0.0))

    def restore(self, snapshot: Snapshot) -> None:
        Origin("schema", {}, self.weights, {"name": "second"}).require_same(snapshot.origin)
        self.steps = int(snapshot.tensors["steps"])


def voting(second: Any, every: int = 1, name: str = "second") -> dict[str, Any]:
    """Options of a service in which the median depends on what the second opinion remembers."""

    def third(seen: Any, previous: Any) -> Any:
        return np.array([seen["canary"] + 0.007, previous[1]], np.float32)

    channels = (Channel.from_policy(name, second, every), Channel("third", third, every))
    return {"channels": channels, "clock": "step", "period": 0.1}


def told(raw: Raw, numbers: Iterable[int], canaries: Sequence[float]) -> list[Any]:
    """What was decided, step by step."""
    answers = [raw.acted(i, state=state(canaries[i])) for i in numbers]
    return [(one.action, one.source, one.breakers, one.tripped) for one in answers]


@pytest.mark.parametrize("every", [1, 5])
def test_a_restart_changes_no_decision(tmp_path: Path, seed: int, every: int) -> None:
    canaries = np.random.default_rng(seed).uniform(-0.9, 0.9, 100).round(4).tolist()
    with service(tmp_path, snapshots=tmp_path / "a", **voting(Remembering(), every)) as running:
        raw = running.raw()
        raw.open()
        whole = told(raw, range(100), canaries)
    with service(tmp_path, snapshots=tmp_path / "b", **voting(Remembering(), every)) as running:
        raw = running.raw()
        own = raw.open()
        first = told(raw, range(50), canaries)
    with service(tmp_path, snapshots=tmp_path / "b", **voting(Remembering(), every)) as running:
        raw = running.raw()
        assert raw.open(session=own["session"])["memory"] == "restored"
        assert first + told(raw, range(50, 100), canaries) == whole
    sources = [one[1] for one in whole]
    assert sources.count("consensus") >= 40 // every and {one[2] for one in whole} == {"closed"}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: voting(Remembering("earlier")), "another model"),
        (lambda: voting(Remembering(), name="first"), "of a vote with"),
        (dict, "of a vote with"),
        (lambda: {"channels": Voters().channels()}, "of a vote with"),  # named so, no memory
    ],
)
def test_a_memory_of_another_vote_is_refused(
    tmp_path: Path, other: Callable[[], dict[str, Any]], said: str
) -> None:
    kept = {"snapshots": tmp_path / "kept", "audit": tmp_path / "audit"}
    with service(tmp_path, **kept, **voting(Remembering())) as running:
        raw = running.raw()
        own = raw.open()
        raw.acted(0)
    with service(tmp_path, **kept, **other()) as running:
        answer = running.raw().open(session=own["session"])
        assert answer["error"]["name"] == "unknown_session"
        assert running.raw().open()["memory"] == "fresh"
    assert said in (tmp_path / "audit").read_text()


def test_a_memory_of_no_vote_is_refused_by_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of a vote with nobody, and this service votes with"):
        consensus.give_back(voting(Remembering())["channels"], ())
    consensus.give_back(voting(Remembering())["channels"], None)  # it does not say


def test_the_second_model_goes_on_bit_for_bit(tmp_path: Path) -> None:
    crew = load_crew(ServeSettings(consensus="auto", consensus_rule="hold", **QUICK))
    try:
        second, store = crew.channels[0], SnapshotStore(tmp_path)
        schema = crew.seats[0].schema
        whole = schema.decode(schema.encode({}).q)
        moved = [np.array([0.01 * i, -0.01 * i], np.float32) for i in range(20)]

        def said(steps: range) -> list[bytes]:
            return [np.asarray(second.fn(whole, moved[i])).tobytes() for i in steps]

        said(range(10))
        own = consensus.opinions_of(crew.channels)
        assert [one.snapshot is None for one in own] == [False, True]
        memory = Memory(
            *("r1", 1, 0, 9, 10, (0.0, 0.0), "closed", True, crew.seats[0].snapshot()), own
        )
        store.write(memory)
        rest = said(range(10, 20))
        assert second.reset is not None
        second.reset()
        assert said(range(10, 20)) != rest
        second.reset()
        found = store.read("r1")
        assert found is not None
        consensus.give_back(crew.channels, found.channels)
        assert said(range(10, 20)) == rest
    finally:
        crew.close()


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


@pytest.mark.parametrize(
    "name", ["os:system", "gc:collect", "statistics:fmean_of_nothing", "math:pi", "no.such:rule"]
)
def test_what_is_no_rule_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"consensus_rule '{name}'"):
        load_rule(name)


def test_a_rule_of_c_may_keep_its_parameters_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(rule: object) -> Any:
        raise ValueError(f"no signature found for {rule!r}")

    monkeypatch.setattr(inspect, "signature", silent)
    assert load_rule("builtins:max") is max


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

    alone = consensus._alone(Channel("slow", slow, 1, slow, slow, snapshot=slow, restore=slow))
    others = (alone.reset, alone.observe, alone.snapshot, alone.restore)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(alone.fn, {}, None) for _ in range(3)]
        calls += [pool.submit(do) for do in others if do is not None]
        assert len(calls) == 7
        for call in calls:
            call.result(10.0)
    assert most == [1]
    assert consensus._alone(Channel("plain", slow)).reset is None
