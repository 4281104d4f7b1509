"""Planning: a policy around a policy, which looks ahead in the model's imagination.

``Controller(model, planner=MPPI(budget=104))``. Off unless asked for: on ``wmrt/Highway-v0`` it is
not shown to drive better than the policy alone (benchmarks/README.md).
"""

from __future__ import annotations

from wmrt.control.planning.mppi import MPPI
from wmrt.control.planning.planner import Choice, PlannedStep, Planner
from wmrt.control.planning.protocol import ImaginingPolicy, Planning

__all__ = ["MPPI", "Choice", "ImaginingPolicy", "PlannedStep", "Planner", "Planning"]
