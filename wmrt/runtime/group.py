"""Up to 16 robots that share each read of the weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.state_arguments import MOST_ROBOTS
from wmrt.model.encoded import Encoded
from wmrt.runtime.array_session import ArraySession, next_integers, other_columns
from wmrt.runtime.checks import check_action
from wmrt.runtime.group_step import GroupReport, GroupStep, Rows
from wmrt.runtime.snapshot import Snapshot
from wmrt.runtime.step import Step
from wmrt.runtime.world_model import WorldModel

_BATCH_AXIS = {"keys": 1, "values": 1}


class SessionGroup:
    """Robots on one model, each with a memory of its own; a step reads the weights once for all.

    What a robot answers is bit for bit what it would answer alone. Robot i draws its exploration
    noise from the model's seed plus i. Not thread-safe.

    Args:
        model: under the native executor, or the fused kernels of a GPU, which are captured as the
            model's own step was asked to be. Its own session is not touched.
        robots: 1 to 16.
        steps: what steps them; None: what the model's session makes.

    Raises:
        UsageError: another number of robots.
        UnsupportedError: the model runs eagerly, the message says why; or with ``graph="on"``, and
            the group's steps cannot be captured.
        DeviceError, OutOfMemoryError: the device failed, or had no memory left.
    """

    def __init__(self, model: WorldModel, robots: int, steps: GroupStep | None = None) -> None:
        session = model.session
        if not isinstance(session, ArraySession):
            resolved = model.report().resolved
            why = f" ({resolved['executor_reason']})" if resolved["executor_reason"] else ""
            raise UnsupportedError(
                "a group needs the native executor, or the one of a GPU, triton, and this model is "
                f"stepped by the {resolved['executor']} one{why}; use one fork of the model per "
                "robot"
            )
        if not (type(robots) is int and 1 <= robots <= MOST_ROBOTS):
            raise UsageError(f"robots={robots!r}: 1 to {MOST_ROBOTS} share one read of the weights")
        self.model, self.robots = model, robots
        self._steps = session.group(robots) if steps is None else steps
        self._own = [session.fresh_choice(session.seed + i) for i in range(robots)]
        self._numbers = model.network.numeric_index.cpu().numpy()
        self._others = other_columns(model.network)
        self._last = [tuple(model.schema.neutral)] * robots

    def step(
        self,
        states: Sequence[Any],
        previous_actions: Sequence[Sequence[float] | NDArray[np.float32] | None] | None = None,
        *,
        robots: Sequence[int] | None = None,
        strict: bool = False,
    ) -> list[Step]:
        """One control step of the robots named, all by default; see `WorldModel.step`.

        Args:
            states: one per robot that steps, in their order.
            previous_actions: one per state, None for the one returned last.
            robots: which robots step, each at most once; the others stay where they are.

        Raises `UsageError` for a single state, or lengths or robots that do not fit; nothing is
        advanced then.
        """
        begin = time.perf_counter_ns()
        if isinstance(states, (str, Mapping)):
            raise UsageError(
                f"states is a {type(states).__name__}; give a list, one state for each robot"
            )
        chosen = self._chosen(robots, len(states), previous_actions)
        given = [None] * len(chosen) if previous_actions is None else list(previous_actions)
        before = [
            self._last[robot] if action is None else check_action(action, self.model.actions)
            for robot, action in zip(chosen, given, strict=True)
        ]
        read = [self.model.schema.encode(state, strict=strict) for state in states]
        encoded = time.perf_counter_ns()
        rows = self._steps.step(chosen, read, before, self._own)
        ran = time.perf_counter_ns()
        answers = self._answers(chosen, read, rows)
        end = time.perf_counter_ns()
        timing = {
            "encode": encoded - begin,
            "network": ran - encoded,
            "decode": end - ran,
            "total": end - begin,
        }
        return [Step(**answer, timing_ns=dict(timing)) for answer in answers]

    def report(self) -> GroupReport:
        """What steps the group, and how often it did."""
        return self._steps.report(self.model.report().kernels)

    @torch.inference_mode()
    def reset(self, robot: int | None = None) -> None:
        """Start a new episode for one robot, or for all."""
        for i in range(self.robots) if robot is None else [self._index(robot)]:
            for part in self._ring_of(i).values():
                part.zero_()
            self._own[i].generator.manual_seed(self._own[i].seed)
            self._last[i] = tuple(self.model.schema.neutral)

    def snapshot(self, robot: int) -> Snapshot:
        """One robot's memory, as `WorldModel.snapshot` of a model that is this robot."""
        index = self._index(robot)
        tensors = {name: part.clone() for name, part in self._ring_of(index).items()}
        generator = self._own[index].generator.get_state()
        return Snapshot(self.model.origin(), tensors, generator, self._last[index])

    @torch.inference_mode()
    def restore(self, robot: int, snapshot: Snapshot) -> None:
        """Continue from ``snapshot``; `UsageError` if it is another model's."""
        index = self._index(robot)
        self.model.origin().require_same(snapshot.origin)
        for name, part in self._ring_of(index).items():
            part.copy_(snapshot.tensors[name])
        self._own[index].generator.set_state(snapshot.generator)
        self._last[index] = snapshot.last_action

    def _ring_of(self, robot: int) -> dict[str, torch.Tensor]:
        """Views of one robot's memory, with the batch axis."""
        return {
            name: tensor.narrow(_BATCH_AXIS.get(name, 0), robot, 1)
            for name, tensor in self._steps.ring.tensors().items()
        }

    def _index(self, robot: int) -> int:
        if not (type(robot) is int and 0 <= robot < self.robots):
            raise UsageError(f"robot {robot!r}: this group has robots 0 to {self.robots - 1}")
        return robot

    def _chosen(
        self, robots: Sequence[int] | None, count: int, actions: Sequence[Any] | None
    ) -> list[int]:
        chosen = [self._index(r) for r in (range(self.robots) if robots is None else robots)]
        fits = len(chosen) == count and (actions is None or len(actions) == count)
        if not chosen or not fits or len(set(chosen)) != len(chosen):
            raise UsageError(
                f"{count} states for robots {chosen}; give one state, and one previous action if "
                "any, for each robot that steps, no robot twice"
            )
        return chosen

    def _answers(self, chosen: list[int], read: list[Encoded], rows: Rows) -> list[dict[str, Any]]:
        """What each robot's `Step` holds, but for the time."""
        schema = self.model.schema
        following = next_integers(self.model.network, rows, self._numbers, self._others)
        pack = self.model.network.action_quant.pack
        answers = []
        for b, (robot, encoded) in enumerate(zip(chosen, read, strict=True)):
            action, chunk = rows["action"][b].copy(), rows["chunk"][b].copy()
            self._last[robot] = tuple(action.tolist())
            answers.append(
                {
                    "action": action,
                    "chunk": chunk,
                    "packed": pack(torch.from_numpy(chunk)),
                    "predicted": schema.decode(following[b]),
                    "reward": float(rows["expected"][b]),
                    "proceed": float(rows["continues"][b]),
                    "fingerprint": schema.fingerprint_q(encoded.q, encoded.instruction),
                    "issues": encoded.issues,
                }
            )
        return answers
