"""Kernels on the CPU: triton's interpreter, repaired, for tests.

``with repaired(): kernel[grid](...)`` runs kernels on CPU tensors, one program after another. It
needs neither ``TRITON_INTERPRET`` nor a certain order of imports: functions that were decorated
for compilation are interpreted inside, and compile as before outside.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.extra import cuda as cuda_language
from triton.language.extra import libdevice as libdevice_stubs
from triton.runtime import interpreter as upstream
from triton.runtime.jit import JITFunction

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton import library
from wmrt.kernels.triton.repairs import REPAIRS, sum_of


@contextmanager
def repaired(*, without: Collection[str] = ()) -> Iterator[None]:
    """Inside, every launch of a `triton.jit` function is interpreted, with the repairs.

    Not for several threads: it changes triton for the whole process while it lasts. Nothing can
    be compiled inside.

    Args:
        without: names of `REPAIRS` to leave out, to show what they repair.

    Raises:
        UsageError: a name that is no repair.
        UnsupportedError: a version of triton whose interpreter is not known.
    """
    library.triton_version()
    unknown = set(without) - set(REPAIRS)
    if unknown:
        raise UsageError(f"{sorted(unknown)}: no repairs; there are {', '.join(REPAIRS)}")
    chosen = [repair.builder for name, repair in REPAIRS.items() if name not in without]
    builder = type("RepairedBuilder", (*chosen, upstream.InterpreterBuilder), {})
    scope = upstream._LangPatchScope()
    scope.set_attr(upstream.interpreter_builder, "__class__", builder)
    language = _patch_language()
    try:
        if "bf16_arithmetic" not in without:
            scope.set_attr(upstream.ReduceOps, "sum", sum_of)
        if "libdevice" not in without:
            _patch_libdevice(scope)
        if "scaled_dot" not in without:
            _patch_scaled_dot(scope)
        _patch_launches(scope)
        yield
    finally:
        scope.restore()
        language.restore()


def _patch_language() -> Any:
    """triton.language as the interpreter needs it, in both modules that functions know it by.

    The interpreter does this at every call of a device function, which takes milliseconds, and
    does not undo all of it.
    """
    seen_by = types.FunctionType(_nothing.__code__, {"tl": tl, "core": tl.core})
    scope = upstream._patch_lang(seen_by)
    upstream._patch_builtin(cuda_language, upstream.interpreter_builder, scope)
    upstream._patch_builtin(cuda_language.libdevice, upstream.interpreter_builder, scope)
    return scope


def _nothing() -> None: ...


def _patch_libdevice(scope: Any) -> None:
    """Outside a compilation the functions of ``triton.language.extra.libdevice`` are empty and
    return None."""
    for name in dir(libdevice_stubs):
        real = getattr(cuda_language.libdevice, name, None)
        if not name.startswith("_") and callable(real):
            scope.set_attr(libdevice_stubs, name, real)


def _patch_scaled_dot(scope: Any) -> None:
    """Up to 3.7 it takes the names of formats as constexpr only, which the interpreter has not."""
    inner = tl.dot_scaled

    def dot_scaled(
        lhs: Any,
        lhs_scale: Any,
        lhs_form: Any,
        rhs: Any,
        rhs_scale: Any,
        rhs_form: Any,
        **more: Any,
    ) -> Any:
        left, right = tl.constexpr(lhs_form), tl.constexpr(rhs_form)
        return inner(lhs, lhs_scale, left, rhs, rhs_scale, right, **more)

    scope.set_attr(tl, "dot_scaled", dot_scaled)


def _patch_launches(scope: Any) -> None:
    """Launches and calls of compiled functions become interpreted ones."""
    for kind in (JITFunction, upstream.InterpretedFunction):
        scope.set_attr(kind, "run", _run)
        scope.set_attr(kind, "__call__", _call)


def _interpreted(function: Any) -> Any:
    """The body of a decorated function, rewritten for the interpreter."""
    if getattr(function, "is_gluon", lambda: False)():
        raise UnsupportedError(
            f"{function.fn.__name__} is a gluon kernel, and gluon has no interpreter; test the "
            "triton form of it here and the gluon form on a GPU"
        )
    if isinstance(function, upstream.InterpretedFunction):
        return function
    if function.fn not in _REWRITTEN:
        _REWRITTEN[function.fn] = upstream.InterpretedFunction(function.fn)
    return _REWRITTEN[function.fn]


_REWRITTEN: dict[Callable[..., Any], Any] = {}


def _run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """A launch. As on a GPU, overflow, division by zero and NaN pass without a warning."""
    if warmup:
        raise UnsupportedError("a kernel cannot be compiled ahead inside repaired()")
    kernel = _interpreted(function)
    body = kernel.rewrite()
    with np.errstate(all="ignore"):
        upstream.GridExecutor(body, kernel.arg_names, _checked(grid), [])(*args, **kwargs)


def _checked(grid: Any) -> Any:
    if isinstance(grid, tuple) and math.prod(grid) == 0:
        raise UsageError(f"grid {grid} holds no program")
    return grid


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A device function called by a kernel."""
    return _interpreted(function).rewrite()(*args, **kwargs)
