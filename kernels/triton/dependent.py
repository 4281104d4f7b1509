"""Launches that begin before the one before them has ended: programmatic dependent launch.

Every launch of a step but the first is one, or none is. A launch may begin when all programs of the
one before it have said so or ended, and it waits, before it reads what a launch writes, until that
one has ended and all it wrote is seen. Since each waits before it ends, so do all behind it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.library import FP_FUSION
from wmrt.kernels.triton.variants import DEPENDENT_FROM


@triton.jit
def follow(DEPENDENT: tl.constexpr) -> None:
    """With `DEPENDENT`: lets the launch behind this one begin, and waits for the one before.

    What is loaded above must be what no launch of a step writes: weights. Nothing is stored above.
    """
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


def options(dependent: bool) -> dict[str, Any]:
    """Keywords of a launch of a kernel with `DEPENDENT`."""
    return {"DEPENDENT": dependent, "launch_pdl": dependent, "enable_fp_fusion": FP_FUSION}


def dependent_case(case: AotCase, early: tuple[str, ...] = ()) -> AotCase:
    """The case as a dependent launch, with ``.dependent`` behind its name: the two instructions of
    griddepcontrol have to be there, and nothing but ``early`` is read before they have waited."""
    return replace(
        case,
        name=f"{case.name}.dependent",
        constants={**case.constants, "DEPENDENT": True},
        targets=tuple(target for target in case.targets if target >= DEPENDENT_FROM),
        instructions=(*case.instructions, "ACQBULK", "PREEXIT"),
        early=early,
        options={"launch_pdl": True},
    )
