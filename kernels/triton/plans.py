"""How launches divide a weight's rows among programs, and the scratch it takes. Without triton."""

from __future__ import annotations

from dataclasses import dataclass, replace

from wmrt.quant.activations import GROUP
from wmrt.quant.layouts.base import STEP
from wmrt.quant.layouts.gpu import LANES

#: Rows of x in one launch.
BATCH = 16
#: Widest row that a program norms by itself: 32 numbers a lane of four warps.
WIDEST_NORMED = 4096
_WARP = 32


@dataclass(frozen=True)
class Plan:
    """How a launch divides its work: the constants of `gemv` of these names, and warps."""

    rows: int
    split: int
    chunk: int
    ahead: int
    warps: int = 4


def split_of(columns: int) -> int:
    """Groups of eight lanes that share a row. By the columns alone: it decides in which order a row
    is summed, and a vector is to have the same bits in every batch."""
    steps = -(-columns // STEP)
    runs, tail = divmod(steps, 4)
    return 2 if runs >= 2 or (not runs and tail >= 2) else 1


def plan(rows: int, columns: int, batch: int, two_rows_from: int) -> Plan:
    """The plan for a weight [rows, columns]."""
    split = split_of(columns)
    # One row for each lane while rows are few: 256 programs of 2048 rows keep 128 processors busy.
    # Two share what is loaded of x, and what is computed of it where there are several vectors.
    each = 2 if rows >= two_rows_from or batch > 1 else 1
    return Plan(each * 16 // split, split, 8 if batch == 1 else 1, 2 if batch == 1 else 1)


def residual_plan(rows: int, columns: int, batch: int, two_rows_from: int) -> Plan:
    """As `plan`, but several vectors take one row a lane: rows are few where a residual is added,
    2048 in the preset 1.3b, and long ones of two a lane take 160 to 210 registers for 4 to 8
    vectors. One costs 1.2 times the instructions in 76 to 96 registers, and twice the programs."""
    found = plan(rows, columns, batch, two_rows_from)
    return found if batch == 1 else replace(found, rows=16 // found.split)


def qkv_plan(rows: int, columns: int, batch: int) -> Plan:
    """The plan for rows that are turned in pairs: two a lane, those of a pair.

    96 programs for the preset 1.3b: 192 would take two turns on 128 to 170 processors, and compute
    the norm twice as often. Matrices of fewer rows are divided into more, smaller programs.
    """
    return _paired(columns, batch, 8 if rows >= 2048 else 4)


def gate_up_plan(columns: int, batch: int) -> Plan:
    """The plan for gates and ups in pairs, `GROUP` pairs a program: a group of the result."""
    return _paired(columns, batch, GROUP * LANES * split_of(columns) // _WARP)


def _paired(columns: int, batch: int, warps: int) -> Plan:
    split = split_of(columns)
    rows = 2 * warps * _WARP // (LANES * split)
    return Plan(rows, split, 8 if batch == 1 else 1, 2 if batch == 1 else 1, warps)


def normed_block(width: int, batch: int) -> int:
    """Numbers that a program holds to norm a row by itself, a power of two; 0: it does not.

    One vector is normed by every program, some 0.3 us of instructions at 2048 columns. More of
    them, or wide ones, are normed by a launch before, which costs about 1.2 us whatever they are.
    """
    block = max(STEP, 1 << (width - 1).bit_length())
    return block if batch == 1 and block <= WIDEST_NORMED else 0


def qkv_work(rows: int, columns: int, batch: int) -> int:
    """Bytes of scratch of `norm_qkv_rope_store` with a matrix [rows, columns]."""
    programs = -(-rows // qkv_plan(rows, columns, batch).rows)
    return (programs if normed_block(columns, batch) else 1) * normed_bytes(columns, batch)


def gate_up_work(rows: int, columns: int, batch: int) -> int:
    """Bytes of scratch of `norm_gate_up` with a matrix [rows, columns]: also for its results as
    float32, which several vectors hand over in memory."""
    programs = -(-rows // 2 // GROUP)
    normed = (programs if normed_block(columns, batch) else 1) * normed_bytes(columns, batch)
    return normed + programs * batch * GROUP * 4


def normed_bytes(columns: int, batch: int) -> int:
    """Bytes of int8 codes of `batch` vectors, padded to whole steps, and of their factors."""
    width = -(-columns // STEP) * STEP
    return batch * (width + width // GROUP * 4)
