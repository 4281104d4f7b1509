"""Launches written down: everything a launch is given, and nothing run."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from wmrt.core.errors import UnsupportedError
from wmrt.kernels.triton.recorded import Launch, recorded


@triton.jit(do_not_specialize=["rows"])
def scaled(
    x: tl.tensor, y: tl.tensor, rows: tl.tensor, step: tl.tensor, by: tl.tensor, N: tl.constexpr
) -> None:
    at = tl.arange(0, N)
    tl.store(y + at * step, tl.load(x + at, mask=at < rows) * by)


def test_everything_is_written_down_and_nothing_run() -> None:
    said: list[Launch] = []
    run = JITFunction.run
    x, wide = torch.ones(32, device="meta"), torch.zeros(8, dtype=torch.bfloat16, device="meta")
    with recorded(said.append):
        scaled[(3,)](x, wide[4:], 32, step=16, by=0.5, N=16, num_warps=2)
        scaled[(3, 2)](x, x, 1, 8, 0.5, N=16, num_warps=4, launch_pdl=True, enable_fp_fusion=True)
    assert JITFunction.run is run
    one, two = said
    assert one.name == "scaled" and one.kernel is scaled
    assert one.grid == (3, 1, 1) and two.grid == (3, 2, 1)
    assert one.warps == 2 and two.warps == 4
    assert not one.dependent and two.dependent
    assert one.constants == {"N": 16} and list(one.arguments) == ["x", "y", "rows", "step", "by"]
    assert one.signature() == {
        "x": "*fp32",
        "y": "*bf16",
        "rows": "i32",
        "step": "i32",
        "by": "fp32",
    }
    assert one.aligned() == ("x", "step")  # y begins at byte 8, rows is not to be looked at
    assert two.aligned() == ("x", "y")
    case = two.case("it")
    assert case.options == {"launch_pdl": True} and case.warps == 4 and case.constants == {"N": 16}
    assert case.aligned == ("x", "y") and one.case("it").options == {}


def test_of_tensors_with_memory_the_address_counts() -> None:
    said: list[Launch] = []
    x = torch.zeros(64)
    x = x[(-x.data_ptr() // 4) % 4 :]  # begins at a multiple of 16
    with recorded(said.append):
        scaled[(1,)](x, x[1:], 1, 1, 0.5, N=16, num_warps=1)
    assert said[0].aligned() == ("x",) and not x.any()


def test_keywords_that_a_record_has_no_place_for() -> None:
    with (
        pytest.raises(UnsupportedError, match="num_ctas"),
        recorded(lambda _: None),
    ):
        scaled[(1,)](*[torch.zeros(1)] * 2, 1, 1, 0.5, N=16, num_warps=1, num_ctas=2)
