"""The scale of each block by a format's own rule, as `Rules` selects it.

The float32 scales before they are stored in fewer bits; `quantize` stores them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.elements import E2M1_MAX, E4M3_MAX, encode_e4m3
from wmrt.quant.formats import NVFP4_SPAN, BlockFormat, split
from wmrt.quant.rules import DEFAULT, Rules

# Below this the quotient amax / 2688 would be subnormal and lose bits, or zero.
SMALLEST_GLOBAL = torch.finfo(torch.float32).tiny
FLOAT16_MAX = torch.finfo(torch.float16).max


def blocks_of(weight: Tensor, spec: BlockFormat) -> Tensor:
    """float[N, K] -> float32[N, K'/block, block], padded with zeros to whole blocks."""
    wide = weight.detach().to(torch.float32)
    columns = wide.shape[1]
    if spec.width(columns) > columns:
        wide = F.pad(wide, (0, spec.width(columns) - columns))
    return split(wide, spec.block_of(columns))


def block_amax(blocks: Tensor, spec: BlockFormat, rules: Rules = DEFAULT) -> Tensor:
    """Largest magnitude of what shares a scale: [N, K'/block], [1, 1] for a whole tensor."""
    amax = blocks.abs().amax(-1)
    if spec.per_tensor:
        return amax.amax().reshape(1, 1)
    if spec.element == "e2m1" and spec.has_global and rules.tile_rows > 1:
        rows, tile = amax.shape[0], rules.tile_rows
        tiles = F.pad(amax, (0, 0, 0, -rows % tile)).view(-1, tile, amax.shape[1]).amax(1)
        return tiles.repeat_interleave(tile, 0)[:rows]
    return amax


def nvfp4_global(
    amax: Tensor, given: float | None, rules: Rules = DEFAULT, *, clip: bool = False
) -> float:
    """g = amax / span in float32, or 1 for an all-zero tensor; or `given`.

    Never below 2^-126: a subnormal g would lose bits, and 1 / g would be infinite. A given g that
    does not reach amax is refused, unless `clip` says that block scales are chosen elsewhere.
    """
    largest = amax.max()
    if given is None:
        if float(largest) == 0.0:
            return 1.0
        return max(float(largest / rules.nvfp4_span), SMALLEST_GLOBAL)
    factor = float(torch.tensor(given, dtype=torch.float32))
    if not 0.0 < factor < float("inf"):
        raise QuantizationError(f"global_scale must be positive and finite, got {given}")
    # As G, its reciprocal, is rounded once and was computed from a rounded amax / span.
    if not clip and float(largest) > NVFP4_SPAN * factor * (1.0 + 2.0**-20):
        raise QuantizationError(
            f"global_scale {given} reaches {NVFP4_SPAN * factor:g}; "
            f"the weight reaches {float(largest):g} and would be clipped"
        )
    return factor


def nvfp4_divisor(amax: Tensor, factor: float, rules: Rules) -> Tensor:
    """G of the ``divisor`` arithmetic: span / amax where that is what g was made of, else 1 / g."""
    largest = amax.max()
    if factor == float(largest / rules.nvfp4_span):
        return rules.nvfp4_span / largest
    return 1.0 / torch.tensor(factor)


def nvfp4_scales(amax: Tensor, factor: float, rules: Rules = DEFAULT) -> Tensor:
    """E4M3 bytes (uint8) of nvfp4 blocks of largest magnitude `amax` under the global scale."""
    if rules.division == "divisor":
        wanted = nvfp4_divisor(amax, factor, rules) * (amax / E2M1_MAX)
    elif rules.division == "multiplier":
        wanted = amax / (E2M1_MAX * factor)
    else:
        wanted = (amax / E2M1_MAX) / factor
    wanted = torch.where(amax > 0, wanted.clamp(min=rules.nvfp4_least), wanted)
    scales = encode_e4m3(wanted)
    if rules.nvfp4_zero:
        scales[scales == 0] = int(encode_e4m3(torch.tensor(rules.nvfp4_zero)))
    return scales


def int4_scales(blocks: Tensor, spec: BlockFormat, rules: Rules = DEFAULT) -> Tensor:
    """float32[N, K'/block]: the step of each group, before it is stored as float16."""
    low, high = blocks.amin(-1), blocks.amax(-1)
    if spec.has_zero_points:
        # Zero is always in the range: it must be a code, and padding is made of it.
        return high.clamp(min=0.0).sub(low.clamp(max=0.0)).div(15.0)
    if rules.int4_scale == "signed-max":
        # The negative one of two equal magnitudes, which gives a positive scale.
        return torch.where(high > -low, high, low) / -8.0
    amax = blocks.abs().amax(-1)
    return amax / (7.5 if rules.int4_scale == "amax/7.5" else 7.0)


def int4_zero_points(blocks: Tensor, step: Tensor) -> Tensor:
    """uint8[N, K'/block]: the code of zero, round(-min / step) within 0..15; 8 where step is 0."""
    low = blocks.amin(-1).clamp(max=0.0)
    codes = torch.round(-8.0 - low / step.masked_fill(step == 0, 1.0)).clamp(-8, 7) + 8
    return codes.masked_fill(step == 0, 8).to(torch.uint8)


def to_float16(scales: Tensor) -> Tensor:
    """float32 int4 scales as stored; `QuantizationError` where float16 overflows."""
    stored = scales.to(torch.float16)
    if not bool(torch.isfinite(stored).all()):
        raise QuantizationError(
            f"an int4 scale is float16, at most {FLOAT16_MAX:g}; this weight needs "
            f"{float(scales.abs().max()):g}: scale it down, or take nvfp4 or mxfp4"
        )
    return stored


def row_scales(amax: Tensor, spec: BlockFormat, rules: Rules = DEFAULT) -> Tensor:
    """float32 scales of fp8 and int8 weights: amax over the largest value of a code.

    At the end of float32's range one ulp lower where the product would round to infinity.
    """
    if spec.element == "e4m3":
        divisor = largest = E4M3_MAX
    else:
        divisor, largest = (127.0, 127.0) if rules.int8_scale == "amax/127" else (127.5, 128.0)
    top = torch.tensor(torch.finfo(torch.float32).max / largest)
    return torch.minimum(amax / divisor, torch.nextafter(top, torch.zeros(())))
