"""A session: one robot's ring of past states and the static buffers a step reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.model.network import Network, Ring
from wmrt.runtime.choice import Choice, check_options
from wmrt.runtime.cuda_graph import CudaGraphExecutor
from wmrt.runtime.graph_backend import GraphBackend
from wmrt.runtime.graph_states import ResolvedGraph, check_graph, no_graph
from wmrt.runtime.imagination import next_q, roll
from wmrt.runtime.output import Output
from wmrt.runtime.static_step import StaticStep
from wmrt.runtime.step import Rollout


class Session:
    """Steps ``network`` for one robot. Every buffer is allocated here; a step copies into them.

    Args:
        network: in eval mode, packed or not; shared between sessions.
        seed: of a generator of its own (sampling, exploration, random selector); 0.
        action_noise: standard deviation of exploration noise on the action, 0 for none.
        sample, temperature: sample the action bins instead of decoding the mode; False, 1.
    """

    def __init__(self, network: Network, **options: Any) -> None:
        check_options(options)
        self.network, self.options = network, options
        self.choice = Choice(network.action_head.centers, **options)
        self.ring: Ring
        self.codes: Tensor
        self.values: Tensor
        self.previous: Tensor
        self._mode = "off"
        self._graph: CudaGraphExecutor | None = None
        with torch.inference_mode():
            self._allocate()
        self.output: Output | None = None

    def _allocate(self) -> None:
        self._eager = StaticStep(self.network, choice=self.choice)
        self.ring = self._eager.ring
        inputs = self._eager.inputs
        self.codes, self.values = inputs["codes"], inputs["values"]
        self.previous = inputs["previous"]

    @property
    def workspace_bytes(self) -> int:
        """Bytes that steps write besides the ring, where they are known; torch's are not."""
        return 0

    @property
    def seed(self) -> int:
        """What `reset` starts the generator from."""
        return self.choice.seed

    @property
    def generator(self) -> torch.Generator:
        """Of this session alone: sampling, exploration, the random selector."""
        return self.choice.generator

    def fresh(self) -> Session:
        """Another session on the same network with the same settings."""
        other = Session(self.network, **self.options)
        other.capture(self._mode)
        return other

    def capture(self, graph: str, backend: GraphBackend | None = None) -> ResolvedGraph:
        """Make every further step a CUDA Graph as ``graph`` (auto, on, off) says, and tell what
        came of it. `backend` captures in place of torch on the session's device.

        Raises:
            UnsupportedError: ``on``, and it cannot be had; the message says why.
            DeviceError, OutOfMemoryError: the device failed, or had no memory left.
        """
        self._mode = graph
        if graph == "off":
            return ResolvedGraph(False, "switched off")
        if backend is None and self.codes.device.type != "cuda":
            check_graph(graph, self.codes.device)
            return ResolvedGraph(False, no_graph(self.codes.device))
        step = self._eager
        executor = CudaGraphExecutor(
            step.run, step.buffers, graph=graph, backend=backend, generators=(self.generator,)
        )
        resolved = executor.prepare()
        if resolved.used:
            self._graph = executor
        return resolved

    @torch.inference_mode()
    def reset(self) -> None:
        """Forget every past state; the generator starts again from the seed."""
        self.ring.reset()
        self.output = None
        self.generator.manual_seed(self.seed)

    @torch.inference_mode()
    def step(
        self,
        codes: NDArray[np.int32],
        values: NDArray[np.float32],
        previous: Sequence[float] | NDArray[np.float32],
    ) -> Output:
        """One step from encoded state [F], [F] and the action sent before [A]."""
        self.codes[0].copy_(torch.from_numpy(codes))
        self.values[0].copy_(torch.from_numpy(values))
        self.previous[0].copy_(torch.from_numpy(np.asarray(previous, np.float32)))
        if self._graph is None:
            out = self._eager.compute()
        else:
            self._graph.replay()
            out = self._eager.outputs
        self.output = out
        return out

    def observe(
        self, codes: NDArray[np.int32], values: NDArray[np.float32], previous: Sequence[float]
    ) -> None:
        """A step whose answer nobody reads."""
        self.step(codes, values, previous)

    @torch.inference_mode()
    def consequences(self) -> tuple[NDArray[np.int64], float, float]:
        """Of the last step: the next state's integers [F], reward, probability to continue."""
        assert self.output is not None  # the caller stepped
        prediction, dynamics = self.output.prediction, self.network.dynamics
        q = next_q(self.network, prediction, self.codes, self.values)[0]
        reward = float(dynamics.decode_reward(prediction)[0])
        return q, reward, float(prediction.proceed[0].sigmoid())

    @torch.inference_mode()
    def imagine(self, plan: Tensor) -> Rollout:
        """What follows plan float32[N, T, A] from the last step's state; advances nothing."""
        assert self.output is not None  # the caller checked
        count, device = len(plan), self.codes.device
        return roll(
            self.network,
            self.ring.repeat(count),
            self.output.hidden.repeat(count, 1),
            self.codes.repeat(count, 1),
            self.values.repeat(count, 1),
            plan.to(device),
            torch.Generator(device=device).manual_seed(self.seed),
        )

    def foresee(self, action: NDArray[np.float32]) -> NDArray[np.int64]:
        """The last step's `consequences` if ``action`` float32[A] is sent: integers [F]."""
        q: NDArray[np.int64] = self.imagine(torch.from_numpy(action)[None, None]).q[0, 0]
        return q

    def take(self, other: Session) -> None:
        """The last state and output of `other`, as copies."""
        with torch.inference_mode():
            self.codes.copy_(other.codes)
            self.values.copy_(other.values)
        self.output = None if other.output is None else other.output.clone()
