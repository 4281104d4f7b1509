"""What `tools/aot_check.py` compiles without a GPU: one case per kernel variant.

A module of kernels offers ``aot_cases() -> list[AotCase]`` and is named in `MODULES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wmrt.core.errors import UsageError
from wmrt.kernels.triton.arrays import Array
from wmrt.kernels.triton.formulas import ANY, BATCH, Grid
from wmrt.kernels.triton.formulas import names as names_of

#: Compute capabilities of the devices that latency figures are given for: Jetson AGX Orin (87),
#: RTX 4090 (89), H200 (90), Jetson AGX Thor (110), RTX 5090 (120).
TARGETS = (87, 89, 90, 110, 120)
#: Modules of this package that have cases.
MODULES: tuple[str, ...] = (
    "action_decode",
    "action_quant",
    "activations",
    "consequences",
    "dense",
    "gemv",
    "gemv_residual",
    "norm",
    "norm_gate_up",
    "norm_qkv_rope_store",
    "normed",
    "state_fusion",
    "transition_attention",
    "transition_select",
)


@dataclass(frozen=True)
class AotCase:
    """One kernel with everything a compilation needs, and what its machine code must show.

    Weights are loaded with ``eviction_policy="evict_first"`` and nothing else is: that is how
    their loads are told apart from those of activations in the machine code.

    Attributes:
        name: unique, such as ``gemv_nvfp4.prmt.rows1``; the key of its limits and results.
        kernel: the function that `triton.jit` or `gluon.jit` returned.
        signature: type of every argument that is no constexpr, as triton writes it (``*i32``,
            ``fp32``).
        constants: value of every constexpr argument.
        grid: programs of a launch, the one that `launch` sites take; over arguments, constants and
            `BATCH`. A case without cannot be exported.
        arrays: what the pointers point to, over the same names and `ANY`.
        scalars: whole numbers that the case's sizes give to arguments; others would do as well.
        warps: warps of a program.
        aligned: arguments known to be multiples of 16; None for every pointer.
        targets: compute capabilities it is meant for.
        weights_per_program: weights a program reads in all; 0 for a kernel that reads none.
        weight_bits: bits of one weight in memory, without scales.
        instructions: beginnings of machine instructions of which each must occur, such as
            ``IDP.4A``.
        early: arguments that a dependent launch may read before it waits: weights, which no launch
            writes.
        options: more options of the compiler, such as ``{"maxnreg": 128}``.
        slow: takes so long to compile that `make test` leaves it to `make test-full`.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    warps: int = 4
    grid: Grid | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict)
    scalars: Mapping[str, int] = field(default_factory=dict)
    aligned: tuple[str, ...] | None = None
    targets: tuple[int, ...] = TARGETS
    weights_per_program: int = 0
    weight_bits: int = 4
    instructions: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    slow: bool = False

    @property
    def op(self) -> str:
        """The part of the name that variants share: ``gemv_nvfp4``."""
        return self.name.split(".")[0]

    def __post_init__(self) -> None:
        names = list(self.kernel.arg_names)
        given = [*self.signature, *self.constants]
        if sorted(names) != sorted(given):
            raise UsageError(f"{self.name}: signature and constants give {given}, not {names}")
        unknown = {*(self.aligned or ()), *self.early, *self.scalars} - set(self.signature)
        if unknown:
            raise UsageError(f"{self.name}: {sorted(unknown)} are no arguments of its signature")
        axes = [axis for array in self.arrays.values() for axis in array.shape]
        axes += self.grid.axes if self.grid else ()
        unknown = {name for axis in axes for name in names_of(axis)} - {*given, BATCH, ANY}
        if unknown:
            raise UsageError(f"{self.name}: {sorted(unknown)} in a formula are none of its names")


def named(found: Sequence[AotCase], name: str) -> AotCase:
    """The case of this name; KeyError if there is none."""
    return {case.name: case for case in found}[name]


def cases() -> list[AotCase]:
    """Every case of every module, by name. Imports triton.

    Raises:
        UsageError: two cases of one name.
    """
    found: dict[str, AotCase] = {}
    for module in MODULES:
        for case in importlib.import_module(f"wmrt.kernels.triton.{module}").aot_cases():
            if case.name in found:
                raise UsageError(f"{module}: {case.name} is there twice; names are unique")
            found[case.name] = case
    return [found[name] for name in sorted(found)]
