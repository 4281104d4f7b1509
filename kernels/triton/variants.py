"""Which form of a kernel a compute capability gets: one table, kernels/tuned/gemv.json."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from wmrt.core.errors import UnsupportedError, UsageError

#: First compute capability with programmatic dependent launch.
DEPENDENT_FROM = 90
TABLE = Path(__file__).parents[1] / "tuned/gemv.json"
#: Changes the table's entry for a process: ``dependent=0,ahead_kib=0`` is the control arm.
ASKED = "WMRT_GPU_VARIANT"
#: Most KiB that are asked ahead: the largest second-level cache there is, 126 MiB of a B200. What
#: is asked beyond it drives out what was asked before.
MOST_AHEAD_KIB = 126 * 1024
#: Forms of `wmrt.kernels.triton.decode`.
FORMS = ("plain", "prmt", "cvt")
_varied: ContextVar[tuple[tuple[str, Any], ...]] = ContextVar("varied", default=())


@dataclass(frozen=True)
class Variant:
    """What one compute capability gets.

    Attributes:
        int8, bf16: the form of `wmrt.kernels.triton.decode` for activations of this kind.
        two_rows_from: rows of a weight from which every lane takes two at batch 1. Fewer would
            leave processors without work.
        dependent: whether the launches of a step may begin before the one before them has ended
            (programmatic dependent launch, from sm_90 on): they ask for their first weights, then
            wait for it.
        ahead_kib: KiB of the weights of the next launch that one asks into the second-level cache
            when it has read its own, so that memory is read while nobody waits for it; 0: none, at
            most `MOST_AHEAD_KIB`.
    """

    int8: str
    bf16: str
    two_rows_from: int
    dependent: bool = False
    ahead_kib: int = 0


def variant(capability: int) -> Variant:
    """The table's entry, with what `WMRT_GPU_VARIANT` and `varied` change.

    Raises:
        UnsupportedError: no such entry, which lists what there is, or dependent launches where
            there are none.
        UsageError: `WMRT_GPU_VARIANT` is not understood, or asks for more than `MOST_AHEAD_KIB`.
    """
    return _variant(capability, os.environ.get(ASKED, ""), _varied.get())


@contextmanager
def varied(**changes: Any) -> Iterator[None]:
    """Inside, every variant has these fields: for comparing arms within one process. What was
    captured before keeps what it had.

    Raises:
        UsageError: no field of `Variant`, or a value that is not of its type.
    """
    for name, value in changes.items():
        kind = _KINDS.get(name)
        if type(value) is not kind or (kind is str and value not in FORMS):
            allowed = ", ".join(f"{n}: {k.__name__}" for n, k in _KINDS.items())
            forms = f"the forms are {', '.join(FORMS)}"
            raise UsageError(f"varied({name}={value!r}): a variant has {allowed}; {forms}")
    token = _varied.set((*_varied.get(), *changes.items()))
    try:
        yield
    finally:
        _varied.reset(token)


#: Fields of a variant and their types.
_KINDS = get_type_hints(Variant)


@functools.cache
def _variant(capability: int, asked: str, changes: tuple[tuple[str, Any], ...]) -> Variant:
    table = json.loads(TABLE.read_text("utf-8"))
    if str(capability) not in table:
        raise UnsupportedError(
            f"no kernels are chosen for compute capability {capability}; there are: "
            f"{', '.join(table)}; add a line to {TABLE.name}"
        )
    found = replace(Variant(**table[str(capability)]), **{**_read(asked), **dict(changes)})
    if found.dependent and capability < DEPENDENT_FROM:
        raise UnsupportedError(
            f"dependent launches are asked for on compute capability {capability}; there are such "
            f"from {DEPENDENT_FROM} on: set dependent to false in {TABLE.name}, {ASKED} or varied"
        )
    if not 0 <= found.ahead_kib <= MOST_AHEAD_KIB:
        raise UsageError(
            f"ahead_kib={found.ahead_kib}: 0 to {MOST_AHEAD_KIB} KiB can be asked ahead, what the "
            f"largest second-level cache holds; set it in {TABLE.name}, {ASKED} or varied"
        )
    return found


def _read(asked: str) -> Mapping[str, Any]:
    """``name=value,..`` by the types of `Variant`; whole numbers, also for true and false."""
    kinds = {name: kind for name, kind in _KINDS.items() if kind in (bool, int)}
    found: dict[str, Any] = {}
    for part in filter(None, asked.split(",")):
        name, _, value = part.strip().partition("=")
        if name not in kinds or not value.isdecimal() or (kinds[name] is bool and int(value) > 1):
            raise UsageError(
                f"{ASKED}={asked!r}: {part.strip()!r} is not understood; give "
                f"{', '.join(f'{n}=<number>' for n in kinds)} with commas between, 0 or 1 for "
                "dependent"
            )
        found[name] = kinds[name](int(value))
    return found
