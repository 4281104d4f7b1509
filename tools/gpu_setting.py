"""What `tools/gpu_sections.py` measures, and how: a setting, networks, captured steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wmrt.core import machine
from wmrt.kernels.triton.variants import varied
from wmrt.model.checkpoint import Checkpoint, load_checkpoint
from wmrt.model.config import preset
from wmrt.model.network import Network
from wmrt.quant import get_recipe
from wmrt.runtime.bench.gpu_arms import STATES, GpuArm, Runner, encoded
from wmrt.runtime.bench.gpu_network import kernels, random_network, read_bytes, step_of
from wmrt.runtime.bench.rounds import Effort
from wmrt.runtime.cuda_graph import CudaGraphExecutor
from wmrt.runtime.graph_backend import GraphBackend
from wmrt.runtime.static_step import CapturableStep


@dataclass(frozen=True)
class Setting:
    """What is measured where.

    Args:
        step: the step on static buffers that is captured, of a network.
        backend: what captures steps on such buffers; None: torch on their device.
        compile: torch's, or a stand-in for it.
        buffer: bytes of a buffer of the copy that gives the floor.
        rate_hz, deadline_ms, paced: of the jitter run, in steps.
        effort: of the other runs. flat: steps of each part of the memory run.
        workers: processes that run tests.
        compared: steps that are compared with others, bit for bit.
        robots, grouped: of a group, and steps of each number of them that are timed.
        captures, ops: of a group, what captures its steps and where its operators are.
    """

    preset: str = "1.3b"
    device: str = "cuda"
    step: Callable[[Network], CapturableStep] = step_of
    backend: Callable[[Mapping[str, Tensor]], GraphBackend | None] = lambda buffers: None
    compile: Callable[..., Callable[[], None]] = torch.compile
    buffer: int = 2**30
    rate_hz: int = 500
    deadline_ms: float = 1.0
    paced: int = 10_000
    effort: Effort = field(default_factory=lambda: Effort(rounds=8, seconds=4.0))
    flat: int = 4_000
    workers: int = field(default_factory=lambda: max(1, min(12, machine.usable_cpus() - 1)))
    compared: int = 100
    robots: int = 16
    grouped: int = 500
    captures: Callable[[Mapping[str, Tensor]], GraphBackend] | None = None
    ops: Any = None

    @property
    def place(self) -> torch.device:
        return torch.device(self.device)


class Short(Exception):
    """A section found less than it looked for; what it found is written."""


@dataclass
class Built:
    """A step of a recipe, captured, and its network."""

    network: Network
    step: CapturableStep
    executor: CudaGraphExecutor


def like() -> Checkpoint:
    """Whose states and actions the networks take."""
    return load_checkpoint("highway")


def network_of(setting: Setting, recipe: str) -> Network:
    source = like()
    sizes, chosen = preset(setting.preset), get_recipe(recipe)
    return random_network(source.schema, sizes, source.actions, chosen, setting.place)


@contextlib.contextmanager
def captured(setting: Setting, recipe: str, **way: Any) -> Iterator[Built]:
    """A step as one graph; raises where that cannot be had. `way`: fields of the kernels' variant
    that are to be other than the device's."""
    network = network_of(setting, recipe)
    step = setting.step(network)
    buffers = step.buffers
    executor = CudaGraphExecutor(step.run, buffers, graph="on", backend=setting.backend(buffers))
    with executor:
        with varied(**way):
            executor.prepare()
        yield Built(network, step, executor)


def arm_of(setting: Setting, built: Built, recipe: str, name: str, runner: Runner) -> GpuArm:
    network, pinned = built.network, setting.place.type == "cuda"
    given = encoded(network.schema, built.step.inputs, STATES, pinned)
    return GpuArm(name, recipe, built.step, runner, given, read_bytes(network), kernels(network))
