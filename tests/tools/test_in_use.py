"""What is in use: it grows by what is kept, and by nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.core.heaps import heaps
from tools.in_use import BLOCK, USED, bound, in_use

glibc = pytest.mark.skipif(
    heaps() is None or sys.implementation.name != "cpython", reason="not glibc's malloc"
)


@glibc
def test_what_is_kept_is_in_use_and_what_is_let_go_is_not() -> None:
    before = in_use()
    if before is None:
        pytest.skip("glibc older than 2.33 has no mallinfo2")
    kept = [bytes(1000 + i % 7) for i in range(10_000)], [bytes(60 + i % 7) for i in range(10_000)]
    more = in_use()
    assert more is not None
    assert 10e6 < more[0] - before[0] < 12e6 and 20_000 <= more[1] - before[1] < 20_500
    del kept
    after = in_use()
    assert after is not None
    assert abs(after[0] - before[0]) < 500_000 and abs(after[1] - before[1]) < 500


def test_the_bound_counts_blocks_at_their_largest(tmp_path: Path) -> None:
    path = (tmp_path / "wmrt.sock").with_suffix(USED)
    with pytest.raises(OSError, match=r"wmrt\.used"):
        bound(path)
    path.write_text(json.dumps([1000, 3]))
    assert bound(path) == 1000 + 3 * BLOCK
