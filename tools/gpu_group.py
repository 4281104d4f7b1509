"""Robots of a group on a GPU: any of them in a step, against each alone; and what a row costs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tools.gpu_setting import Setting, Short, network_of
from wmrt.core.measure import percentile
from wmrt.kernels.triton.variants import varied
from wmrt.model.encoded import Encoded
from wmrt.model.network import Network
from wmrt.runtime.bench.gpu_network import kernels
from wmrt.runtime.choice import Choice
from wmrt.runtime.group_step import first, write
from wmrt.runtime.probe import random_states
from wmrt.runtime.triton_group import TritonGroup
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_state import TritonState

#: Launches that follow one another, and ask for nothing but their own weights.
PLAIN = {"dependent": False, "ahead_kib": 0}
#: Steps before those that are timed.
_WARM = 20


def group(setting: Setting, say: Callable[[str, Any], None]) -> None:
    """A group's steps captured for every number of rows it has. Random ones of its robots stepped
    in random order, each against an eager step of its own, bit for bit; then the time of a step by
    robots. Compiles the kernels of every number of rows, which takes minutes the first time."""
    network = network_of(setting, "nvfp4")
    model = TritonModel(network)
    begin = time.monotonic()
    options = {"graph": "on", "backend": setting.captures, "ops": setting.ops}
    steps = TritonGroup(network, model, setting.robots, **options)
    say("seconds_to_capture", round(time.monotonic() - begin, 1))
    own = [Choice(network.action_head.centers) for _ in range(setting.robots)]
    read = [network.schema.encode(s, strict=False) for s in random_states(network.schema, 100)]
    different = _different(setting, network, model, steps, read, own)
    say("compared", {"steps": setting.compared, "different": different})
    say("step_ms", {str(count): _times(setting, steps, count, read, own) for count in steps.rows})
    say("report", steps.report(kernels(network)).to_json())
    if different:
        raise Short(f"robots differ from what each is alone: {', '.join(different)}")


def _different(
    setting: Setting,
    network: Network,
    model: TritonModel,
    steps: TritonGroup,
    read: Sequence[Encoded],
    own: Sequence[Choice],
) -> list[str]:
    """Results and memories of which a robot's ever differed in a bit from its own alone."""
    alone = [TritonState(network, model, ops=setting.ops) for _ in own]
    draw, found = random.Random(0), set[str]()
    for _ in range(setting.compared):
        chosen = draw.sample(range(len(own)), draw.randint(1, len(own)))
        states = draw.choices(read, k=len(chosen))
        before = [[draw.uniform(-1, 1) for _ in network.actions.names] for _ in chosen]
        got = steps.step(chosen, states, before, own)
        for b, robot in enumerate(chosen):
            write(alone[robot].rows, states[b : b + 1], before[b : b + 1])
            with torch.inference_mode(), varied(**PLAIN):
                alone[robot].run()
            if setting.place.type == "cuda":
                torch.cuda.synchronize(setting.place)
            want = first(alone[robot].rows, 1)
            found |= {name for name in want if not np.array_equal(got[name][b], want[name][0])}
    for robot, state in enumerate(alone):
        for name, tensor in state.ring.tensors().items():
            mine = steps.ring.tensors()[name].narrow(1 if tensor.dim() == 5 else 0, robot, 1)
            found |= set() if torch.equal(mine, tensor) else {f"ring {name}"}
    return sorted(found)


def _times(
    setting: Setting,
    steps: TritonGroup,
    count: int,
    read: Sequence[Encoded],
    own: Sequence[Choice],
) -> dict[str, float]:
    """Milliseconds of steps of the first robots, their inputs written and results read."""
    before = [(0.0,) * len(steps.network.actions)] * count
    found = []
    for at in range(setting.grouped + _WARM):
        states = [read[(at + b) % len(read)] for b in range(count)]
        begin = time.perf_counter_ns()
        steps.step(range(count), states, before, own)
        found.append((time.perf_counter_ns() - begin) / 1e6)
    ordered = sorted(found[_WARM:])
    return {f"p{q}": round(percentile(ordered, q), 4) for q in (50, 99)}
