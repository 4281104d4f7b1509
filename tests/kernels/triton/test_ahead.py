"""What a launch asks for of the next one's weights: within them, all of a share, and no result's
bits changed by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.fused import AHEAD, DEVICE, HOW, draw, random, running
from wmrt.core.errors import UsageError
from wmrt.kernels.triton import activations, ahead, ptx
from wmrt.kernels.triton.fused_checks import check_next
from wmrt.kernels.triton.gemv_residual import launch


@pytest.fixture(autouse=True)
def runs() -> Iterator[None]:
    with running():
        yield


def matrix_of(rows: int, words: int, scales: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.zeros(rows, words, dtype=torch.int32, device=DEVICE)
    return made, torch.zeros(rows, scales, dtype=torch.uint8, device=DEVICE)


def test_a_share_lies_within_the_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(200):
        rows, steps = int(rng.integers(1, 300)), int(rng.integers(1, 30))
        words, scales = matrix_of(rows, 32 * steps, int(rng.integers(1, 17)) * steps)
        kib, programs = int(rng.integers(1, 4000)), int(rng.integers(1, 100))
        warps = int(rng.choice([1, 4, 8, 16]))
        found = ahead.share(words, scales, kib, programs, warps)
        count, stride, take, turns, scale_stride, scale_take, scale_turns, lanes = found
        assert (count, stride, scale_stride) == (rows, 128 * steps, scales.shape[1])
        assert 0 < take <= stride and take % 128 == 0 and 0 < scale_take <= scale_stride
        assert lanes == 32 * warps
        for taken, turn in ((take, turns), (scale_take, scale_turns)):
            sectors = rows * -(-taken // 32)
            assert (turn - 1) * programs * lanes < sectors <= turn * programs * lanes
        asked = rows * (take + scale_take)
        assert asked <= kib * 1024 or take == 128 or scale_take <= 32
        if asked < kib * 1024:  # all there is, or less than a line more of each row was left
            left = kib * 1024 - asked
            assert take == stride or left < rows * (128 + 32)


def test_nothing_is_asked_for_without_a_matrix_or_bytes() -> None:
    words, scales = matrix_of(4, 32, 16)
    assert ahead.share(None, None, 100, 1, 4) == () == ahead.share(words, scales, 0, 1, 4)


@pytest.mark.skipif(DEVICE == "cuda", reason="addresses are seen in the interpreter")
@pytest.mark.parametrize(("format", "rows", "kib"), [("nvfp4", 37, 1), ("int4-g128", 5, 100)])
def test_every_sector_is_asked_for(
    format: str, rows: int, kib: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    _, matrix = random("nvfp4", (40, 300), rng)
    _, following = random(format, (rows, 500), rng)
    asked: list[int] = []
    emulate = ptx.emulate

    def seen(asm: str, constraints: str, inputs: Any) -> Any:
        if asm.startswith("prefetch.global.L2"):
            asked.extend(int(each) for each in np.ravel(inputs[0]))
        return emulate(asm, constraints, inputs)

    monkeypatch.setattr(ptx, "emulate", seen)
    codes, x = activations.int8_codes(draw(rng, 1, 300), 512), draw(rng, 1, 40)
    plain, hinted = x.clone(), x.clone()
    launch(HOW, *codes, matrix, plain, following.words, following.lane_scales)
    assert not asked
    how = type(HOW)(HOW.int8, HOW.bf16, HOW.two_rows_from, ahead_kib=kib)
    launch(how, *codes, matrix, hinted, following.words, following.lane_scales)
    assert torch.equal(plain, hinted)
    share = ahead.share(following.words, following.lane_scales, kib, 5, 4)
    want = set()
    for tensor, stride, take in (
        (following.words, share[1], share[2]),
        (following.lane_scales, share[4], share[5]),
    ):
        for row in range(rows):
            start = tensor.data_ptr() + row * stride
            want |= set(range(start, start + take, 32))
            assert start + take <= tensor.data_ptr() + tensor.untyped_storage().nbytes()
    assert set(asked) == want


def test_bits_do_not_depend_on_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, matrix = random("nvfp4", (18, 300), rng)
    _, following = random("nvfp4", (7, 300), rng)
    for batch in (1, 9):  # nine vectors take two launches
        codes, x = activations.int8_codes(draw(rng, batch, 300), 512), draw(rng, batch, 18)
        plain, hinted = x.clone(), x.clone()
        launch(HOW, *codes, matrix, plain)
        launch(AHEAD, *codes, matrix, hinted, following.words, following.lane_scales)
        assert torch.equal(plain, hinted)


@pytest.mark.parametrize(
    ("words", "scales", "says"),
    [
        (torch.zeros(4, 32), None, "belong together; give both or neither"),
        (
            torch.zeros(4, 32),
            torch.zeros(5, 16),
            r"next_scales is \[5, 16\] .* contiguous \[4, n\]",
        ),
        (
            torch.zeros(32, 4).t(),
            torch.zeros(4, 16),
            r"next_words is \[4, 32\] with strides \[1, 4",
        ),
        (torch.zeros(4), torch.zeros(4, 16), r"next_words is \[4\]"),
        (torch.zeros(4, 32, device="meta"), torch.zeros(4, 16), "lie on cpu, meta; move them"),
    ],
)
def test_what_does_not_fit_is_told(
    words: torch.Tensor, scales: torch.Tensor | None, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        check_next(torch.zeros(1), words, scales)
    check_next(torch.zeros(1), None, None)
