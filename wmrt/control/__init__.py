"""Control: observation in, safe action out. Gymnasium is imported only for `ControlledEnv`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wmrt.control.calibration import Calibration
from wmrt.control.channels import Channel
from wmrt.control.clock import StepClock
from wmrt.control.controller import Controller
from wmrt.control.defaults import default_limits
from wmrt.control.driving import DrivenStep, drive
from wmrt.control.limits_file import load_limits, save_limits
from wmrt.control.loop import LoopReport, Observed, run_loop
from wmrt.control.monitor import Monitor
from wmrt.control.predict import PredictPolicy
from wmrt.control.protocol import Outcome, Policy, Recorder, StepInputs
from wmrt.control.standard import standard_channels
from wmrt.control.timed import TimedController
from wmrt.control.worker import Bell

if TYPE_CHECKING:
    from wmrt.control.gym_wrapper import ControlledEnv

__all__ = [
    "Bell",
    "Calibration",
    "Channel",
    "ControlledEnv",
    "Controller",
    "DrivenStep",
    "LoopReport",
    "Monitor",
    "Observed",
    "Outcome",
    "Policy",
    "PredictPolicy",
    "Recorder",
    "StepClock",
    "StepInputs",
    "TimedController",
    "default_limits",
    "drive",
    "load_limits",
    "run_loop",
    "save_limits",
    "standard_channels",
]


def __getattr__(name: str) -> Any:
    if name == "ControlledEnv":
        from wmrt.control.gym_wrapper import ControlledEnv

        return ControlledEnv
    raise AttributeError(f"module 'wmrt.control' has no attribute {name!r}")
