"""What keeps a captured step's memory where it was: every change of a tensor that stays itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from wmrt.core.errors import UsageError
from wmrt.runtime.static_buffers import StaticBuffers

#: A tensor [3, 4] in the first half of its memory of 96 bytes, which numpy has.
Change = Callable[[Tensor, "np.ndarray[tuple[int], np.dtype[np.float32]]"], object]
CHANGES: list[tuple[Change, str]] = [
    (lambda t, m: t.as_strided_((3, 4), (1, 3)), r"strides \[1, 3\].* strides \[4, 1\]"),
    (lambda t, m: t.t_(), r"float32 \[4, 3\]"),
    (lambda t, m: t.resize_(2, 4), r"float32 \[2, 4\]"),
    (lambda t, m: t.squeeze_().unsqueeze_(0), r"float32 \[1, 3, 4\]"),
    (lambda t, m: t.set_(torch.zeros(3, 4)), "was replaced by"),
    (lambda t, m: t.set_(torch.zeros(20)[:12].view(3, 4)), "80 bytes of memory; .* 96 bytes"),
    (
        lambda t, m: t.set_(torch.from_numpy(m[:12]).untyped_storage(), 0, (3, 4)),
        "48 bytes of memory; .* 96 bytes of memory",
    ),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_a_change_in_place_is_named(change: Change, said: str) -> None:
    memory = np.zeros(24, np.float32)
    tensor = torch.from_numpy(memory)[:12].view(3, 4)
    other = torch.zeros(5)
    buffers = StaticBuffers({"other": other, "it": tensor})
    buffers.check()
    tensor.add_(1)
    other.copy_(torch.ones(5))
    buffers.check()
    change(tensor, memory)
    with pytest.raises(UsageError, match=rf"static buffer it .*{said}"):
        buffers.check()
