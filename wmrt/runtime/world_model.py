"""`WorldModel`: state in, next action and expected state out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from wmrt.core.errors import UsageError
from wmrt.core.types import ActionSpec
from wmrt.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from wmrt.model.network import Network
from wmrt.model.schema import StateSchema
from wmrt.quant import Recipe
from wmrt.runtime.build import build_network, to_checkpoint
from wmrt.runtime.checks import check_action, check_plan, resolve_device
from wmrt.runtime.imagination import next_q, roll
from wmrt.runtime.report import RunReport, build_report
from wmrt.runtime.session import Output, Session, resolve_graph
from wmrt.runtime.step import Rollout, Step


@dataclass(frozen=True)
class Snapshot:
    """Everything that makes a session continue where it was; plain tensors and names."""

    schema_hash: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    generator: Tensor
    last_action: tuple[float, ...]


class WorldModel:
    """A trained world model with one robot's memory. Not thread-safe; `fork` makes another robot.

    Build it with `from_pretrained`. `step` is one control step: encode, look back, act, predict.
    """

    def __init__(
        self,
        network: Network,
        recipe: Recipe,
        report: RunReport,
        session: Session,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        self.network, self.recipe, self._report, self.session = network, recipe, report, session
        self.provenance = dict(provenance or {})
        self._last_action: tuple[float, ...] = tuple(network.schema.neutral)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        revision: str | None = None,
        recipe: str | Recipe | None = None,
        device: str = "cpu",
        verify: Literal["cached", "always"] = "cached",
        graph: str = "auto",
        **session: Any,
    ) -> WorldModel:
        """Load a packaged name, a folder or a hub repository (``owner/name``).

        Args:
            recipe: ``bf16``, ``nvfp4``, ``mxfp4``, ``w4a8``, ...; None takes what is stored.
            device: torch device; a CUDA device that is not there is an `UnsupportedError`.
            graph: ``auto``, ``on`` (a CUDA Graph or an error) or ``off``.
            session: seed, action_noise, sample, temperature; see `Session`.

        Raises:
            CheckpointError: anything about the files is not as recorded.
            UsageError, UnsupportedError: a request that is wrong, or cannot be had exactly.
        """
        checkpoint = load_checkpoint(name_or_path, revision=revision, verify=verify)
        return cls.from_checkpoint(checkpoint, recipe=recipe, device=device, graph=graph, **session)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        recipe: str | Recipe | None = None,
        device: str = "cpu",
        graph: str = "auto",
        **session: Any,
    ) -> WorldModel:
        """`from_pretrained` for a checkpoint that is already open."""
        target = resolve_device(device)
        resolved_graph = resolve_graph(graph, target)
        built = build_network(checkpoint, recipe, target)
        own = Session(built.network, **session)
        requested = {
            "recipe": recipe.name if isinstance(recipe, Recipe) else recipe,
            "device": device,
            "graph": graph,
        }
        resolved = {
            "recipe": built.recipe.name,
            "weight_format": built.recipe.weight_format,
            "activation": built.recipe.activation,
            "layout": "canonical",
            "device": str(target),
            "executor": "eager",
            "graph": resolved_graph.used,
            "graph_reason": resolved_graph.reason,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        report = build_report(built.network, requested, resolved, own.ring.nbytes)
        return cls(built.network, built.recipe, report, own, checkpoint.provenance)

    @property
    def schema(self) -> StateSchema:
        return self.network.schema

    @property
    def actions(self) -> ActionSpec:
        return self.network.actions

    def report(self) -> RunReport:
        """What was requested, what runs, and the bytes it holds."""
        return self._report

    def step(
        self,
        state: Any,
        previous_action: Sequence[float] | NDArray[np.float32] | None = None,
        *,
        strict: bool = False,
    ) -> Step:
        """One control step.

        Args:
            state: mapping of field name to value; see the schema. With ``strict`` anything wrong
                with it raises `StateError`, else the field is read as unknown and reported.
            previous_action: the action actually sent in the last period, [A] in [-1, 1]; None means
                the one this model returned (the schema's neutral action at first).
        """
        begin = time.perf_counter_ns()
        before = self._last_action
        if previous_action is not None:
            before = check_action(previous_action, self.actions)
        read = self.schema.encode(state, strict=strict)
        encoded = time.perf_counter_ns()
        out = self.session.step(read.codes, read.values, before)
        ran = time.perf_counter_ns()
        answer = self._decode(out)
        self._last_action = tuple(answer["action"].tolist())
        fingerprint = self.schema.fingerprint_q(read.q, read.instruction)
        end = time.perf_counter_ns()
        timing = {
            "encode": encoded - begin,
            "network": ran - encoded,
            "decode": end - ran,
            "total": end - begin,
        }
        return Step(**answer, fingerprint=fingerprint, issues=read.issues, timing_ns=timing)

    @torch.inference_mode()
    def _decode(self, out: Output) -> dict[str, Any]:
        """The part of a `Step` that is read off the network's output."""
        network = self.network
        following = next_q(network, out.prediction, self.session.codes, self.session.values)
        return {
            "action": out.action[0].cpu().numpy(),
            "chunk": out.chunk[0].cpu().numpy(),
            "packed": network.action_quant.pack(out.chunk[0].cpu()),
            "predicted": self.schema.decode(following[0]),
            "reward": float(network.dynamics.decode_reward(out.prediction)[0]),
            "proceed": float(out.prediction.proceed[0].sigmoid()),
        }

    @torch.inference_mode()
    def imagine(self, actions: ArrayLike) -> Rollout:
        """What follows if ``actions`` are taken from the state of the last `step`.

        Args:
            actions: float32[T, A] for one sequence or float32[N, T, A] for N; in [-1, 1].

        The session itself is not advanced. Raises `UsageError` before the first step.
        """
        if self.session.output is None:
            raise UsageError("imagine needs a state to start from; call step first")
        plan = check_plan(actions, self.actions)
        mine, count = self.session, len(plan)
        generator = torch.Generator(device=mine.codes.device).manual_seed(mine.seed)
        return roll(
            self.network,
            mine.ring.repeat(count),
            self.session.output.hidden.repeat(count, 1),
            mine.codes.repeat(count, 1),
            mine.values.repeat(count, 1),
            plan.to(mine.codes.device),
            generator,
        )

    def reset(self) -> None:
        """Start a new episode: no past states, the neutral action before."""
        self.session.reset()
        self._last_action = tuple(self.schema.neutral)

    def fork(self) -> WorldModel:
        """Another robot on the same weights, with a copy of this one's memory so far."""
        mine = self.session
        other = Session(
            self.network,
            seed=mine.seed,
            action_noise=mine.action_noise,
            sample=mine.sample,
            temperature=mine.temperature,
        )
        twin = WorldModel(self.network, self.recipe, self._report, other, self.provenance)
        twin.restore(self.snapshot())
        with torch.inference_mode():
            other.codes.copy_(mine.codes)
            other.values.copy_(mine.values)
        other.output = mine.output
        return twin

    def snapshot(self) -> Snapshot:
        """A copy of the session: ring, step counter, generator, last action."""
        return Snapshot(
            self.schema.hash,
            self.network.config.to_json(),
            self.session.ring.clone().tensors(),
            self.session.generator.get_state(),
            self._last_action,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from ``snapshot``; one of another schema or network shape is a `UsageError`."""
        if (snapshot.schema_hash, snapshot.config) != (
            self.schema.hash,
            self.network.config.to_json(),
        ):
            raise UsageError(
                "the snapshot belongs to another model: its schema or network shape differs"
            )
        with torch.inference_mode():
            for name, tensor in self.session.ring.tensors().items():
                tensor.copy_(snapshot.tensors[name])
        self.session.generator.set_state(snapshot.generator)
        self.session.output = None
        self._last_action = snapshot.last_action

    def save_pretrained(self, folder: str | Path, *, card: str) -> None:
        """Write a checkpoint of the weights as they run (packed if the recipe packs)."""
        save_checkpoint(
            folder, to_checkpoint(self.network, self.recipe, self.provenance), card=card
        )
