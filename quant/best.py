"""The steps that measured best for each weight format."""

from __future__ import annotations

from wmrt.core.errors import UsageError
from wmrt.quant.steps import Clip, Gptq, Rescale, Step

# Mean layer output error on the shipped model, int8-g32 activations, 128 windows of 64 steps to
# calibrate on and 32 of other episodes to measure on; in brackets the RMS error of the normalised
# hidden state with everything packed:
#
#   steps                 nvfp4          mxfp4          w4a8
#   rtn                   .0718 (.089)   .0853 (.104)   .0832 (.103)
#   hadamard              .0724 (.090)   .0860 (.107)   .0838 (.105)
#   gptq                  .0377 (.048)   .0446 (.057)   .0451 (.057)
#   clip,gptq             .0352 (.045)   .0443 (.057)   .0424 (.053)
#   hadamard,clip,gptq    .0350 (.044)   .0443 (.057)   .0421 (.053)
#
# clip,gptq cuts rtn's error by 51, 48 and 49%. A rotation in front of it gains less than 1% here
# and rounds the token's and the heads' weights once more. AWQ and SmoothQuant in front of it give
# .0354 and .0355 for nvfp4, .0445 and .0443 for mxfp4.
#
# With scales moved once more between GPTQ's first rounding and its passes, and four times the
# windows to calibrate on, the error over rtn's, mean of the layers and worst layer:
#
#   clip,gptq             .480   .679    .508   .764    .499   .721   128 windows
#   clip,gptq,rescale     .467   .671    .501   .760    .489   .719
#   clip,gptq             .462   .635    .488   .708    .481   .669   512 windows
#   clip,gptq,rescale     .449   .625    .481   .703    .471   .665
#
# The worst is a `down`, with three times the columns of the others: what is left there is mostly
# what 128 windows do not show of its Hessian.
_BEST = (Clip(), Gptq(), Rescale())

BEST: dict[str, tuple[Step, ...]] = {"nvfp4": _BEST, "mxfp4": _BEST, "int4-g128": _BEST}


def best_steps(weight_format: str) -> tuple[Step, ...]:
    """The entry of `BEST`; `UsageError` for a format that none was measured for."""
    if weight_format not in BEST:
        raise UsageError(
            f"no steps were measured best for {weight_format}, only for {', '.join(BEST)}; "
            "name some, or give rtn"
        )
    return BEST[weight_format]
