"""The prediction monitor in the controller."""

from __future__ import annotations

import math
from asyncio import CancelledError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.control.support import SCHEMA, STATE, UNFIT, Bench, FakePolicy, answer
from tests.safety.support import PERIOD
from wmrt.control import Calibration, Channel, Controller, Monitor
from wmrt.control.surprise import ColumnLimits
from wmrt.core.errors import CheckpointError, SafetyError
from wmrt.safety import Level, State

WEIGHTS = "ab" * 32
COLUMNS = ("speed", "gap", "pose[0]", "pose[1]", "pose[2]")


def calibration(**changes: Any) -> Calibration:
    limits = ColumnLimits(0.1, rise=6.0, fall=6.0, frozen=6.0)
    given: dict[str, Any] = {
        "model_sha256": WEIGHTS,
        "schema_hash": SCHEMA.hash,
        "recipe": "toy",
        "period": PERIOD,
        "columns": dict.fromkeys(COLUMNS, limits),
        "false_alarms": {"per_drive": 0.1},
        "data": {"env": "toy"},
    }
    return Calibration(**{**given, **changes})


class Seer(FakePolicy):
    """Foresees speed and gap: both fall by 1.0 a step, and by 3 times the acceleration sent."""

    def __init__(self, action: tuple[float, float] = (0.1, 0.1)) -> None:
        super().__init__(self.reply)
        self.weights_sha256, self.recipe = WEIGHTS, SimpleNamespace(name="toy")
        self.action = np.array(action, np.float32)
        self.asked: list[Any] = []
        self._state: Any = None

    def reply(self, state: Any, previous: Any) -> Any:
        self._state = state
        return answer(self.action, predicted=self._after(self.action))

    def foresee(self, action: Any) -> Any:
        self.asked.append(tuple(action))
        return self._after(action)

    def _after(self, action: Any) -> Any:
        moved = 3.0 * float(action[1]) - 1.0
        state = dict(self._state)
        for name in ("speed", "gap"):
            state[name] = None if state[name] is None else state[name] + moved
        return state


class World:
    """Moves as the policy foresees it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.state = STATE | {"speed": 30.0, "gap": 80.0}

    def steps(self, count: int, **spoil: Any) -> Any:
        for _ in range(count):
            outcome = self.bench.act(self.state | spoil)
            moved = 3.0 * outcome.action[1] - 1.0
            for name in ("speed", "gap"):
                self.state[name] = round(self.state[name] + moved, 3)
        return outcome


def watched(policy: Any = None, **options: Any) -> World:
    return World(Bench(policy or Seer(), monitor=Monitor(calibration()), **options))


def test_a_clean_drive_surprises_nobody() -> None:
    world = watched()
    assert world.steps(15).after is State.CLOSED
    report = world.bench.controller.stats()["monitor"]
    assert report == {"compared": 14, "alarms": 0, "fields": {}, "failures": 0, "recipe": "toy"}
    assert world.bench.policy.asked == []  # what was sent is what it proposed


def test_a_frozen_sensor_opens_and_is_named() -> None:
    world = watched()
    world.steps(3)
    frozen = {"gap": world.state["gap"]}
    outcome = world.steps(3, **frozen)  # the first reading is right, and two are not enough
    event = world.bench.last_event()
    assert (outcome.after, outcome.source, outcome.tripped) == (
        State.OPEN, "fallback", {Level.VALIDITY},
    )  # fmt: skip
    assert (event.cause.value, event.field, event.kind) == ("surprise", "gap", "frozen")
    assert event.value == pytest.approx(8.0 / 6.0, abs=1e-3)
    stays = world.steps(10, **frozen)
    assert stays.after is State.OPEN
    report = world.bench.controller.stats()["monitor"]
    assert report["fields"] == {"gap": report["alarms"]} and report["alarms"] == 11


def test_it_closes_again_when_the_sensor_is_right_again() -> None:
    world = watched()
    world.steps(3)
    world.steps(6, gap=world.state["gap"])
    assert world.steps(1).after is State.OPEN
    assert world.steps(30).after in (State.HALF_OPEN, State.CLOSED)


def test_a_vote_or_a_ramp_is_foreseen_for_what_was_sent() -> None:
    channels = [Channel("a", lambda s, p: (0.1, 0.0)), Channel("b", lambda s, p: (0.1, -0.1))]
    world = watched(channels=channels)
    assert world.steps(10).source == "consensus"
    assert world.bench.policy.asked == [(pytest.approx(0.1), 0.0)] * 9
    assert world.bench.controller.stats()["monitor"]["alarms"] == 0
    assert world.bench.controller.stats()["monitor"]["compared"] == 9


def test_a_policy_that_cannot_foresee_is_not_compared_then() -> None:
    class Blind(Seer):
        foresee = None  # type: ignore[assignment]

    channels = [Channel("a", lambda s, p: (0.1, 0.0)), Channel("b", lambda s, p: (0.1, -0.1))]
    world = watched(Blind(), channels=channels)
    world.steps(10)
    assert world.bench.controller.stats()["monitor"]["compared"] == 0


@pytest.mark.parametrize("error", [RuntimeError, CancelledError, None])
def test_a_policy_that_fails_to_foresee_stops_nothing_and_is_counted(
    error: type[BaseException] | None,
) -> None:
    class Failing(Seer):
        def foresee(self, action: Any) -> Any:
            if error is not None:
                raise error
            return 7  # no state

    channels = [Channel("a", lambda s, p: (0.1, 0.0)), Channel("b", lambda s, p: (0.1, -0.1))]
    world = watched(Failing(), channels=channels)
    assert world.steps(10).after is State.CLOSED
    report = world.bench.controller.stats()["monitor"]
    assert (report["compared"], report["failures"]) == (0, 9)


def test_after_a_step_without_an_answer_nothing_is_expected() -> None:
    world = watched()
    world.steps(3)
    before = world.bench.controller.stats()["monitor"]["compared"]
    world.bench.act(UNFIT)
    world.steps(1)  # the policy last answered two steps ago
    assert world.bench.controller.stats()["monitor"]["compared"] == before
    world.steps(1)
    assert world.bench.controller.stats()["monitor"]["compared"] == before + 1


def test_a_late_answer_is_not_compared_but_the_next_one_is() -> None:
    world = watched(deadline=0.05)
    world.steps(3)
    slow = world.bench.policy.answer
    world.bench.policy.answer = lambda s, p: (world.bench.timer.advance(0.06), slow(s, p))[1]
    assert world.steps(1).late
    world.bench.policy.answer = slow
    compared = world.bench.controller.stats()["monitor"]["compared"]
    world.steps(1)
    assert world.bench.controller.stats()["monitor"]["compared"] == compared + 1


def test_behind_a_watchdog_it_finds_the_same() -> None:
    found = []
    for watchdog in (False, True):
        world = watched(watchdog=watchdog, deadline=30.0)  # a busy machine is not late
        world.steps(3)
        world.steps(6, gap=world.state["gap"])
        world.steps(20)
        events = world.bench.controller.breakers.events.snapshot()
        found.append(([event.to_json() for event in events], world.state))
    assert found[0] == found[1] and found[0][0]


def test_unknown_values_are_not_compared() -> None:
    world = watched()
    world.steps(3)
    world.steps(10, gap=None)
    assert world.steps(5).after is State.CLOSED


def test_a_new_episode_forgets() -> None:
    world = watched()
    world.steps(6, speed=25.0)
    assert world.bench.controller.breakers.state is State.OPEN
    world.bench.controller.reset()
    world.bench.watch.restart((0.0, 0.0))
    world.state.update(speed=12.0, gap=9.0)
    assert world.steps(1).after is State.CLOSED


def test_the_fallback_does_not_see_what_surprised() -> None:
    seen: list[Any] = []

    def fallback(state: Any, last: Any) -> Any:
        seen.append(state)
        return (0.0, 0.0)

    world = watched(fallback=fallback)
    world.steps(3)
    world.steps(4, gap=world.state["gap"])
    assert seen and seen[-1]["gap"] is None and seen[-1]["speed"] is not None
    world = watched(fallback=fallback)
    world.steps(3)
    world.steps(5, speed=world.state["speed"])  # a required field
    assert seen[-1] is None


def test_a_vector_is_compared_component_by_component() -> None:
    world = watched()
    world.steps(2)
    seer = world.bench.policy
    moving = seer.answer

    def turn(state: Any, previous: Any) -> Any:
        made = moving(state, previous)
        made.predicted["pose"] = [state["pose"][0], state["pose"][1] + 1.0, None]
        return made

    seer.answer = turn
    world.steps(6)
    event = world.bench.last_event()
    assert (event.field, event.kind) == ("pose", "frozen")


@pytest.mark.parametrize(
    "prediction",
    [
        {"gap": math.nan}, {"gap": math.inf}, {"gap": "x"}, {"gap": [1.0]}, {"gap": object()}, {},
        {"pose": [1.0]}, {"pose": 3.0}, {"gap": 10**400}, None, 7,
    ],
)  # fmt: skip
def test_any_prediction_passes(prediction: Any) -> None:
    policy = Seer()
    policy.answer = lambda s, p: answer([0.1, 0.1], predicted=prediction)
    bench = Bench(policy, monitor=Monitor(calibration()))
    bench.acts(20)
    assert "internal" not in bench.causes()
    assert bench.controller.stats()["record_failures"] == 0


def test_a_monitor_for_something_else_is_refused() -> None:
    for changes, what in (
        ({"model_sha256": "cd" * 32}, "weights"),
        ({"recipe": "other"}, "recipe"),
        ({"schema_hash": "0"}, "schema"),
        ({"period": 0.2}, "period"),
        ({"columns": {"speed": ColumnLimits(1.0, 1.0, 1.0, 1.0)}}, "no limits for 'gap'"),
    ):
        with pytest.raises(SafetyError, match=what):
            Controller(Seer(), PERIOD, monitor=Monitor(calibration(**changes)))
    with pytest.raises(SafetyError, match="weights"):  # a policy that does not say what it is
        Controller(FakePolicy(lambda s, p: None), PERIOD, monitor=Monitor(calibration()))
    with pytest.raises(SafetyError, match="monitor must be a Monitor, or None"):
        Controller(Seer(), PERIOD, monitor=calibration())  # type: ignore[arg-type]
    with pytest.raises(SafetyError, match="calibration must be a Calibration"):
        Monitor({})  # type: ignore[arg-type]


def test_a_monitor_of_a_model_without_one(tmp_path: Any) -> None:
    model = SimpleNamespace(recipe=SimpleNamespace(name="nvfp4"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no monitor.json; run: wmrt calibrate"):
        Monitor.of(model, tmp_path)


def test_without_a_monitor_nothing_is_foreseen() -> None:
    world = World(Bench(Seer()))
    world.steps(3)
    assert world.steps(20, gap=50.0).after is State.CLOSED
    assert world.bench.controller.stats()["monitor"] is None and world.bench.policy.asked == []
