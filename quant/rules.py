"""`Rules`: every choice published libraries make differently when they round a weight."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from wmrt.core.errors import QuantizationError
from wmrt.quant.e8m0 import E8M0_RULES
from wmrt.quant.elements import E2M1_TIES, INT4_TIES
from wmrt.quant.formats import NVFP4_SPAN

DIVISIONS = ("multiplier", "divisor", "reciprocal", "inverse-first")
INT4_SCALES = ("amax/7.5", "amax/7", "signed-max")
INT8_SCALES = ("amax/127", "amax/127.5")

_ALLOWED: dict[str, tuple[Any, ...]] = {
    "mx_scale": E8M0_RULES,
    "nvfp4_span": (NVFP4_SPAN, 6.0 * 256.0, 448.0),
    "nvfp4_least": (0.0, 2.0**-9, 2.0**-6),
    "nvfp4_zero": (0.0, 2.0**-6, 0.125, 1.0),
    "division": DIVISIONS,
    "tile_rows": (1, 16),
    "mx_ties": E2M1_TIES,
    "int4_scale": INT4_SCALES,
    "int4_ties": INT4_TIES,
    "int8_scale": INT8_SCALES,
}


@dataclass(frozen=True)
class Rules:
    """How scales are chosen and quotients rounded. The defaults are ours; `LIBRARIES` has others'.

    RMSE figures are of round to nearest on weights N(0, 0.02): Gaussian alone / with outliers.

    * `mx_scale`: the power of two of an mxfp4 block (`e8m0.encode_e8m0`). ``even`` .002237 / .0057;
      ``floor`` .002257 / .0094 (OCP, torchao's default); ``rceil`` .002414 / .0057
      (TransformerEngine, ModelOpt, FlashInfer); ``ceil`` .002704 / .0062. The default has the
      lowest error on both, and compressed-tensors writes it.
    * `nvfp4_span`: what a tensor's largest magnitude maps to, g = amax / span. 2688 = 6 x 448 uses
      all of E4M3, as every library does by default; 6 x 256 leaves room to raise a block's scale by
      a half (four-over-six); 448 is ModelOpt's for NVFP4 weights with FP8 activations.
    * `nvfp4_least`: the smallest scale of an nvfp4 block that holds anything: 0 lets it underflow,
      which turns the block to zeros and counts it; 2^-9 (ModelOpt) and 2^-6 (torchao) keep the
      block's scale up and let its elements round to zero one by one. Default 0: scale 0 says
      plainly that a block is gone.
    * `nvfp4_zero`: the scale of a block that still has none: 0; .125 (compressed-tensors); 2^-6
      (torchao); 1 (ModelOpt). Default 0: a zero times any scale is zero, and a scale that was lost
      cannot pass for a real one.
    * `division`: how float32 forms s = amax / 6 / g and x / (s g), which decides exact ties only
      (0.1 to 0.15% of the codes). ``multiplier`` divides by 6 g and by s g (ModelOpt);
      ``divisor`` works with G = span / amax, s = G (amax / 6), x / (s / G) (compressed-tensors);
      ``reciprocal`` takes x (1 / (s g)) (TransformerEngine, FlashInfer); ``inverse-first`` takes
      s = (amax / 6) / g and x ((1 / g) / s) (torchao). For integers the last two multiply by
      1 / s (torchao, ONNX Runtime). Default ``multiplier``: it rounds once less than the others.
    * `tile_rows`: rows of nvfp4 weight that share each scale: 1, or 16 for TransformerEngine's
      square tiles, whose transpose has the same scales. Default 1: 16 costs 1.18x / 3.2x the RMSE.
    * `mx_ties`: halfway values of mxfp4 go to the ``even`` code, as in OCP and in hardware;
      ``zero``, to the smaller magnitude, is ModelOpt's and ggml's.
    * `int4_scale`: for symmetric groups of 32, ``amax/7.5`` clamped to [-8, 7] .00191 / .0057
      (compressed-tensors, torchao); ``amax/7`` .00198 / .0048 (ModelOpt); ``signed-max``, the
      element of largest magnitude over -8, .00173 / .0045 (ONNX Runtime, ggml), whose scale may be
      negative. Default ``amax/7.5``: what compressed-tensors and so its readers take, and never a
      negative scale. With zero points, (max - min) / 15, .00164 / .0042 in every library.
    * `int4_ties`: ``even``, or ``up`` = floor(x + 8.5), ONNX Runtime's and ggml's.
    * `int8_scale`: ``amax/127`` clamped to +-127, or ``amax/127.5`` clamped to [-128, 127]
      (compressed-tensors). Default 127: symmetric, so that -x rounds to minus what x rounds to.
    """

    mx_scale: str = "even"
    nvfp4_span: float = NVFP4_SPAN
    nvfp4_least: float = 0.0
    nvfp4_zero: float = 0.0
    division: str = "multiplier"
    tile_rows: int = 1
    mx_ties: str = "even"
    int4_scale: str = "amax/7.5"
    int4_ties: str = "even"
    int8_scale: str = "amax/127"

    def __post_init__(self) -> None:
        for field in fields(self):
            value, allowed = getattr(self, field.name), _ALLOWED[field.name]
            if value not in allowed:
                listed = ", ".join(map(str, allowed))
                raise QuantizationError(f"{field.name} {value!r} is not one of {listed}")

    @property
    def by_reciprocal(self) -> bool:
        """Whether integer quotients are products with 1 / s."""
        return self.division in ("reciprocal", "inverse-first")


DEFAULT = Rules()

LIBRARIES = {
    "transformer-engine": Rules(mx_scale="rceil", division="reciprocal"),
    "flashinfer": Rules(mx_scale="rceil", division="reciprocal"),
    "torchao": Rules(
        mx_scale="floor",
        nvfp4_least=2.0**-6,
        nvfp4_zero=2.0**-6,
        division="inverse-first",
        int8_scale="amax/127.5",
    ),
    "compressed-tensors": Rules(nvfp4_zero=0.125, division="divisor", int8_scale="amax/127.5"),
    "modelopt": Rules(
        mx_scale="rceil",
        nvfp4_least=2.0**-9,
        nvfp4_zero=1.0,
        mx_ties="zero",
        int4_scale="amax/7",
    ),
    "ggml": Rules(
        mx_scale="floor",
        division="reciprocal",
        mx_ties="zero",
        int4_scale="signed-max",
        int4_ties="up",
    ),
    "onnxruntime": Rules(division="reciprocal", int4_scale="signed-max", int4_ties="up"),
}
