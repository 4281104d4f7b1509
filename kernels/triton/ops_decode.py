"""``torch.ops.wmrt.consequences``: what a step expects, read off the dynamics head.

It writes into tensors it is given. On the CPU it computes by torch, on CUDA by triton, which is
imported when it first runs there; on Meta it checks.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from wmrt.kernels.decode_arguments import Decode, check_consequences
from wmrt.kernels.triton.launchers import function_of, on_cuda

#: Kernels that one call launches on CUDA.
LAUNCHES = {"consequences": 1}
_SCHEMA = (
    "consequences(Tensor outputs, Tensor codes, Tensor values, Tensor[] weights, "
    "int[] category_sizes, float reward_scale, Tensor(a!) following, Tensor(b!) missing, "
    "Tensor(c!) category, Tensor(d!) expected, Tensor(e!) continues) -> ()"
)
_LIBRARY: Any = cast(Any, torch.library).Library("wmrt", "FRAGMENT")  # its methods have no types


def _expectation(logits: Tensor, centers: Tensor) -> Tensor:
    """As `wmrt.model.twohot.decode_mode`, which is a floor up."""
    mode = logits.argmax(-1, keepdim=True)
    near = (torch.arange(logits.shape[-1], device=logits.device) - mode).abs() <= 2
    weight = logits.masked_fill(~near, float("-inf")).softmax(-1)
    return (weight * centers).sum(-1)


def _on_cpu(
    outputs: Tensor,
    codes: Tensor,
    values: Tensor,
    weights: list[Tensor],
    category_sizes: list[int],
    reward_scale: float,
    *results: Tensor,
) -> None:
    s = check_consequences(outputs, codes, values, weights, category_sizes, *results)
    following, missing, category, expected, continues = results
    w, classes = Decode(*weights), sum(category_sizes)
    parts = [s.numbers * s.bins, s.numbers, classes, s.rewards, 1]
    change, gone, logits, reward, proceed = torch.split(outputs, parts, -1)
    limit, scale, fill, low, high = w.scales
    if s.numbers:
        coded = _expectation(change.reshape(-1, s.numbers, s.bins), w.centers) * limit
        index = w.numbers.long()
        base = torch.where(codes[:, index] > 0, values[:, index], fill)
        moved = base + coded.sign() * coded.abs().expm1() * scale
        following.copy_(moved.clamp(low, high))
        missing.copy_(gone)
    for i, part in enumerate(torch.split(logits, category_sizes, -1) if category_sizes else ()):
        category[:, i] = part.argmax(-1)
    expected.copy_((reward.softmax(-1) * w.reward_centers).sum(-1) * reward_scale)
    continues.copy_(proceed[:, 0].sigmoid())


def _on_meta(*given: Any) -> None:
    check_consequences(*given[:5], *given[6:])  # any scale of rewards will do


_on_cuda = on_cuda("consequences", function_of("consequences", "consequences"))
_LIBRARY.define(_SCHEMA)
for _key, _function in (("CPU", _on_cpu), ("CUDA", _on_cuda), ("Meta", _on_meta)):
    _LIBRARY.impl("consequences", _function, _key)
