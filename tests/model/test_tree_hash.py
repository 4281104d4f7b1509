"""The tree hash against its definition, written out a second time."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from wmrt.model.tree_hash import CHUNK, tree_hash


def by_definition(data: bytes) -> str:
    leaves = b"".join(
        hashlib.sha256(b"\x00" + data[i : i + 4_194_304]).digest()
        for i in range(0, len(data), 4_194_304)
    )
    return hashlib.sha256(b"\x01" + len(data).to_bytes(8, "little") + leaves).hexdigest()


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
def test_equals_its_definition_for_any_thread_count(tmp_path: Path, size: int, seed: int) -> None:
    data = random.Random(seed).randbytes(size)
    file = tmp_path / "weights"
    file.write_bytes(data)
    assert {tree_hash(file, threads=n) for n in (1, 3)} | {tree_hash(file)} == {by_definition(data)}


def test_known_value_of_the_empty_file(tmp_path: Path) -> None:
    file = tmp_path / "empty"
    file.write_bytes(b"")
    assert tree_hash(file) == hashlib.sha256(b"\x01" + bytes(8)).hexdigest()


def test_swapped_chunks_and_any_flipped_bit_change_the_root(tmp_path: Path, seed: int) -> None:
    file = tmp_path / "weights"
    a, b = b"a" * CHUNK, b"b" * CHUNK
    file.write_bytes(a + b)
    root = tree_hash(file)
    file.write_bytes(b + a)
    assert tree_hash(file) != root
    data = bytearray(a + b)
    position = random.Random(seed).randrange(len(data) * 8)
    data[position // 8] ^= 1 << position % 8
    file.write_bytes(data)
    assert tree_hash(file) != root


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tree_hash(tmp_path / "none")
