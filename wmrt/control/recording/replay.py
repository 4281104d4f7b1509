"""Does again what a controller did, and says where it comes out differently."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from wmrt.control.protocol import Outcome, Policy, StepInputs
from wmrt.control.recording import messages
from wmrt.control.recording.head import identity
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.rebuild import rebuild, with_planner
from wmrt.control.recording.stand_ins import Script
from wmrt.control.recording.topics import COMMANDS, EVENTS, GAPS, STEPS
from wmrt.core.errors import RecordingError, SafetyError
from wmrt.safety import Event


class Difference(NamedTuple):
    """The first thing that came out differently.

    Attributes:
        step: number of the control step.
        field: ``step`` (its number), ``asked``, ``action``, ``source``, ``before``, ``after`` or
            ``tripped`` of the step; ``vote of`` a channel; ``event``; a command that was refused;
            or ``observation``: the step's inputs in the file are not those that were recorded.
        recorded, replayed: in words.
    """

    step: int
    field: str
    recorded: str
    replayed: str


@dataclass
class Report:
    """How a replay went.

    Attributes:
        steps, commands, events: compared or done.
        difference: the first one; nothing was replayed after it.
        gap: why the recording could not be followed further; None if it could.
        complete: it has an end; else its recorder was killed or stopped.
    """

    steps: int = 0
    commands: int = 0
    events: int = 0
    difference: Difference | None = None
    gap: str | None = None
    complete: bool = False

    @property
    def identical(self) -> bool:
        """Everything recorded was replayed, bit for bit."""
        return self.difference is None and self.gap is None and self.complete

    def said(self) -> str:
        """One line."""
        if self.difference is not None:
            step, field, recorded, replayed = self.difference
            return f"step {step}: {field}: recorded {recorded:.200}, replayed {replayed:.200}"
        done = f"{self.steps} steps, {self.events} events and {self.commands} commands"
        if self.gap is not None:
            return f"{self.gap}; the {done} before it are identical"
        if not self.complete:
            return f"it has no end, its recorder was killed or stopped; {done} are identical"
        return f"{done} are identical, bit for bit"


def require_same(recording: Recording, model: Policy) -> None:
    """Raise `RecordingError` unless ``model`` has the recorded weights and recipe."""
    recorded, given = recording.data("model"), identity(model)
    if recorded is None:
        raise RecordingError(
            f"{recording.path} is of a {recording.head['policy']}, which is no world model: build "
            "it again and give it to wmrt.control.recording.replay"
        )
    names = ("schema_hash", "weights_sha256", "network", "recipe", "session", "planner")
    differing = [n for n in names if given is None or given[n] != recorded.get(n)]
    if differing:
        name = differing[0]
        found = type(model).__name__ if given is None else given[name]
        raise RecordingError(
            f"{recording.path} is of another model: {name} {_short(recorded.get(name))} recorded, "
            f"{_short(found)} given; give the one that drove"
        )


def _short(value: Any) -> str:
    text = value["name"] if isinstance(value, dict) and "name" in value else str(value)
    return f"{text:.16}" if len(text) == 64 else f"{text:.80}"


def replay(
    recording: Recording,
    model: Policy,
    on_step: Callable[[int], object] | None = None,
    channels: Mapping[str, Policy] | None = None,
) -> Report:
    """Do a recorded drive again and compare every step and event.

    Taken from the record: observations, clock readings, who was late, which channels voted, the
    fallback's answers, commands, and the votes of channels that are not given. Computed anew: the
    reading of observations, the models' steps, the breakers. Stops at the first difference.

    Args:
        model: what drove; it is reset first. Whether it is the same, `require_same` asks. A planner
            that was around it is built again.
        on_step: called with the number of steps done.
        channels: the consensus channels that are models, by name.

    Raises:
        RecordingError: a recording that is damaged or incomplete in a way that leaves nothing to
            compare with; see `Report` for one that only ends too soon.
    """
    driver = with_planner(recording, model)
    for own in (driver, *(channels or {}).values()):
        own.reset()
    return _Replay(recording, driver, channels or {}).run(on_step)


class _Replay:
    """One replay: a controller made as the recorded one was, and what is compared with it."""

    def __init__(self, recording: Recording, model: Policy, models: Mapping[str, Policy]) -> None:
        self._recording = recording
        self._script = Script()
        self._controller, self._consultant = rebuild(recording, model, models, self._script)
        self._events: list[Event] = []  # of the replay, not compared yet
        self._report = Report()

    def run(self, on_step: Callable[[int], object] | None) -> Report:
        report = self._report
        for topic, message in self._recording.items():
            try:
                if topic == EVENTS:
                    self._compare_event(message)
                elif not self._more_events():
                    self._do(topic, message)
            except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
                raise RecordingError(
                    f"{self._recording.path}: a message of {topic} after step {self._script.step} "
                    f"cannot be read: {error!r:.200}"
                ) from None
            if topic == STEPS and on_step is not None:
                on_step(report.steps)
            if report.difference is not None or report.gap is not None:
                return report
        report.complete = self._recording.end is not None
        self._more_events()
        return report

    def _do(self, topic: str, message: Mapping[str, Any]) -> None:
        """A step or command again, or a gap."""
        report = self._report
        try:
            if topic == STEPS:
                self._step(message)
                report.steps += 1
            elif topic == COMMANDS:
                self._command(message["name"], messages.read_arguments(message))
                report.commands += 1
            elif topic == GAPS:
                after, missing = message["after_step"], message["missing"]
                report.gap = f"{missing} missing after step {after}: {message['reason']}"
        except RecordingError as error:
            report.gap = f"after step {self._script.step}: {error}"
        self._events += self._controller.breakers.events.drain()

    def _step(self, message: Mapping[str, Any]) -> None:
        recorded, inputs = messages.read_step(message)
        if (now := messages.digest(message)) != message["digest"]:
            self._differ(recorded.step, "observation", f"digest {message['digest']}", now)
            return
        script, controller, breakers = self._script, self._controller, self._controller.breakers
        script.early = bool(inputs.failure) and recorded.step == breakers.step
        script.step, script.inputs, script.asked = recorded.step, inputs, False
        if inputs.estop in ("begin", "both"):
            breakers.estop()
        controller.act(inputs.observation, inputs.captured_ns)
        breakers.estop(False)  # a reset while it was still pressed was refused, and is no command
        self._compare_step(recorded, inputs, controller.last)

    def _compare_step(self, old: Outcome, inputs: StepInputs, new: Outcome | None) -> None:
        if new is None:
            self._differ(old.step, "step", "decided", "not accounted for")
            return
        if self._script.vote is not None:
            name, recorded_vote, vote = self._script.vote
            self._differ(old.step, f"vote of {name}", recorded_vote, vote)
            return
        pairs = {
            "step": (old.step, new.step),
            "asked": (inputs.asked, self._script.asked),
            "action": (_bits(old.action), _bits(new.action)),
            "source": (old.source, new.source),
            "before": (old.before.value, new.before.value),
            "after": (old.after.value, new.after.value),
            "tripped": (sorted(old.tripped), sorted(new.tripped)),
        }
        for field, (recorded, replayed) in pairs.items():
            if recorded != replayed:
                shown = (old.action, new.action) if field == "action" else (recorded, replayed)
                self._differ(old.step, field, *map(str, shown))
                return

    def _command(self, name: str, arguments: Mapping[str, Any]) -> None:
        if name == "estop":  # from any thread; a step's inputs say where it latched
            return
        if name not in ("reset", "engage", "disengage", "reset_latch", "change_task", "close"):
            raise RecordingError(f"command {name!r} is unknown to this version")
        given = {key: value for key, value in arguments.items() if key != "dropped"}
        if arguments.get("dropped") is not None:
            self._consultant.forget(arguments["dropped"])
        try:
            getattr(self._controller, name)(**given)
        except SafetyError as error:
            self._differ(self._script.step, name, "done", f"refused: {error}")

    def _compare_event(self, message: Mapping[str, Any]) -> None:
        recorded = dict(message)
        replayed = messages.event_message(self._events.pop(0)) if self._events else None
        if replayed is not None and recorded["cause"] == replayed["cause"] == "deadline":
            recorded["value"] = replayed["value"]  # how late it was is no decision
        self._report.events += 1
        if replayed is None or messages.text(recorded) != messages.text(replayed):
            shown = "none" if replayed is None else messages.text(replayed)
            self._differ(recorded["step"], "event", messages.text(recorded), shown)

    def _more_events(self) -> bool:
        """Whether the replay had events that the record lacks; a difference then."""
        if not self._events:
            return False
        event = self._events[0]
        self._differ(event.step, "event", "none", messages.text(messages.event_message(event)))
        return True

    def _differ(self, step: int, field: str, recorded: str, replayed: str) -> None:
        self._report.difference = Difference(step, field, recorded, replayed)


def _bits(action: tuple[float, ...]) -> bytes:
    return struct.pack(f"<{len(action)}d", *action)
