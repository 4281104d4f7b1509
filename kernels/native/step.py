"""The structures and functions of step.h for ctypes: a whole control step in one native call."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

from wmrt.core.errors import UnsupportedError
from wmrt.kernels.native.library import Matrix, library

#: WMRT_ROBOTS: robots in one step at most.
ROBOTS = 16
#: Selectors of step.h by their names in a model's configuration.
SELECTORS = {"learned": 0, "full": 1, "recent": 2}
#: Stages of a call (`wmrt_step_run`).
TRUNK, HEAD, PREDICT, DECODE = 1, 2, 4, 8
#: Matrices of a model in order, by what wmrt.model calls them; then, of each layer, `LAYER`.
ONCE = (
    "fusion.mlp.0", "fusion.mlp.2", "fusion.out", "fusion.gate", "fusion.action_in",
    "selector.lstm.input", "selector.lstm.hidden", "selector.query", "selector.key",
    "action_head.hidden", "action_head.out",
    "dynamics.body.0", "dynamics.body.2", "dynamics.change", "dynamics.missing",
    "dynamics.category", "dynamics.reward", "dynamics.proceed",
)  # fmt: skip
LAYER = ("qkv", "out", "gate_up", "down")

_SIZES = (
    "columns", "numbers", "categories", "actions", "d_model", "layers", "heads", "kv_heads",
    "head_dim", "ffn", "window", "past", "selector", "field_dim", "widest", "mlp_hidden", "embed",
    "field_rows", "table_rows", "table_groups", "knots", "action_embed", "lstm", "select_dim",
    "chunk", "action_bins", "head_hidden", "dyn_hidden", "state_bins", "reward_bins",
    "category_logits",
)  # fmt: skip
_CONSTANTS = (
    "norms", "field_table", "memory", "action_table", "row_offset", "cells", "buckets",
    "multipliers", "increments", "numeric_index", "category_sizes", "is_numeric", "field_knots",
    "embed_weight", "embed_bias", "age_bias", "action_centers", "state_centers", "reward_centers",
    "delta_scale", "delta_limit", "fill", "low", "high",
)  # fmt: skip
_RING = ("keys", "values", "select_keys", "hidden", "cell", "step")
#: Arrays that a caller reads or writes, in the order of step.h.
ARRAYS = (
    "codes", "values", "previous", "hidden", "logits", "chunk", "action", "change", "missing",
    "category", "reward", "proceed", "following", "category_code", "expected", "continues",
)  # fmt: skip
_INNER = (
    "fields", "fused", "embedded", "before", "gates", "intent", "embedding", "query", "key",
    "x", "normed", "y", "z", "qkv", "attended", "gate_up", "activated", "head", "joined", "dyn",
    "dyn2", "rewards", "cosines", "sines", "bias", "slots", "rows", "prepared0", "prepared1",
    "prepared2", "own",
)  # fmt: skip


class Model(ctypes.Structure):
    """``wmrt_model``. Addresses; whoever fills them in keeps the memory alive."""

    _fields_ = (
        *((name, c_int32) for name in _SIZES),
        ("reward_scale", c_float),
        ("matrix", POINTER(Matrix)),
        *((name, c_void_p) for name in _CONSTANTS),
    )


class RingAddresses(ctypes.Structure):
    """``wmrt_ring``."""

    _fields_ = tuple((name, c_void_p) for name in _RING)


class State(ctypes.Structure):
    """``wmrt_step_state``."""

    _fields_ = (
        ("model", POINTER(Model)),
        ("pool", c_void_p),
        ("ring", RingAddresses),
        ("isa", c_int32),
        ("threads", c_int32),
        ("capacity", c_int32),
        ("batch", c_int32),
        ("robot", c_int32 * ROBOTS),
        ("residual_scale", c_void_p),
        ("trace", c_void_p),
        ("calls", c_void_p),
        ("inputs", POINTER(c_void_p)),
        ("outputs", POINTER(c_void_p)),
        *((name, c_void_p) for name in ARRAYS),
        *((name, c_void_p) for name in _INNER),
        ("own_bytes", c_int64),
    )


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "wmrt_step_bytes": (c_size_t, (POINTER(Model), c_int, c_int)),
    "wmrt_step_init": (c_int, (POINTER(State), c_void_p)),
    "wmrt_step_run": (c_int, (POINTER(State), c_int)),
    "wmrt_step_sizeof": (c_size_t, (c_int,)),
    "wmrt_step_kernel": (c_char_p, (c_int, c_int, c_int)),
}


@functools.cache
def step_library() -> ctypes.CDLL:
    """The native library with the functions of step.h declared.

    Raises:
        UnsupportedError: as `library`, or its structures are not those of this file.
    """
    loaded = library()
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise UnsupportedError(
                f"the native library has no function {name}: it is of another version; install "
                "wmrt again (in a checkout: make setup)"
            ) from None
        function.restype, function.argtypes = result, arguments
    sizes = [loaded.wmrt_step_sizeof(which) for which in (0, 1)]
    if sizes != [ctypes.sizeof(Model), ctypes.sizeof(State)]:
        raise UnsupportedError(
            f"the native library's structures take {sizes} bytes, not "
            f"{[ctypes.sizeof(Model), ctypes.sizeof(State)]}: it is of another version; install "
            "wmrt again (in a checkout: make setup)"
        )
    return loaded


def kernel_isa(isa: int, format: int, activation: int) -> str | None:
    """Name of the instruction set whose kernel multiplies such a matrix; None: there is none."""
    name = step_library().wmrt_step_kernel(isa, format, activation)
    return None if name is None else name.decode("ascii")
