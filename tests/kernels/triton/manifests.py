"""A program that launches from a manifest alone, as one without wmrt's Python would: in the
interpreter in place of a GPU. And what a manifest says, against launches that were recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from wmrt.kernels.triton.aot_cases import AotCase, cases
from wmrt.kernels.triton.cubins import launch_of
from wmrt.kernels.triton.recorded import Launch

TYPES = {
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
}


def read(value: Any) -> Any:
    """As a program reads it from the file."""
    return json.loads(json.dumps(value))


def evaluated(formula: Any, values: Mapping[str, Any]) -> int:
    """The few lines that a C program needs."""
    if isinstance(formula, str):
        return int(values[formula])
    if isinstance(formula, int):
        return formula
    operation, first, second = formula
    a, b = evaluated(first, values), evaluated(second, values)
    return {"add": a + b, "mul": a * b, "ceil_div": (a + b - 1) // b}[operation]


def grid_of(entry: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(evaluated(axis, values) for axis in entry["grid"])


def constants_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of JSON are tuples."""
    return {n: tuple(v) if isinstance(v, list) else v for n, v in entry["constants"].items()}


def kernel_launched(
    kernel: Any, entry: Mapping[str, Any], grid: tuple[int, ...], given: Mapping[str, Any]
) -> None:
    """What cuLaunchKernelEx does, for a kernel of a manifest and its arguments by name."""
    own = {name: given[name] for name, _ in entry["arguments"][:-2]}
    kernel[grid](**own, **constants_of(entry), num_warps=entry["threads"] // 32)


class Memory:
    """The buffers of a step, as bytes."""

    def __init__(self, step: Mapping[str, Any]) -> None:
        self.blocks = {
            b["name"]: torch.zeros(b["bytes"], dtype=torch.uint8) for b in step["buffers"]
        }
        self.tensors = {
            t["name"]: self.at(b["name"], t["offset"], t["type"]).as_strided(
                t["shape"], t["strides"]
            )
            for b in step["buffers"]
            for t in b["tensors"]
        }

    def at(self, buffer: str, offset: int, kind: str) -> Tensor:
        """A pointer: everything from there to the end of the memory."""
        dtype = TYPES[kind.removeprefix("*")]
        whole = self.blocks[buffer][offset:]
        return whole[: len(whole) // dtype.itemsize * dtype.itemsize].view(dtype)


def step_launched(
    step: Mapping[str, Any],
    entries: Mapping[str, Mapping[str, Any]],
    kernels: Mapping[str, Any],
    memory: Memory,
    stored: Mapping[str, float],
) -> None:
    """One step: its actions in order. `kernels` by case are what binaries are to a real program,
    `stored` the numbers that a checkpoint has."""
    for action in step["actions"]:
        if "add" in action:
            memory.at(*action["add"], action["type"])[: action["count"]] += action["number"]
            continue
        entry = entries[action["kernel"]]
        kinds = dict(entry["arguments"])
        given = {
            name: memory.at(*value, kinds[name])
            if isinstance(value, list)
            else stored[value]
            if isinstance(value, str)
            else value
            for name, value in action["arguments"].items()
        }
        kernel_launched(kernels[action["kernel"]], entry, tuple(action["grid"]), given)


def numel(shape: list[Any], values: Mapping[str, Any]) -> int:
    return math.prod(evaluated(axis, values) for axis in shape)


def check(launch: Launch, case: AotCase, robots: int) -> None:
    """What the manifest says of a kernel, against a launch of it that an operator did."""
    entry = read(launch_of(replace(case, constants=launch.constants, signature=launch.signature())))
    numbers = {n: v for n, v in launch.arguments.items() if not isinstance(v, torch.Tensor)}
    values = {**launch.constants, **numbers, "batch": robots}
    assert grid_of(entry, values) == launch.grid
    assert [name for name, _ in entry["arguments"][:-2]] == list(launch.arguments)
    for name, array in entry["arrays"].items():
        tensor = launch.arguments[name]
        followed = launch.constants.get(name.upper(), True)  # NORM and BIAS of `dense`
        if array["role"] == "unused" or name.startswith("next_") or not followed:
            continue
        shape = [tensor.shape[0] if axis == "any" else axis for axis in array["shape"]]
        if array["role"] == "scratch" or name == "work":  # several operators share it
            assert numel(shape, values) <= tensor.numel(), name
        else:
            whole = tensor.shape[0] * tensor.stride(0) if tensor.dim() > 1 else tensor.numel()
            assert numel(shape, values) in (tensor.numel(), whole), name


def of_kernel(launch: Launch) -> list[AotCase]:
    return [case for case in cases() if case.kernel is launch.kernel]


def nearest(launch: Launch) -> AotCase:
    """The one whose constants are zero or false where the launch's are, which decides what pointers
    are followed, and of those the one with most of them."""

    def shared(case: AotCase) -> tuple[int, int]:
        names = launch.constants.keys() - {"DEPENDENT", "NEXT"}
        pairs = [(case.constants[name], launch.constants[name]) for name in names]
        return sum(bool(a) == bool(b) for a, b in pairs), sum(a == b for a, b in pairs)

    return max(of_kernel(launch), key=shared)
