"""The steps that measured best for each weight format."""

from __future__ import annotations

from wmrt.core.errors import UsageError
from wmrt.quant.steps import Clip, Gptq, Hadamard, Step

BEST: dict[str, tuple[Step, ...]] = {
    "nvfp4": (Hadamard(), Clip(), Gptq()),
    "mxfp4": (Hadamard(), Clip(), Gptq()),
    "int4-g128": (Hadamard(), Clip(), Gptq()),
}


def best_steps(weight_format: str) -> tuple[Step, ...]:
    """The entry of `BEST`; `UsageError` for a format that none was measured for."""
    if weight_format not in BEST:
        raise UsageError(
            f"no steps were measured best for {weight_format}, only for {', '.join(BEST)}; "
            "name some, or give rtn"
        )
    return BEST[weight_format]
