"""Files that are cut off, damaged, missing, or none of ours."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from mcap.writer import Writer

from tests.control.recording.drives import plain_drive
from tests.control.support import STATE
from wmrt.control.recording.parts import PartWriter
from wmrt.control.recording.reader import Recording, recordings_in
from wmrt.control.recording.topics import HEAD, STEPS
from wmrt.core.errors import RecordingError

HEAD_OF_ONE = {"format": "1", "recording": "r"}
#: What MCAP has for a chunk.
CHUNK = 6


def written(path: Path, parts: int = 1, steps: int = 20) -> Path:
    """A recording of ``steps`` messages in as many files, in chunks of one."""
    writer = PartWriter(path, part_chunks=-(-steps // parts))
    writer.start(HEAD_OF_ONE)
    for number in range(steps):
        writer.write(STEPS, f'{{"step": {number}, "noise": "{random.random()}"}}', number, 0)
        writer.flush()
    writer.end({"steps": str(steps)})
    return path


def numbers(path: Path) -> tuple[list[int], bool]:
    """Steps that can be read, and whether there was an end."""
    recording = Recording(path)
    return [message["step"] for _, message in recording.items()], recording.end is not None


def test_a_file_that_is_cut_off_anywhere_gives_what_is_whole(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.mcap").read_bytes()
    lengths = set()
    for size in range(len(whole) - 1, 0, -37):
        (tmp_path / "b.mcap").write_bytes(whole[:size])
        try:
            read, ended = numbers(tmp_path / "b.mcap")
        except RecordingError as error:
            assert "is no recording of wmrt" in str(error) and size < 400
            continue
        assert read == list(range(len(read)))
        assert len(read) == 20 or not ended
        lengths.add(len(read))
    assert lengths == set(range(21))


def test_a_file_with_a_wrong_byte_never_gives_another_message(seed: int, tmp_path: Path) -> None:
    """Each byte of the data section is covered by a checksum, or its change does not matter."""
    original = written(tmp_path / "a.mcap")
    whole, wanted = original.read_bytes(), list(Recording(original).items())
    rng = random.Random(seed)
    refused = 0
    for _ in range(300):
        at = rng.randrange(len(whole))
        spoiled = bytearray(whole)
        spoiled[at] ^= 1 << rng.randrange(8)
        (tmp_path / "b.mcap").write_bytes(spoiled)
        try:
            read = list(Recording(tmp_path / "b.mcap").items())
        except RecordingError:
            refused += 1
            continue
        assert all(item in wanted for item in read)
    assert refused > 60  # about a third of the bytes are data: 105 of 300, give or take 8


@pytest.mark.parametrize("bit", range(8))
def test_a_chunk_that_is_taken_for_something_else_hides_no_message(
    bit: int, tmp_path: Path
) -> None:
    """The first one, which names the channels."""
    original = written(tmp_path / "a.mcap")
    data, wanted = bytearray(original.read_bytes()), list(Recording(original).items())
    at = 8  # after the magic; each record begins with its kind and its length
    while data[at] != CHUNK:
        at += 9 + int.from_bytes(data[at + 1 : at + 9], "little")
    data[at] ^= 1 << bit
    original.write_bytes(data)
    recording = Recording(original)
    try:
        assert all(item in wanted for item in recording.items())
    except RecordingError as error:
        assert "damaged" in str(error)
    else:
        assert recording.end is None  # which says that there may have been more


def test_parts_are_read_in_order(tmp_path: Path) -> None:
    path = written(tmp_path / "a.mcap", parts=12, steps=24)
    assert (tmp_path / "a.12.mcap").is_file()
    assert numbers(path) == (list(range(24)), True)


def test_a_part_that_is_missing_ends_it(tmp_path: Path) -> None:
    path = written(tmp_path / "a.mcap", parts=4)
    (tmp_path / "a.3.mcap").unlink()
    assert numbers(path) == (list(range(10)), False)


def test_a_part_of_another_recording_does_not_belong(tmp_path: Path) -> None:
    path = written(tmp_path / "a.mcap", parts=4)
    other = PartWriter(tmp_path / "b.mcap")
    other.start({**HEAD_OF_ONE, "recording": "other"})
    other.end({})
    (tmp_path / "b.mcap").replace(tmp_path / "a.3.mcap")
    assert numbers(path) == (list(range(10)), False)


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    written(tmp_path / "a.b.mcap", parts=4)
    with pytest.raises(RecordingError, match=r"is part 3 of a recording; give its first, a\.b\.mc"):
        Recording(tmp_path / "a.b.3.mcap")


def test_files_that_are_no_recordings(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    with pytest.raises(RecordingError, match="cannot be read: No such file"):
        Recording(path)
    for content in (b"", b"text", b"\x89MCAP0\r\n", bytes(1000)):
        path.write_bytes(content)
        with pytest.raises(RecordingError, match=r"a\.mcap (is no recording of wmrt|is damaged)"):
            Recording(path)
    with open(path, "wb") as file:
        writer = Writer(file)
        writer.start()
        writer.add_metadata("other", {"a": "b"})
        writer.finish()
    with pytest.raises(RecordingError, match="is no recording of wmrt"):
        Recording(path)
    for head, said in [({"format": "2"}, "format 2, this version reads 1"), ({}, "format None")]:
        with open(path, "wb") as file:
            writer = Writer(file)
            writer.start()
            writer.add_metadata(HEAD, head)
            writer.finish()
        with pytest.raises(RecordingError, match=said):
            Recording(path)
    with open(path, "wb") as file:
        writer = Writer(file)
        writer.start()
        writer.add_metadata(HEAD, {"format": "1"})
        writer.finish()
    with pytest.raises(RecordingError, match="is no recording of wmrt"):
        Recording(path)


@pytest.mark.parametrize("text", ["{", "[1]", "3", "[" * 100_000], ids=len)
def test_a_message_that_is_no_object(text: str, tmp_path: Path) -> None:
    writer = PartWriter(tmp_path / "a.mcap")
    writer.start(HEAD_OF_ONE)
    writer.write(STEPS, text, 0, 0)
    writer.end({})
    with pytest.raises(RecordingError, match="a message is no JSON"):
        list(Recording(tmp_path / "a.mcap").items())


def test_a_head_that_lacks_something(tmp_path: Path) -> None:
    recording = Recording(written(tmp_path / "a.mcap"))
    with pytest.raises(RecordingError, match="no limits in its head"):
        recording.data("limits")


def test_the_recordings_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no recording in it"):
        recordings_in(tmp_path)
    plain_drive(tmp_path / "b.mcap", [STATE])
    written(tmp_path / "a.mcap", parts=4)
    (tmp_path / "notes.txt").write_text("")
    assert [path.name for path in recordings_in(tmp_path)] == ["a.mcap", "b.mcap"]
    (tmp_path / "c.mcap").write_bytes(b"x")
    with pytest.raises(RecordingError, match=r"c\.mcap"):
        recordings_in(tmp_path)
