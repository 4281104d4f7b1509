"""A session: one robot's ring of past states and the static buffers a step reads and writes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.core.errors import UsageError
from wmrt.model.heads import Prediction
from wmrt.model.network import Network, Ring
from wmrt.runtime.cuda_graph import CudaGraphExecutor
from wmrt.runtime.graph_backend import GraphBackend
from wmrt.runtime.graph_states import ResolvedGraph, check_graph, no_graph
from wmrt.runtime.imagination import next_q, roll
from wmrt.runtime.step import Rollout


@dataclass
class Output:
    """Results of one step on the network's device, batch 1."""

    hidden: Tensor
    logits: Tensor
    chunk: Tensor
    action: Tensor
    prediction: Prediction

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name."""
        own = {name: tensor for name, tensor in vars(self).items() if name != "prediction"}
        return {**own, **vars(self.prediction)}

    def clone(self) -> Output:
        """A copy in memory of its own."""
        own = {name: tensor.clone() for name, tensor in self.tensors().items()}
        parts = Prediction(**{name: own.pop(name) for name in vars(self.prediction)})
        return Output(**own, prediction=parts)

    def copy_(self, other: Output) -> None:
        """Write what `other` holds into these tensors."""
        theirs = other.tensors()
        for name, tensor in self.tensors().items():
            tensor.copy_(theirs[name])


#: Options of a session and their types.
_OPTIONS: dict[str, type] = {
    "seed": Integral,
    "action_noise": Real,
    "sample": bool,
    "temperature": Real,
}
_WORDS = {Integral: "a whole number", Real: "a number", bool: "True or False"}


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for an option that a session has not, or a value of another type."""
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise UsageError(
            f"unknown option {', '.join(unknown)}; a session has {', '.join(_OPTIONS)}"
        )
    for name, value in options.items():
        kind = _OPTIONS[name]
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise UsageError(f"{name}={value!r}: expected {_WORDS[kind]}")
    if not -(2**63) <= options.get("seed", 0) < 2**64:
        raise UsageError(f"seed={options['seed']}: a generator takes 64 bits")


class Choice:
    """How a robot picks its action: the chunk's first row, or drawn, or with exploration noise.

    Args: see `Session`.
    """

    def __init__(
        self,
        centers: Tensor,
        *,
        seed: int = 0,
        action_noise: float = 0.0,
        sample: bool = False,
        temperature: float = 1.0,
    ) -> None:
        if not temperature > 0:
            raise UsageError(f"temperature must be positive, got {temperature}")
        if temperature != 1.0 and not sample:
            raise UsageError("temperature applies only with sample=True")
        if not action_noise >= 0:
            raise UsageError(f"action_noise must not be negative, got {action_noise}")
        self._centers = centers
        self.seed, self.action_noise = seed, action_noise
        self.sample, self.temperature = sample, temperature
        self.generator = torch.Generator(device=centers.device).manual_seed(seed)

    @property
    def draws(self) -> bool:
        """Whether chance plays a part."""
        return self.sample or self.action_noise > 0

    def action(self, logits: Tensor, chunk: Tensor) -> Tensor:
        """float32[1, A] from logits [1, H, A, bins] and the decoded chunk [1, H, A]."""
        action = chunk[:, 0]
        if self.sample:
            probability = (logits[0, 0] / self.temperature).softmax(dim=-1)
            drawn = torch.multinomial(probability, 1, generator=self.generator).squeeze(-1)
            action = self._centers[drawn].unsqueeze(0)
        if self.action_noise > 0:
            noise = torch.randn(action.shape, generator=self.generator, device=action.device)
            action = (action + self.action_noise * noise).clamp(-1, 1)
        return action


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
        self._static: Output | None = None
        with torch.inference_mode():
            self._allocate()
        self.output: Output | None = None

    def _allocate(self) -> None:
        network, device = self.network, self.network.increments.device
        columns, actions = len(network.schema.columns), len(network.actions)
        self.ring = network.new_ring()
        self.codes = torch.zeros(1, columns, dtype=torch.int64, device=device)
        self.values = torch.zeros(1, columns, device=device)
        self.previous = torch.zeros(1, actions, device=device)

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
        return self._capture(graph, backend)

    def _capture(self, graph: str, backend: GraphBackend | None) -> ResolvedGraph:
        with torch.inference_mode():
            before = self.ring.clone()
            static = self._compute()
            for name, tensor in self.ring.tensors().items():
                tensor.copy_(before.tensors()[name])

        own = weakref.ref(self)  # a cycle would keep the graph until a collection finds it

        def run() -> None:
            session = own()
            assert session is not None  # it is what runs this
            static.copy_(session._compute())

        executor = CudaGraphExecutor(
            run,
            self.statics(static),
            graph=graph,
            backend=backend,
            generators=(self.generator,),
        )
        resolved = executor.prepare()
        if resolved.used:
            self._graph, self._static = executor, static
        return resolved

    def statics(self, output: Output) -> dict[str, Tensor]:
        """What a step reads that changes, and writes, by name."""
        inputs = {"codes": self.codes, "values": self.values, "previous": self.previous}
        ring = {f"ring {name}": tensor for name, tensor in self.ring.tensors().items()}
        return {**inputs, **ring, **output.tensors()}

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
        if self._graph is None or self._static is None:
            out = self._compute()
        else:
            self._graph.replay()
            out = self._static
        self.output = out
        return out

    def observe(
        self, codes: NDArray[np.int32], values: NDArray[np.float32], previous: Sequence[float]
    ) -> None:
        """A step whose answer nobody reads."""
        self.step(codes, values, previous)

    def _compute(self) -> Output:
        network = self.network
        hidden = network.step(self.codes, self.values, self.previous, self.ring, self.generator)
        logits = network.action_head(hidden)
        chunk = network.action_head.decode(logits)
        action = self.choice.action(logits, chunk)
        return Output(hidden, logits, chunk, action, network.predict(hidden, action))

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
