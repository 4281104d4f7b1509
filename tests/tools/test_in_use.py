"""What is in use: it grows by what is kept, and by nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.heaps import heaps
from tools.in_use import BLOCK, USED, bound

glibc = pytest.mark.skipif(
    heaps() is None or sys.implementation.name != "cpython", reason="not glibc's malloc"
)


#: In a process of its own: another test's threads and caches would be counted with it.
_KEPT = """
import json
from tools.in_use import in_use
told = [in_use(), in_use()]
kept = [bytes(1000 + i % 7) for i in range(10_000)], [bytes(60 + i % 7) for i in range(10_000)]
told.append(in_use())
del kept
told.append(in_use())
print(json.dumps(told[1:]))
"""


@glibc
def test_what_is_kept_is_in_use_and_what_is_let_go_is_not() -> None:
    run = subprocess.run([sys.executable, "-c", _KEPT], capture_output=True, text=True, check=True)
    before, more, after = json.loads(run.stdout)
    if before is None:
        pytest.skip("glibc older than 2.33 has no mallinfo2")
    assert 10e6 < more[0] - before[0] < 11e6 and 20_000 <= more[1] - before[1] < 20_100
    assert abs(after[0] - before[0]) < 200_000 and abs(after[1] - before[1]) < 100


def test_the_bound_counts_blocks_at_their_largest(tmp_path: Path) -> None:
    path = (tmp_path / "wmrt.sock").with_suffix(USED)
    with pytest.raises(OSError, match=r"wmrt\.used"):
        bound(path)
    path.write_text(json.dumps([1000, 3]))
    assert bound(path) == 1000 + 3 * BLOCK
