"""What planning asks of a policy, and the controller of planning. Structural."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from wmrt.control import settings
from wmrt.control.protocol import Policy
from wmrt.safety import Limits


class ImaginingPolicy(Policy, Protocol):
    """A policy that can say what would follow, such as `wmrt.WorldModel`.

    ``imagine`` takes float32[N, T, A] and returns an object with ``reward`` and ``proceed``
    (float[N, T]: expected reward of each step, and probability that the episode goes on after it)
    and ``q`` (int64[N, T, F], rows for ``schema.decode``). It starts at the state of the last
    ``step`` and advances nothing. ``fork`` returns the same policy with a memory of its own.
    """

    def imagine(self, actions: Any) -> Any: ...
    def fork(self) -> ImaginingPolicy: ...


class Planning(Protocol):
    """A way of planning, such as `MPPI`: settings that make a policy around a policy."""

    def around(
        self, model: Any, limits: Limits, deadline: float, timer: Callable[[], int]
    ) -> Policy: ...


def planned(
    model: Policy,
    planner: Planning | None,
    limits: Limits,
    deadline_ns: float,
    timer: Callable[[], int],
) -> Policy:
    """``model``, or what ``planner`` makes of it; `SafetyError` for what is no planner."""
    settings.has_methods("planner", planner, ("around",), optional=True)
    if planner is None:
        return model
    return planner.around(model, limits, deadline_ns * 1e-9, timer)
