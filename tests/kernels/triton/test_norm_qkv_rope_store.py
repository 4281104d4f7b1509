"""RMSNorm, q, k, v, rotary embedding and the ring: against float64 and the CPU operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
from wmrt.kernels.triton.norm_qkv_rope_store import launch
from wmrt.kernels.triton.plans import qkv_plan, qkv_work
from wmrt.kernels.triton.variants import Variant
from wmrt.model.rope import rope_table, rotate, turn_increments
from wmrt.quant.tensor import QuantizedTensor

OP = torch.ops.wmrt.norm_qkv_rope_store
RING, SLOTS = 5, 3


@pytest.fixture(autouse=True)
def runs() -> Iterator[None]:
    with running():
        yield


@dataclass
class Case:
    """Everything that one call takes; keys and values begin as NaN."""

    weight: QuantizedTensor
    matrix: Matrix
    x: torch.Tensor
    norm: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    slots: torch.Tensor
    heads: int
    groups: int

    def buffers(self) -> list[torch.Tensor]:
        """work, q, keys, values."""
        batch, size = len(self.x), self.cos.shape[1] * 2
        bytes = qkv_work(self.matrix.rows, self.matrix.columns, batch)
        work = torch.zeros(bytes, dtype=torch.int8, device=DEVICE)
        q = torch.empty(batch, self.heads, size, device=DEVICE)
        ring = torch.full((2, batch, RING, self.groups, size), torch.nan, device=DEVICE)
        return [work, q, ring[0], ring[1]]

    def run(self, how: Variant = HOW) -> list[torch.Tensor]:
        buffers = self.buffers()
        place = (self.cos, self.sin, self.slots)
        launch(how, self.x, self.norm, EPS, self.matrix, *place, *buffers)
        return buffers

    def one(self, b: int) -> Case:
        """The case of one robot."""
        rows = (t[b : b + 1] for t in (self.x, self.norm, self.cos, self.sin, self.slots))
        x, _, cos, sin, slots = rows
        whole = (self.weight, self.matrix)
        return Case(*whole, x, self.norm, cos, sin, slots, self.heads, self.groups)

    def flat(self) -> tuple[object, ...]:
        """Arguments of the operator, on the CPU, without buffers."""
        m = self.matrix
        matrix = (m.words.cpu(), m.lane_scales.cpu(), m.format, m.global_scale)
        place = (self.cos.cpu(), self.sin.cpu(), self.slots.cpu())
        return (self.x.cpu(), self.norm.cpu(), EPS, *matrix, *place)


def make(
    rng: np.random.Generator,
    format: str = "nvfp4",
    width: int = 300,
    batch: int = 1,
    heads: int = 3,
    groups: int = 1,
    size: int = 6,
) -> Case:
    weight, matrix = random(format, ((heads + 2 * groups) * size, width), rng)
    steps = torch.from_numpy(rng.integers(0, 10**9, batch))
    cos, sin = (t.to(DEVICE) for t in rope_table(steps, turn_increments(size // 2, 1000.0)))
    slots = torch.from_numpy(rng.integers(0, RING, (batch, SLOTS)).astype(np.int32)).to(DEVICE)
    x = draw(rng, batch, width) * 10.0 ** float(rng.uniform(-2, 2))
    return Case(weight, matrix, x, draw(rng, width), cos, sin, slots, heads, groups)


def rows_of(buffers: list[torch.Tensor], case: Case) -> torch.Tensor:
    """q, k, v of every robot, [B, H + 2 KV, hd]; what else is in the ring has to be NaN still."""
    _, q, keys, values = (t.cpu() for t in buffers)
    row, slot = torch.arange(len(q)), case.slots[:, 0].cpu().long()
    found = torch.cat([q, keys[row, slot], values[row, slot]], 1)
    for ring in (keys, values):
        ring[row, slot] = torch.nan
        assert ring.isnan().all()
    return found


def check(case: Case, buffers: list[torch.Tensor]) -> None:
    """Codes are those of the norm, rows are exact of the codes, and rotated; float64 is the truth,
    and the CPU operator lies as far away as its own codes allow."""
    batch, columns = len(case.x), case.matrix.columns
    codes, factors = split(buffers[0], batch, columns)
    check_normed(codes, factors, case.x, case.norm)
    answer = oracle.of_codes(codes, factors, case.weight)
    shape = (batch, -1, case.cos.shape[1] * 2)
    rows, bound = (torch.from_numpy(t).view(shape) for t in (answer.exact, answer.bound))
    turned = case.heads + case.groups
    cos, sin = (t.cpu().double().unsqueeze(1) for t in (case.cos, case.sin))
    exact, room = rows.clone(), bound.clone()
    exact[:, :turned] = rotate(rows[:, :turned], cos, sin)
    # Two products and a sum, each rounded; sizes add up.
    spread = bound + 3 * oracle.UNIT * rows.abs()
    ahead = rotate(spread[:, :turned], cos.abs(), -sin.abs())
    half = ahead.shape[-1] // 2
    room[:, :turned, :half] = ahead[..., :half]
    room[:, :turned, half:] = rotate(spread[:, :turned], cos.abs(), sin.abs())[..., half:]
    oracle.Answer(exact.numpy(), room.numpy()).check(rows_of(buffers, case))


@pytest.mark.parametrize(
    ("format", "width", "batch"),
    [(f, 300, 1) for f in FORMATS] + [("nvfp4", 130, 3), ("int4-g128", 1100, 2), ("mxfp4", 90, 16)],
)
def test_against_float64(format: str, width: int, batch: int, seed: int) -> None:
    case = make(np.random.default_rng(seed), format, width, batch, heads=1 if batch > 3 else 3)
    check(case, case.run())


def test_many_programs_hold_the_same_codes(seed: int) -> None:
    """Heads of 16 rows: 8 pairs, of which a program takes those of two heads; and ends behind."""
    case = make(np.random.default_rng(seed), width=200, heads=5, groups=2, size=16)
    buffers = case.run()
    check(case, buffers)
    rows = qkv_plan(case.matrix.rows, case.matrix.columns, 1).rows
    parts = buffers[0].view(-(-case.matrix.rows // rows), -1)
    assert len(parts) > 4 and (parts == parts[0]).all()


def test_the_cpu_operator_is_near(seed: int) -> None:
    """Its codes are of the same norm: they differ where one lies at the edge between two codes."""
    rng = np.random.default_rng(seed)
    case = make(rng, batch=3)
    got = rows_of(case.run(), case)
    buffers = [t.cpu() for t in case.buffers()]
    OP(*case.flat(), *buffers)
    want = rows_of(buffers, case)
    levels, steps = oracle.weight_parts(case.weight)
    normed = torch.nn.functional.rms_norm(case.x.cpu(), (300,), case.norm.cpu(), EPS)
    group = torch.nn.functional.pad(normed, (0, 20)).view(3, 10, 32).abs().amax(-1) / 127
    # One code of two numbers of a row; more than that is no edge.
    largest = (np.abs(levels * steps)[:, :300] * case.weight.global_scale).max()
    assert (got - want).abs().max() <= 2 * largest * float(group.max()) + 1e-5 * want.abs().max()


def test_a_robot_has_its_bits_in_every_batch_and_for_itself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = make(rng, batch=2)
    whole = rows_of(case.run(), case)
    assert torch.equal(rows_of(case.run(DEPENDENT), case), whole)
    alone = case.one(1)
    assert torch.equal(rows_of(alone.run(), alone)[0], whole[1])
    case.x[0, 17] = rng.choice([np.nan, np.inf])
    dirty = rows_of(case.run(), case)
    assert dirty[0].isnan().all() and torch.equal(dirty[1], whole[1])


def test_slots_may_count_over_all_rings(seed: int) -> None:
    """Of more rings than robots: each stores in the ring that its slots say, and nowhere else."""
    case = make(np.random.default_rng(seed), batch=2)
    want = rows_of(case.run(), case)
    owner = torch.randperm(4, generator=torch.Generator().manual_seed(seed))[:2]
    own, size = case.slots[:, :1].cpu().long(), case.cos.shape[1] * 2
    case.slots += RING * owner[:, None].to(case.slots)
    shape = (2, 4 * RING, case.groups, size)
    for call in ("kernel", "operator"):
        work, q, *_ = case.buffers()
        rings = torch.full(shape, torch.nan, device=DEVICE)
        if call == "kernel":
            place = (case.cos, case.sin, case.slots)
            launch(HOW, case.x, case.norm, EPS, case.matrix, *place, work, q, *rings)
        else:
            OP(*case.flat(), work.cpu(), q := q.cpu(), *(rings := rings.cpu()))
        keys, values = rings.cpu().view(2, 4, RING, case.groups, size)
        place = owner, own[:, 0]
        got = torch.cat([q.cpu(), keys[place], values[place]], 1)
        assert torch.equal(got, want) if call == "kernel" else got.isfinite().all()
        keys[place] = values[place] = torch.nan
        assert keys.isnan().all() and values.isnan().all()


def test_zeros_and_what_is_tiny(seed: int) -> None:
    case = make(np.random.default_rng(seed), batch=2)
    case.x[0], case.x[1] = 0.0, 1e-30
    assert not rows_of(case.run(), case)[0].any()
    assert rows_of(case.run(), case).isfinite().all()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({0: torch.zeros(2, 600)}, UsageError, r"512 columns takes \[B, 257\] to \[B, 512\]"),
        ({0: torch.zeros(300, 2).t()}, UsageError, r"x is .* with strides \[1, 2\]"),
        ({1: torch.zeros(299)}, UsageError, r"norm is torch.float32 \[299\]; it has to be"),
        ({7: torch.zeros(2, 2)}, UsageError, r"cos is .*\[2, 2\]; it has to be .*\[2, 3\]"),
        ({9: torch.zeros(2, 3, dtype=torch.int64)}, UsageError, "slots is torch.int64"),
        ({9: torch.zeros(2, 0, dtype=torch.int32)}, UsageError, r"have to be \[B, k \+ 1\]"),
        ({10: torch.zeros(9, dtype=torch.int8)}, UsageError, "work has 9 bytes, 1152 are needed"),
        ({10: torch.zeros(9999)}, UsageError, r"it has to be int8 \[n\]"),
        ({11: torch.zeros(2, 4, 6)}, QuantizationError, "30 rows; 4 query heads and twice 1 heads"),
        ({12: torch.zeros(5, 6)}, UsageError, r"they have to be \[B, H, hd\] and"),
        ({12: torch.zeros(2, 5, 6)}, UsageError, r"values is .*\[2, 5, 1, 6\]; .*\[2, 5, 6\]"),
        ({13: torch.zeros(2, 4, 1, 6)}, UsageError, r"values is .*\[2, 4, 1, 6\]"),
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


def test_meta_takes_what_the_others_take(seed: int) -> None:
    case = make(np.random.default_rng(seed), batch=2)
    given = (*case.flat(), *case.buffers())
    OP(*(g.to("meta") if isinstance(g, torch.Tensor) else g for g in given))


@pytest.mark.skipif(not FULL, reason="it loads torch's compiler: 2 s; WMRT_FULL=1 runs it")
def test_torch_accepts_the_registration(seed: int) -> None:
    case = make(np.random.default_rng(seed), batch=2)
    buffers = [t.cpu().nan_to_num() for t in case.buffers()]
    torch.library.opcheck(OP.default, (*case.flat(), *buffers), test_utils=FIXED)
