"""Resident bytes, against memory taken and files mapped on purpose."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from wmrt.quant.ledger import MISSING, Figure
from wmrt.quant.resident import Resident, measure_resident, peak_resident

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps: Linux only")

LISTING = """\
00400000-00500000 r-xp 00000000 08:01 1234                               /usr/bin/python3
Rss:                1000 kB
Pss:                 500 kB
Private_Dirty:         0 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Rss:                 300 kB
Pss:                 300 kB
Private_Dirty:       300 kB
7f1000000000-7f1000100000 r--p 00000000 08:01 99                         {weights}
Rss:                 200 kB
Pss:                 100 kB
Private_Dirty:        40 kB
7f2000000000-7f2000100000 r--p 00000000 08:01 98                         {other}
Rss:                 700 kB
Pss:                 700 kB
Private_Dirty:         0 kB
"""


def test_a_listing_is_summed_as_defined(tmp_path: Path) -> None:
    weights = tmp_path / "model with spaces.safetensors"
    smaps = tmp_path / "smaps"
    smaps.write_text(LISTING.format(weights=weights, other=tmp_path / "other"))
    got = measure_resident([weights], smaps)
    assert got.private_dirty == Figure(300 * 1024, "measured")
    assert got.mapped_weights == Figure(200 * 1024, "measured")  # the written 40 count once
    assert got.resident == Figure(500 * 1024, "measured")
    assert got.rss == Figure(2200 * 1024, "measured") and got.pss == Figure(1600 * 1024, "measured")


def test_a_deleted_file_is_still_mapped(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    weights = tmp_path / "w"
    smaps.write_text(LISTING.format(weights=f"{weights} (deleted)", other="/none"))
    assert measure_resident([weights], smaps).mapped_weights.bytes == 200 * 1024


def test_no_account_is_missing(tmp_path: Path) -> None:
    got = measure_resident(smaps=tmp_path / "absent")
    assert got == Resident(MISSING, MISSING, MISSING, MISSING)
    assert got.resident == MISSING and got.since(got) == MISSING


@linux
def test_memory_taken_is_seen() -> None:
    before = measure_resident()
    taken = bytearray(64 * MIB)
    taken[:: mmap.PAGESIZE] = b"\1" * len(range(0, len(taken), mmap.PAGESIZE))
    grown = measure_resident().since(before).bytes
    assert grown is not None and 63 * MIB <= grown <= 70 * MIB
    del taken
    after = measure_resident().since(before).bytes
    assert after is not None and after <= 8 * MIB


@linux
def test_mapped_weights_are_seen_when_read(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"\1" * (16 * MIB))
    link = tmp_path / "link"
    link.symlink_to(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        measure_resident([link])  # its own buffers: 1.3 MB in a process with many mappings
        before = measure_resident([link])
        assert sum(view[:: mmap.PAGESIZE]) == 16 * MIB // mmap.PAGESIZE
        after = measure_resident([link])
        assert after.mapped_weights == Figure(16 * MIB, "measured")
        assert measure_resident().mapped_weights == Figure(0, "measured")
        grown = after.since(before).bytes
        assert grown is not None and grown <= 16 * MIB + MIB


@linux
def test_the_peak_is_at_least_what_was_taken() -> None:
    before = measure_resident().rss.bytes
    taken = bytearray(32 * MIB)
    taken[:: mmap.PAGESIZE] = b"\1" * len(range(0, len(taken), mmap.PAGESIZE))
    del taken
    peak = peak_resident()
    assert peak.how == "measured" and before is not None
    assert (peak.bytes or 0) >= before + 31 * MIB


def test_no_account_has_no_peak(tmp_path: Path) -> None:
    assert peak_resident(tmp_path / "absent") == MISSING
    (tmp_path / "status").write_text("Name:\tpython\n")
    assert peak_resident(tmp_path / "status") == MISSING
