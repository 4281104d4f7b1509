"""The repaired interpreter against numpy and ml_dtypes; and that without each repair it is wrong,
so that a fault mended upstream shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from tests.kernels.triton.probes import constant, from_libdevice, sum_of
from tests.kernels.triton.repair_checks import BF16, CHECKS
from wmrt.core.errors import UsageError
from wmrt.kernels.triton import library
from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.repairs import REPAIRS


def test_every_repair_has_its_check() -> None:
    assert list(CHECKS) == list(REPAIRS)


@pytest.mark.parametrize("name", REPAIRS)
def test_repaired(name: str, seed: int) -> None:
    with repaired():
        CHECKS[name](np.random.default_rng(seed))


@pytest.mark.parametrize("name", REPAIRS)
def test_without_its_repair_the_interpreter_is_wrong(name: str, seed: int) -> None:
    """Where this fails the fault is mended upstream: set `last` of the repair."""
    last = REPAIRS[name].last
    generator = np.random.default_rng(seed)
    with repaired(without=[name]):
        if last is not None and library.triton_version() > last:
            CHECKS[name](generator)
        else:
            with pytest.raises((AssertionError, InterpreterError)):
                CHECKS[name](generator)


def test_what_is_not_emulated_is_named() -> None:
    x, z = torch.zeros(16), torch.empty(16)
    with repaired(), pytest.raises(InterpreterError, match=r"__nv_cbrtf is not emulated.*rintf"):
        from_libdevice[(1,)](x, z, OP="cbrt", N=16)


def test_a_sum_in_bf16_is_refused() -> None:
    x, z = torch.ones(16, dtype=BF16), torch.empty(2)
    with repaired(), pytest.raises(InterpreterError, match="cast to float32 first"):
        sum_of[(1,)](x, z, WIDEN=False, N=16)


def test_outside_nothing_is_changed() -> None:
    before = (triton.runtime.jit.JITFunction.run, tl.load, tl.core.load, tl.core.reduce, tl.sum)
    builder = triton.runtime.interpreter.interpreter_builder
    kind = type(builder)
    with repaired():
        assert type(builder) is not kind
        sum_of[(1,)](torch.ones(16), torch.empty(2), WIDEN=False, N=16)
    after = (triton.runtime.jit.JITFunction.run, tl.load, tl.core.load, tl.core.reduce, tl.sum)
    assert after == before and type(builder) is kind
    with pytest.raises(RuntimeError):  # a device function is for kernels alone
        sum_of()


def test_names_of_repairs_are_checked() -> None:
    with pytest.raises(UsageError, match=r"\['tf32'\]: no repairs; there are bf16_casts"):
        with repaired(without=["tf32"]):
            pass


def test_an_empty_grid_is_refused() -> None:
    with repaired(), pytest.raises(UsageError, match="holds no program"):
        constant[(0,)](torch.empty(16, dtype=BF16), N=16)
