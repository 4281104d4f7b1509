"""RMSNorm and the gated half of SwiGLU as int8: against float64 and the CPU operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tests.conftest import FULL
from tests.kernels import oracle
from tests.kernels.fused import (
    DEPENDENT,
    DEVICE,
    EPS,
    FIXED,
    HOW,
    check_normed,
    draw,
    random,
    running,
    split,
)
from wmrt.core.errors import QuantizationError, UsageError
from wmrt.kernels.triton.fused_checks import FORMATS, Matrix
from wmrt.kernels.triton.norm_gate_up import launch
from wmrt.kernels.triton.plans import gate_up_work
from wmrt.kernels.triton.variants import Variant
from wmrt.quant.activations import quantize_groups
from wmrt.quant.tensor import QuantizedTensor

OP = torch.ops.wmrt.norm_gate_up


@pytest.fixture(autouse=True)
def runs() -> Iterator[None]:
    with running():
        yield


@dataclass
class Case:
    """Everything that one call takes; codes begin as 77, factors as NaN."""

    weight: QuantizedTensor
    matrix: Matrix
    x: torch.Tensor
    norm: torch.Tensor
    width: int

    @property
    def hidden(self) -> int:
        return self.matrix.rows // 2

    def buffers(self) -> list[torch.Tensor]:
        """work, codes, factors."""
        batch = len(self.x)
        bytes = gate_up_work(self.matrix.rows, self.matrix.columns, batch)
        work = torch.zeros(bytes, dtype=torch.int8, device=DEVICE)
        codes = torch.full((batch, self.width), 77, dtype=torch.int8, device=DEVICE)
        return [work, codes, torch.full((batch, self.width // 32), torch.nan, device=DEVICE)]

    def run(self, how: Variant = HOW) -> list[torch.Tensor]:
        buffers = self.buffers()
        launch(how, self.x, self.norm, EPS, self.matrix, *buffers)
        return [t.cpu() for t in buffers]

    def flat(self) -> tuple[object, ...]:
        """Arguments of the operator, on the CPU, without buffers."""
        m = self.matrix
        matrix = (m.words.cpu(), m.lane_scales.cpu(), m.format, m.global_scale)
        return (self.x.cpu(), self.norm.cpu(), EPS, *matrix)


def make(
    rng: np.random.Generator,
    format: str = "nvfp4",
    width: int = 300,
    hidden: int = 40,
    batch: int = 1,
) -> Case:
    weight, matrix = random(format, (2 * hidden, width), rng)
    x = draw(rng, batch, width) * 10.0 ** float(rng.uniform(-2, 2))
    padded = -(-hidden // 256) * 256
    return Case(weight, matrix, x, draw(rng, width), padded)


def swiglu(codes: oracle.Array, factors: oracle.Array, case: Case) -> tuple[oracle.Array, ...]:
    """silu(gate) * up in float64, and how far float32 may lie from it."""
    answer = oracle.of_codes(codes, factors, case.weight)
    gate, up = answer.exact[:, : case.hidden], answer.exact[:, case.hidden :]
    gate_off, up_off = answer.bound[:, : case.hidden], answer.bound[:, case.hidden :]
    with np.errstate(over="ignore"):
        silu = gate / (1 + np.exp(-gate))
    # silu's slope is below 1.1. An approximate exp is wrong by 2 ulp and, from its argument's
    # rounding, by |gate| ulp more; sum, division (2 ulp) and product round.
    silu_off = 1.1 * gate_off + np.abs(silu) * (8 + 2 * np.abs(gate)) * oracle.UNIT
    off = silu_off * (np.abs(up) + up_off) + np.abs(silu) * up_off
    return silu * up, off + np.abs(silu * up) * oracle.UNIT


def check(case: Case, buffers: list[torch.Tensor]) -> None:
    batch = len(case.x)
    codes, factors = split(buffers[0], batch, case.matrix.columns)
    check_normed(codes, factors, case.x, case.norm)
    exact, off = swiglu(codes, factors, case)
    got, steps = buffers[1].numpy().astype(np.float64), buffers[2].numpy().astype(np.float64)
    whole = -(-case.hidden // 32) * 32
    # Behind the last group nothing is written, in it there are zeros behind the last result.
    assert (got[:, whole:] == 77).all() and np.isnan(steps[:, whole // 32 :]).all()
    assert not got[:, case.hidden : whole].any()
    scale = np.repeat(steps, 32, 1)[:, : case.hidden]
    real = got[:, : case.hidden] * scale
    assert (np.abs(real - exact) <= off + scale * (0.5 + 129 * oracle.UNIT)).all()
    # The largest of a group has code 127: its scale is within what that may be.
    room = np.zeros((2, batch, whole))
    room[:, :, : case.hidden] = np.abs(exact), off
    largest = room[0].reshape(batch, -1, 32).max(-1)
    error = np.abs(steps[:, : whole // 32] * 127 - largest)
    assert (error <= room[1].reshape(batch, -1, 32).max(-1) + 2 * oracle.UNIT * largest).all()


@pytest.mark.parametrize(
    ("format", "width", "hidden", "batch"),
    [(f, 300, 40, 1) for f in FORMATS]
    + [("nvfp4", 100, 7, 1), ("nvfp4", 2100, 32, 1), ("int4-g128", 1100, 33, 2)]
    + [("nvfp4", 130, 5, 3), ("mxfp4", 90, 31, 16)],
)
def test_against_float64(format: str, width: int, hidden: int, batch: int, seed: int) -> None:
    case = make(np.random.default_rng(seed), format, width, hidden, batch)
    check(case, case.run())


def test_the_cpu_operator_is_as_near(seed: int) -> None:
    """Of its own codes, which are those of torch's norm."""
    case = make(np.random.default_rng(seed), batch=2)
    buffers = [t.cpu() for t in case.buffers()]
    OP(*case.flat(), *buffers)
    normed = torch.nn.functional.rms_norm(case.x.cpu(), (300,), case.norm.cpu(), EPS)
    codes, factors = quantize_groups(normed, padded_to=512)
    raw = [codes.to(torch.int8).view(torch.int8).flatten(), factors.flatten().view(torch.int8)]
    buffers[0] = torch.cat(raw)
    check(case, buffers)


def test_a_robot_has_its_bits_in_every_batch_and_for_itself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = make(rng, batch=2)
    whole = case.run()[1:]
    assert all(same(a, b) for a, b in zip(case.run(DEPENDENT)[1:], whole, strict=True))
    alone = replace(case, x=case.x[1:]).run()[1:]
    assert all(same(a[0], b[1]) for a, b in zip(alone, whole, strict=True))
    case.x[0, 17] = rng.choice([np.nan, np.inf])
    dirty = case.run()[1:]
    assert all(same(a[1], b[1]) for a, b in zip(dirty, whole, strict=True))
    assert not dirty[0][0, :64].any() and not dirty[1][0, :2].isfinite().any()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return np.array_equal(a.numpy(), b.numpy(), equal_nan=True)


def test_zeros_and_large_gates(seed: int) -> None:
    """Rows of zeros give scale 0; where exp of a gate is no float32, silu is 0 or the gate."""
    case = make(np.random.default_rng(seed), batch=2)
    case.x[0], case.norm[:] = 0.0, 1e4
    buffers = case.run()
    check(case, buffers)
    assert not buffers[1][0, :64].any() and not buffers[2][0, :2].any()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({0: torch.zeros(17, 300)}, UsageError, "of 1 to 16 vectors"),
        ({1: torch.zeros(300, dtype=torch.float64)}, UsageError, "norm is torch.float64"),
        ({7: torch.zeros(9, dtype=torch.int8)}, UsageError, "work has 9 bytes, 1664 are needed"),
        ({8: torch.zeros(2, 32, dtype=torch.int8)}, UsageError, r"take at least \[2, 64\]"),
        ({8: torch.zeros((), dtype=torch.int8)}, UsageError, r"codes are \[\]"),
        ({8: torch.zeros(3, 256, dtype=torch.int8)}, UsageError, r"codes is .*\[3, 256\]"),
        ({9: torch.zeros(2, 2)}, UsageError, r"factors is .*\[2, 2\]; it has to be .*\[2, 8\]"),
    ],
)
def test_what_does_not_fit_is_told(
    change: dict[int, torch.Tensor], error: type[Exception], says: str, seed: int
) -> None:
    case = make(np.random.default_rng(seed), batch=2)
    given = [*case.flat(), *(t.cpu() for t in case.buffers())]
    for at, value in change.items():
        given[at] = value
    meta = [g.to("meta") if isinstance(g, torch.Tensor) else g for g in given]
    for each in (given, meta):
        with pytest.raises(error, match=says):
            OP(*each)


def test_gates_and_ups_come_in_pairs(seed: int) -> None:
    case = make(np.random.default_rng(seed))
    weight, matrix = random("nvfp4", (7, 300), np.random.default_rng(seed))
    with pytest.raises(QuantizationError, match="7 rows; gates and ups are even"):
        replace(case, weight=weight, matrix=matrix).run()


def test_meta_takes_what_the_others_take(seed: int) -> None:
    case = make(np.random.default_rng(seed), batch=2)
    given = (*case.flat(), *case.buffers())
    OP(*(g.to("meta") if isinstance(g, torch.Tensor) else g for g in given))


@pytest.mark.skipif(not FULL, reason="it loads torch's compiler: 2 s; WMRT_FULL=1 runs it")
def test_torch_accepts_the_registration(seed: int) -> None:
    case = make(np.random.default_rng(seed), batch=2)
    buffers = [t.cpu().nan_to_num() for t in case.buffers()]
    torch.library.opcheck(OP.default, (*case.flat(), *buffers), test_utils=FIXED)
