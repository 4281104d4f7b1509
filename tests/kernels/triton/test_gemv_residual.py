"""Matrix times int8 activations onto the residual stream: against float64 and the CPU operator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.conftest import FULL
from tests.kernels import oracle
from tests.kernels.fused import DEPENDENT, DEVICE, FIXED, HOW, draw, random, running
from wmrt.core.errors import QuantizationError, UnsupportedError, UsageError
from wmrt.kernels.triton import activations
from wmrt.kernels.triton.fused_checks import FORMATS, Matrix
from wmrt.kernels.triton.gemv_residual import launch

OP = torch.ops.wmrt.gemv_residual


@pytest.fixture(autouse=True)
def runs() -> Iterator[None]:
    with running():
        yield


def run(given: tuple[torch.Tensor, torch.Tensor], matrix: Matrix, x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    launch(HOW, *given, matrix, out)
    return out


@pytest.mark.parametrize(
    ("format", "shape", "batch"),
    [(f, (9, 300), 1) for f in FORMATS]
    + [("nvfp4", (17, 2100), 1), ("int4-g128", (9, 1100), 2), ("nvfp4", (3, 200), 16)],
)
def test_against_float64_and_the_cpu(
    format: str, shape: tuple[int, int], batch: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weight, matrix = random(format, shape, rng)
    codes, factors = activations.int8_codes(draw(rng, batch, shape[1]), matrix.columns)
    x = draw(rng, batch, shape[0])
    got = run((codes, factors), matrix, x).cpu()
    answer = oracle.of_codes(codes.cpu().numpy(), factors.cpu().numpy(), weight)
    exact = answer.exact + x.cpu().double().numpy()
    # The sum onto x rounds once more.
    bound = answer.bound + np.abs(exact) * oracle.UNIT
    oracle.Answer(exact, bound).check(got)
    want = x.cpu().clone()
    OP(codes.cpu(), factors.cpu(), *on_cpu(matrix), want)
    oracle.Answer(want.double().numpy(), 2 * bound).check(got)


def on_cpu(matrix: Matrix) -> tuple[torch.Tensor, torch.Tensor, str, float]:
    return matrix.words.cpu(), matrix.lane_scales.cpu(), matrix.format, matrix.global_scale


def test_a_robot_has_its_bits_in_every_batch_and_for_itself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, matrix = random("nvfp4", (18, 300), rng)
    given = draw(rng, 3, 300)
    x = draw(rng, 3, 18)
    whole = run(activations.int8_codes(given, 512), matrix, x)
    assert torch.equal(run(activations.int8_codes(given, 512), matrix, x), whole)
    follows = x.clone()
    codes = activations.int8_codes(given, 512)
    launch(DEPENDENT, *codes, matrix, follows)
    assert torch.equal(follows, whole)
    for b in range(3):
        alone = run(activations.int8_codes(given[b : b + 1], 512), matrix, x[b : b + 1])
        assert torch.equal(alone[0], whole[b])
    given[1, 7], x[0, 3] = torch.nan, torch.inf
    dirty = run(activations.int8_codes(given, 512), matrix, x)
    assert dirty[1].isnan().all() and torch.equal(dirty[2], whole[2])
    assert dirty[0, 3] == torch.inf and torch.equal(dirty[0, :3], whole[0, :3])


def arguments(rng: np.random.Generator) -> list[object]:
    _, matrix = random("mxfp4", (6, 300), rng)
    codes = torch.zeros(2, 512, dtype=torch.int8, device=DEVICE)
    factors = torch.zeros(2, 16, device=DEVICE)
    rest = [matrix.words, matrix.lane_scales, "mxfp4", 1.0]
    return [codes, factors, *rest, torch.zeros(2, 6, device=DEVICE)]


@pytest.mark.parametrize(
    ("at", "value", "error", "says"),
    [
        (0, torch.zeros(2, 256, dtype=torch.int8), UsageError, r"\[2, 256\]; it has to be .*512\]"),
        (0, torch.zeros(17, 512, dtype=torch.int8), UsageError, "of 1 to 16 vectors"),
        (1, torch.zeros(2, 8), UsageError, r"factors is torch.float32 \[2, 8\]"),
        (2, torch.zeros(6, 63, dtype=torch.int32), QuantizationError, "multiple of 256"),
        (3, torch.zeros(6, 4, dtype=torch.uint8), QuantizationError, "lane_scales are"),
        (4, "int8-token", UnsupportedError, "there are: nvfp4, mxfp4, int4-g128"),
        (6, torch.zeros(6, 2).t(), UsageError, r"with strides \[1, 2\]; it has to be"),
        (6, torch.zeros(2, 6, dtype=torch.float64), UsageError, "x is torch.float64"),
        (6, torch.zeros(2, 6, device="meta"), UsageError, "lie on .*meta; move them to one"),
    ],
)
def test_what_does_not_fit_is_told(
    at: int, value: object, error: type[Exception], says: str, seed: int
) -> None:
    given = arguments(np.random.default_rng(seed))
    given[at] = value.to(DEVICE) if isinstance(value, torch.Tensor) and not value.is_meta else value
    with pytest.raises(error, match=says):
        OP(*(g.cpu() if isinstance(g, torch.Tensor) and not g.is_meta else g for g in given))
    codes, factors, words, scales, format, factor, x = given
    with pytest.raises(error, match=says):
        launch(HOW, codes, factors, Matrix(words, scales, format, factor), x)  # type: ignore[arg-type]


@pytest.mark.skipif(not FULL, reason="it loads torch's compiler: 2 s; WMRT_FULL=1 runs it")
def test_torch_accepts_the_registration(seed: int) -> None:
    given = tuple(arguments(np.random.default_rng(seed)))
    torch.library.opcheck(OP.default, given, test_utils=FIXED)
