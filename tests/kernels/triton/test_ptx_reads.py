"""What is read above a wait: found in text made for it, and in a kernel that does it wrongly."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from wmrt.kernels.triton import aot
from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.aot_limits import Limits
from wmrt.kernels.triton.dependent import dependent_case, follow
from wmrt.kernels.triton.ptx_reads import reads_before_wait

HEAD = """
	ld.param.b64 	%rd1, [k_param_0];
	ld.param.b64 	%rd2, [k_param_1];
	ld.param.b32 	%r1, [k_param_2];
	mad.wide.s32 	%rd3, %r1, 4, %rd1;
"""
TAIL = "\n	griddepcontrol.wait; // dummy\n	ld.global.b32 { %r9 }, [ %rd2 + 0 ];\n"


@pytest.mark.parametrize(
    ("body", "reads"),
    [
        ("", []),
        ("@%p1 ld.global.v2.b32 { %r2, %r3 }, [ %rd3 + 16 ], %rd9;", ["a"]),
        ("add.s64 %rd4, %rd2, 8;\n ld.global.b32 { %r2 }, [ %rd4 + 0 ];", ["b"]),
        ("st.global.b32 [ %rd2 + 0 ], { %r1 };", ["b"]),
        ("prefetch.global.L2 [%rd2]; mov.b32 %r2, 0;", []),
        ("// ld.global.b32 { %r2 }, [ %rd2 + 0 ];", []),
        ("selp.b64 %rd4, %rd1, %rd2, %p1;\n ld.global.b32 { %r2 }, [ %rd4 + 0 ];", ["a", "b"]),
        ("ld.global.b64 { %rd4 }, [ %rd5 ];", ["what %rd5 holds"]),
        ("ld.param.b64 	%rd4, [k_param_3];\n atom.add.u32 %r2, [%rd4], 1;", ["parameter 3"]),
        ("mov.b64 %rd2, %rd1;\n ld.global.b32 { %r2 }, [ %rd2 ];", ["a"]),
    ],
)
def test_registers_are_followed_to_their_parameters(body: str, reads: list[str]) -> None:
    assert reads_before_wait(HEAD + body + TAIL, ["a", "b", ""]) == reads
    assert reads_before_wait(HEAD + body, ["a", "b", ""]) == []  # without a wait


@triton.jit
def hasty(w: tl.tensor, x: tl.tensor, y: tl.tensor, DEPENDENT: tl.constexpr) -> None:
    """Reads what another launch writes, x, before it waits."""
    at = tl.arange(0, 128)
    total = tl.load(w + at) + tl.load(x + at)
    follow(DEPENDENT)
    tl.store(y + at, total)


def test_a_kernel_that_does_not_wait_is_red() -> None:
    plain = AotCase("hasty", hasty, dict.fromkeys("wxy", "*fp32"), {"DEPENDENT": False})
    case = dependent_case(plain, early=("w",))
    assert case.name == "hasty.dependent" and min(case.targets) == 90
    with aot.fresh_cache():
        figures = aot.measure(aot.compile_case(case, 90))
        before = aot.measure(aot.compile_case(plain, 90))
    assert figures["early_reads"] == ["w", "x"] and before["early_reads"] == []
    (found,) = Limits.read().violations(case, 90, figures)
    assert found == "x is read before the launch that writes it was waited for"
