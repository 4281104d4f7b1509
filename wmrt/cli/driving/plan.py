"""What a run is to be; plain data, so that another process can set up the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmrt.cli.driving.arms import CONTROL_ARMS
from wmrt.control.planning import MPPI


@dataclass(frozen=True)
class Plan:
    """What to run.

    ``threads`` is what a model computes with; None leaves it to the executor. ``consensus`` is the
    second opinion beside the rule: ``auto`` (another recipe), ``off``, a recipe or a checkpoint.
    ``monitor`` compares observations with what the model expected. ``record`` is where recordings
    go; see `wmrt.cli.driving.records`. ``planner`` is put around the model, None for the model as
    it is. ``limits`` is a file of limits for the breakers, None for the default ones.
    """

    env: str
    model: str
    recipe: str | None = None
    device: str = "cpu"
    breakers: bool = True
    deadline: bool = True
    threads: int | None = None
    executor: str = "auto"
    consensus: str = "auto"
    every: int = 1
    monitor: bool = False
    record: str | None = None
    planner: MPPI | None = None
    limits: Path | None = None

    @property
    def model_options(self) -> dict[str, Any]:
        """How a model is built, but for its recipe."""
        return {"device": self.device, "executor": self.executor, "threads": self.threads}

    @property
    def arm(self) -> str:
        """``random``, ``expert``, ``rule`` or ``model``."""
        return self.model if self.model in CONTROL_ARMS else "model"
