"""Dynamic int8 activations: one float32 scale per group along K, 32 elements in our recipes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.quant.formats import split

GROUP = 32
# As a tensor: dividing by a Python number costs 3 us more, at 8 numbers a call.
_LARGEST = torch.tensor(127.0)


def quantize_groups(
    x: Tensor, *, group: int = GROUP, padded_to: int = GROUP
) -> tuple[Tensor, Tensor]:
    """Integer codes and scales of float32[..., K], both float32: [..., K'] and [..., K'/group].

    K' is K rounded up to a multiple of `padded_to`, itself one of `group`; the padding is zero.
    scale = amax / 127; code = round half to even of x / scale, within +-127. A group of zeros has
    scale 0 and codes 0. A group with NaN or infinity has a scale that is not finite and codes 0, so
    that every product with it is NaN. Codes stay float32: their products with 4-bit levels and the
    sums over a block are integers below 2^24, hence exact.
    """
    extra = -x.shape[-1] % padded_to
    if extra:
        x = F.pad(x, (0, extra))
    groups = split(x, group)
    scales = torch.linalg.vector_norm(groups, torch.inf, -1).div_(_LARGEST)
    codes = (groups / scales.unsqueeze(-1)).round_().nan_to_num_(0.0, 127.0, -127.0)
    return codes.flatten(-2), scales


def quantize_int8(x: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """`quantize_groups` padded to whole groups, with the codes as int8."""
    codes, scales = quantize_groups(x, group=group, padded_to=group)
    return codes.to(torch.int8), scales
