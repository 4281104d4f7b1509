"""Dynamic activations: int8 in groups of 32 along K, int8 or E4M3 with one scale per token.

In all of them a group of zeros has scale 0 and codes 0, and a group with NaN or infinity has a
scale that is not finite and codes 0, so that every product with it is NaN: nothing that is not
finite becomes a number, and nothing outside the group changes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.elements import E4M3_MAX, decode_e4m3, encode_e4m3
from wmrt.quant.formats import split
from wmrt.quant.rules import DEFAULT, Rules

GROUP = 32
TOKEN_FORMATS = ("int8-token", "fp8-token")
# As a tensor: dividing by a Python number costs 3 us more, at 8 numbers a call.
_LARGEST = torch.tensor(127.0)


def quantize_groups(
    x: Tensor, *, group: int = GROUP, padded_to: int = GROUP
) -> tuple[Tensor, Tensor]:
    """Integer codes and scales of float32[..., K], both float32: [..., K'] and [..., K'/group].

    K' is K rounded up to a multiple of `padded_to`, itself one of `group`; the padding is zero.
    scale = amax / 127; code = round half to even of x / scale, within +-127. Codes stay float32:
    their products with 4-bit levels and the sums over a block are integers below 2^24, hence exact.
    """
    extra = -x.shape[-1] % padded_to
    if extra:
        x = F.pad(x, (0, extra))
    groups = split(x, group)
    scales = torch.linalg.vector_norm(groups, torch.inf, -1).div_(_LARGEST)
    # Clamped: a subnormal scale is rounded so coarsely that a quotient may reach 190.
    codes = (groups / scales.unsqueeze(-1)).round_().nan_to_num_(0.0).clamp_(-127.0, 127.0)
    return codes.flatten(-2), scales


def quantize_int8(x: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """`quantize_groups` padded to whole groups, with the codes as int8."""
    codes, scales = quantize_groups(x, group=group, padded_to=group)
    return codes.to(torch.int8), scales


def quantize_tokens(x: Tensor, format: str, rules: Rules = DEFAULT) -> tuple[Tensor, Tensor]:
    """Values of the codes and scales of float32[..., K], both float32: [..., K] and [..., 1].

    * ``int8-token``: scale = amax / 127, code = round half to even of x / scale within +-127; or
      by `rules.int8_scale` amax / 127.5 and -128 to 127
    * ``fp8-token``: scale = amax / 448, code = E4M3 nearest even of x / scale

    Raises `QuantizationError` for another format, or one without elements.
    """
    if format not in TOKEN_FORMATS:
        raise QuantizationError(
            f"unknown per-token format {format!r}; formats are {', '.join(TOKEN_FORMATS)}"
        )
    if x.shape[-1] == 0:
        raise QuantizationError(f"a token needs at least one element, got {list(x.shape)}")
    x = x.float()
    amax = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True)
    wide = format == "int8-token" and rules.int8_scale == "amax/127.5"
    scales = amax / (E4M3_MAX if format == "fp8-token" else 127.5 if wide else 127.0)
    # 0 / 0 of a token of zeros, and what lies in a token whose scale is not finite.
    quotients = (x / scales).nan_to_num_(0.0)
    if format == "fp8-token":
        return decode_e4m3(encode_e4m3(quotients)), scales
    return quotients.round_().clamp_(-128.0 if wide else -127.0, 127.0), scales
