"""The runtime: `WorldModel`, its session and its run report."""

from __future__ import annotations

from wmrt.runtime.report import RunReport
from wmrt.runtime.session import Session
from wmrt.runtime.snapshot import Snapshot
from wmrt.runtime.step import Rollout, Step
from wmrt.runtime.world_model import WorldModel

__all__ = ["Rollout", "RunReport", "Session", "Snapshot", "Step", "WorldModel"]
