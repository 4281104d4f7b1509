"""`WorldModel`: state in, next action and expected state out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from wmrt.core import memory
from wmrt.core.errors import UsageError
from wmrt.core.types import ActionSpec
from wmrt.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from wmrt.model.network import Network
from wmrt.model.schema import StateSchema
from wmrt.quant import Recipe
from wmrt.runtime.build import to_checkpoint
from wmrt.runtime.checks import check_action, check_plan, resolve_device
from wmrt.runtime.choice import check_options
from wmrt.runtime.enough import enough_memory, weight_bytes
from wmrt.runtime.executor import build, resolve
from wmrt.runtime.graph_states import check_graph
from wmrt.runtime.output import Output
from wmrt.runtime.report import RunReport, build_report
from wmrt.runtime.session import Session
from wmrt.runtime.sessions import session_of
from wmrt.runtime.snapshot import Origin, Snapshot, content_hash
from wmrt.runtime.step import Rollout, Step


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
        weights_sha256: str | None = None,
    ) -> None:
        self.network, self.recipe, self._report, self.session = network, recipe, report, session
        self.provenance = dict(provenance or {})
        self._weights_sha256 = weights_sha256
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
        executor: str = "auto",
        threads: int | None = None,
        cpus: Sequence[int] | None = None,
        pages: str = "auto",
        **session: Any,
    ) -> WorldModel:
        """Load a packaged name, a folder or a hub repository (``owner/name``).

        Args:
            recipe: ``bf16``, ``nvfp4``, ``mxfp4``, ``w4a8``, ...; None takes what is stored.
            device: torch device; a CUDA device that is not there is an `UnsupportedError`.
            graph: ``auto``, ``on`` (a CUDA Graph or an error) or ``off``.
            executor: ``native`` (one call of native code a step, on the CPU), ``triton`` (fused
                kernels on a CUDA device), ``eager`` (torch), or ``auto``: the one for the device
                where it can be had. `report` says what runs and why.
            threads: that step the model; None: every processor but one under the native executor,
                what torch is set to under the eager one, where a number is set for the process.
            cpus: processors that the native executor's threads are pinned to, one each. The first
                is the caller's, who is not moved (`os.sched_setaffinity` does). None: none is.
            pages: where the native executor's weights lie: ``mapped`` (read from the file's
                mapping), ``huge`` (copied to huge pages), or ``auto``: mapped where they are stored
                as they are read. `report` says which and why.
            session: seed, action_noise, sample, temperature; see `Session`.

        Raises:
            CheckpointError: anything about the files is not as recorded.
            UsageError, UnsupportedError: a request that is wrong, or cannot be had exactly.
            OutOfMemoryError: memory does not suffice; says how much would and how much there is.
        """
        with memory.told(f"loading {name_or_path}", lambda: weight_bytes(name_or_path, revision)):
            checkpoint = load_checkpoint(name_or_path, revision=revision, verify=verify)
        return cls.from_checkpoint(
            checkpoint,
            recipe=recipe,
            device=device,
            graph=graph,
            executor=executor,
            threads=threads,
            cpus=cpus,
            pages=pages,
            **session,
        )

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        recipe: str | Recipe | None = None,
        device: str = "cpu",
        graph: str = "auto",
        executor: str = "auto",
        threads: int | None = None,
        cpus: Sequence[int] | None = None,
        pages: str = "auto",
        **session: Any,
    ) -> WorldModel:
        """`from_pretrained` for a checkpoint that is already open."""
        check_options(session)
        target = resolve_device(device)
        check_graph(graph, target)
        with enough_memory(checkpoint):
            built, used = build(checkpoint, recipe, target, executor, threads, cpus, pages)
            network = built.network
            own = session_of(network, used, **session)
            resolved_graph = own.capture(graph)
        requested = {
            "recipe": recipe.name if isinstance(recipe, Recipe) else recipe,
            "device": device,
            "graph": graph,
            "executor": executor,
            "threads": threads,
            "cpus": None if cpus is None else list(cpus),
            "pages": pages,
        }
        resolved = {
            **resolve(built, used),
            "device": str(target),
            "graph": resolved_graph.used,
            "graph_reason": resolved_graph.reason,
        }
        report = build_report(network, requested, resolved, own.ring.nbytes, own.workspace_bytes)
        whose = (checkpoint.provenance, checkpoint.weights_sha256)
        return cls(network, built.recipe, report, own, *whose)

    @property
    def schema(self) -> StateSchema:
        return self.network.schema

    @property
    def actions(self) -> ActionSpec:
        return self.network.actions

    @property
    def weights_sha256(self) -> str:
        """64 hex digits: the tree hash of the weight file that was loaded, or, for a model that was
        built in memory, a hash over its tensors, computed when it is first asked for."""
        if self._weights_sha256 is None:
            self._weights_sha256 = content_hash(self.network)
        return self._weights_sha256

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
        before = self._before(previous_action)
        read = self.schema.encode(state, strict=strict)
        encoded = time.perf_counter_ns()
        out = self.session.step(read.codes, read.values, before)
        ran = time.perf_counter_ns()
        answer = self._decode(out)
        self._last_action = tuple(answer["action"].tolist())
        fingerprint = self.schema.fingerprint_q(read.q, read.instruction)
        end = time.perf_counter_ns()
        spans = {"encode": encoded - begin, "network": ran - encoded, "decode": end - ran}
        timing = {**spans, "total": end - begin}
        return Step(**answer, fingerprint=fingerprint, issues=read.issues, timing_ns=timing)

    def observe(self, state: Any, previous_action: Sequence[float] | NDArray[np.float32]) -> None:
        """Remember one control step without answering it: later steps are as if `step` had been
        called. What a channel does that votes every so many steps; arguments as `step`."""
        read = self.schema.encode(state)
        self.session.observe(read.codes, read.values, self._before(previous_action))

    def _before(
        self, previous_action: Sequence[float] | NDArray[np.float32] | None
    ) -> tuple[float, ...]:
        """The action sent in the last period; this model's own when nobody says."""
        if previous_action is None:
            return self._last_action
        return check_action(previous_action, self.actions)

    @torch.inference_mode()
    def _decode(self, out: Output) -> dict[str, Any]:
        """The part of a `Step` that is read off the network's output."""
        following, reward, proceed = self.session.consequences()
        chunk = out.chunk[0].cpu().clone()  # a step keeps what it was given
        return {
            "action": out.action[0].cpu().clone().numpy(),
            "chunk": chunk.numpy(),
            "packed": self.network.action_quant.pack(chunk),
            "predicted": self.schema.decode(following),
            "reward": reward,
            "proceed": proceed,
        }

    def imagine(self, actions: ArrayLike) -> Rollout:
        """What follows if ``actions`` are taken from the state of the last `step`.

        Args:
            actions: float32[T, A] for one sequence or float32[N, T, A] for N; in [-1, 1].

        The session itself is not advanced. Raises `UsageError` before the first step.
        """
        if self.session.output is None:
            raise UsageError("imagine needs a state to start from; call step first")
        return self.session.imagine(check_plan(actions, self.actions))

    def foresee(self, action: Sequence[float] | NDArray[np.float32]) -> dict[str, Any]:
        """The state to expect if ``action`` [A] in [-1, 1] is what is sent now, in the form of
        `Step.predicted`, which expects the model's own action. Nothing is advanced.

        Raises `UsageError` before the first step.
        """
        if self.session.output is None:
            raise UsageError("foresee needs a state to start from; call step first")
        sent = np.array(check_action(action, self.actions), np.float32)
        return self.schema.decode(self.session.foresee(sent))

    def reset(self) -> None:
        """Start a new episode: no past states, the neutral action before."""
        self.session.reset()
        self._last_action = tuple(self.schema.neutral)

    def fork(self) -> WorldModel:
        """Another robot on the same weights, with a copy of this one's memory so far."""
        other = self.session.fresh()
        whose = (self.provenance, self.weights_sha256)
        twin = WorldModel(self.network, self.recipe, self._report, other, *whose)
        twin.restore(self.snapshot())
        other.take(self.session)
        return twin

    def origin(self) -> Origin:
        """Whose a snapshot of this model is."""
        network, recipe = self.network.config.to_json(), self.recipe.to_json()
        return Origin(self.schema.hash, network, self.weights_sha256, recipe)

    def snapshot(self) -> Snapshot:
        """A copy of the session (ring, step counter, generator, last action) and whose it is."""
        return Snapshot(
            self.origin(),
            self.session.ring.clone().tensors(),
            self.session.generator.get_state(),
            self._last_action,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from ``snapshot``.

        Raises:
            UsageError: it was taken of other weights or under another recipe (or schema, or network
                shape), named in the message; nothing is changed then.
        """
        self.origin().require_same(snapshot.origin)
        with torch.inference_mode():
            for name, tensor in self.session.ring.tensors().items():
                tensor.copy_(snapshot.tensors[name])
        self.session.generator.set_state(snapshot.generator)
        self.session.output = None
        self._last_action = snapshot.last_action

    def save_pretrained(self, folder: str | Path, *, card: str) -> None:
        """Write a checkpoint of the weights as they run (packed if the recipe packs), in the layout
        they were loaded in."""
        save_checkpoint(
            folder, to_checkpoint(self.network, self.recipe, self.provenance), card=card
        )
