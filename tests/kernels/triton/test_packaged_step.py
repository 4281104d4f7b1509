"""A recorded step as data; that a program can launch from it alone is shown in
tests/runtime/test_step_launches.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.kernels.triton.test_recorded import scaled
from wmrt.core.errors import UsageError
from wmrt.kernels.triton.norm import rms_norm_to
from wmrt.kernels.triton.packaged_step import Add, Step, Stored
from wmrt.kernels.triton.recorded import recorded


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.fixture
def step() -> Step:
    """Two norms of one kernel and a third of another, which writes into the middle of a row."""
    x, joined, weight, count = meta(1, 256), meta(1, 288), meta(256), meta(1, dtype=torch.int64)
    actions: list[Any] = []
    with recorded(actions.append):
        rms_norm_to(x, weight, Stored("layers.0.eps"), x)
        rms_norm_to(x, weight, 1e-5, x)
        actions.append(Add(count, 1))
        rms_norm_to(x, weight, 1e-5, joined[:, 32:], dependent=True)
    tensors = {"x": x, "ring.count": count, "joined": joined, "hidden": joined[:, 32:]}
    return Step(
        name="step",
        capability=90,
        about={"robots": 1},
        actions=actions,
        tensors={**tensors, "layers.weight": weight},
        roles={"ring": "state", "layers": "weights"},
        host={"x": "in"},
    )


def test_kernels_once_launches_in_order_memories_by_name(step: Step) -> None:
    told = step.described()
    assert (told["name"], told["capability"], told["robots"]) == ("step", 90, 1)
    assert told["host"] == {"x": "in"}
    first, second, count, third = told["actions"]
    assert first["kernel"] == second["kernel"] == "step.rms_norm_kernel.0"
    assert third["kernel"] == "step.rms_norm_kernel.1" and third["grid"] == [1, 1, 1]
    assert [a["dependent"] for a in (first, second, third)] == [False, False, True]
    assert first["arguments"]["eps"] == "layers.0.eps" and second["arguments"]["eps"] == 1e-5
    assert third["arguments"]["out"] == ["joined", 128] and third["arguments"]["x"] == ["x", 0]
    assert count == {"add": ["ring.count", 0], "type": "i64", "count": 1, "number": 1}
    buffers = {buffer["name"]: buffer for buffer in told["buffers"]}
    assert list(buffers) == ["x", "ring.count", "joined", "layers.weight"]
    roles = {name: buffer["role"] for name, buffer in buffers.items()}
    assert list(roles.values()) == ["scratch", "state", "scratch", "weights"]
    assert buffers["joined"]["bytes"] == 288 * 4
    whole, part = buffers["joined"]["tensors"]
    assert whole["name"] == "joined" and whole["strides"] == [288, 1] and whole["type"] == "fp32"
    assert part["name"] == "hidden" and part["offset"] == 128 and part["shape"] == [1, 256]


def test_its_kernels_have_the_grids_of_their_modules(step: Step) -> None:
    one, two = step.cases()
    assert (one.name, two.name) == ("step.rms_norm_kernel.0", "step.rms_norm_kernel.1")
    assert one.grid is two.grid is not None and one.grid.folded({}) == ["batch", 1, 1]
    assert two.options == {"launch_pdl": True} and two.constants["DEPENDENT"]


def test_what_is_computed_from_a_stored_number_is_refused(step: Step) -> None:
    launches: list[Any] = []
    x, weight = step.tensors["x"], step.tensors["layers.weight"]
    with recorded(launches.append):
        rms_norm_to(x, weight, Stored("layers.0.eps") * 2, x)
    with pytest.raises(UsageError, match="computed from one of the checkpoint's"):
        replace(step, actions=launches).described()


def test_a_tensor_without_a_name_and_a_kernel_without_a_case(step: Step) -> None:
    named = {name: t for name, t in step.tensors.items() if name != "layers.weight"}
    with pytest.raises(UsageError, match=r"a launch takes \[256\] of torch.float32 with no name"):
        replace(step, tensors=named).described()
    launches: list[Any] = []
    with recorded(launches.append):
        scaled[(1,)](meta(16), meta(16), 1, 1, 0.5, N=16, num_warps=1)
    with pytest.raises(UsageError, match=r"'scaled'.* have no case"):
        replace(step, actions=launches).cases()
