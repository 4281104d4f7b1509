"""Builds again the models that a recording names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wmrt.core import machine
from wmrt.core.errors import CheckpointError, RecordingError, UsageError

if TYPE_CHECKING:
    from wmrt.control.planning import Planner
    from wmrt.control.recording.reader import Recording
    from wmrt.model.checkpoint import Checkpoint
    from wmrt.runtime import WorldModel


@dataclass(frozen=True)
class Wish:
    """What the user asked for; None is as it was recorded."""

    model: str | None = None
    recipe: str | None = None
    executor: str | None = None
    threads: int | None = None
    device: str | None = None

    @property
    def other(self) -> bool:
        """Whether another model than the recorded one is welcome."""
        return self.model is not None or self.recipe is not None


class Models:
    """Models by what they are, each built once for all recordings."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self._checkpoints: dict[str, Checkpoint] = {}
        self._built: dict[tuple[str, str], WorldModel] = {}

    def driver(self, recording: Recording) -> WorldModel | Planner:
        """The model that drove, or the one asked for; with the planner around it, if one was.

        Raises:
            RecordingError: what drove was no world model, or is another one, and none was named.
            WmrtError: it cannot be had.
        """
        from wmrt.control.recording.rebuild import with_planner
        from wmrt.control.recording.replay import require_same

        recorded = recording.data("model")
        if recorded is None:
            raise RecordingError(
                f"{recording.path} is of a {recording.head['policy']}, which is no world model: "
                "build it again and call wmrt.control.recording.replay.replay"
            )
        name = self._wish.model or recording.head.get("model_name")
        if name is None:
            raise UsageError(
                f"{recording.path} does not name the model that drove (weights "
                f"{recorded['weights_sha256']:.16}); give it with --model"
            )
        model = with_planner(recording, self._build(name, recorded, self._wish.recipe, recording))
        if not self._wish.other:
            require_same(recording, model)
        return model

    def channels(self, recording: Recording) -> tuple[dict[str, WorldModel], list[str]]:
        """The consensus channels that are models which can be had, by name; and remarks on those
        whose votes are taken from the record instead."""
        found: dict[str, WorldModel] = {}
        remarks = []
        for channel in recording.data("controller")["channels"]:
            name, recorded = channel["name"], channel["model"]
            source = None if recorded is None else self._source(recording, recorded)
            if recorded is not None and source is not None:
                found[name] = self._build(source, recorded, None, recording)
            else:
                why = "no model" if recorded is None else "a model that is not here"
                remarks.append(f"votes of {name} are taken from the record: it is {why}")
        return found, remarks

    def _source(self, recording: Recording, recorded: dict[str, Any]) -> str | None:
        """A checkpoint that the recording names, with these weights."""
        for name in (recording.head.get("model_name"), recording.head.get("consensus")):
            try:
                if name and self._open(name).weights_sha256 == recorded["weights_sha256"]:
                    return name
            except CheckpointError:  # a word such as "auto", or a folder that is gone
                continue
        return None

    def _open(self, name: str) -> Checkpoint:
        from wmrt.model.checkpoint import load_checkpoint

        if name not in self._checkpoints:
            self._checkpoints[name] = load_checkpoint(name)
        return self._checkpoints[name]

    def _build(
        self, name: str, recorded: dict[str, Any], recipe: str | None, recording: Recording
    ) -> WorldModel:
        from wmrt.quant.recipe import Recipe
        from wmrt.runtime import WorldModel

        checkpoint = self._open(name)
        chosen: Any = recipe
        if recipe is None and checkpoint.quantization is None:
            chosen = Recipe.from_json(recorded["recipe"])
        key = (name, repr((chosen, recorded["session"])))
        if key not in self._built:
            self._built[key] = WorldModel.from_checkpoint(
                checkpoint, recipe=chosen, **recorded["session"], **self._options(recording)
            )
        return self._built[key]

    def _options(self, recording: Recording) -> dict[str, Any]:
        ran, wish = recording.data("ran"), self._wish
        threads = wish.threads
        if threads is None:
            threads = min(ran["threads"] or 1, machine.usable_cpus())
        executor = wish.executor or ran["executor"]
        return {"executor": executor, "threads": threads, "device": wish.device or ran["device"]}
