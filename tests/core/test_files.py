"""Files that appear whole or not at all, and places that cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wmrt.core.errors import CheckpointError, UsageError
from wmrt.core.files import read_json, remove_leftovers, replacing, require_writable


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("before")
    with replacing(path) as temporary:
        temporary.write_text("after")
        assert path.read_text() == "before" and temporary.parent == tmp_path
    assert path.read_text() == "after" and names(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_a_block_that_fails_leaves_what_was_there(
    error: type[BaseException], tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_text("before")
    with pytest.raises(error), replacing(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "before" and names(tmp_path) == ["a"]


def test_a_full_disk_is_told_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(UsageError, match=r"a cannot be written: No space left on device$"):
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names(tmp_path) == []


def test_a_disk_that_fills_up_while_writing(tmp_path: Path) -> None:
    """The real thing, by a limit on the size of files."""
    script = """
import resource, sys
from pathlib import Path
from wmrt.core.errors import UsageError
from wmrt.core.files import replacing
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    with replacing(Path(sys.argv[1])) as temporary:
        temporary.write_bytes(bytes(20_000))
except UsageError as error:
    print(error)
"""
    path = tmp_path / "a"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{path} cannot be written: File too large\n"
    assert names(tmp_path) == []


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    kept = ["a", "a.b", ".ab.7", "b", ".a.b.7", ".a.b.7.0f"]
    for name in (*kept, ".a.123", ".a.4567", ".a.89.00ffab12"):
        (tmp_path / name).write_text("")
    with contextlib.suppress(KeyboardInterrupt), replacing(tmp_path / "a") as temporary:
        left = temporary.with_name(f"{temporary.name}0")  # as a killed process leaves it
        left.write_text("half")
        raise KeyboardInterrupt
    remove_leftovers(tmp_path / "a")
    assert names(tmp_path) == sorted(kept)


def test_processes_of_one_number_write_no_file_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers they are all number 1."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    path = tmp_path / "a"
    with replacing(path) as first:
        first.write_text("first")
        with replacing(path) as second:
            second.write_text("second")
        assert path.read_text() == "second" and first.read_text() == "first"
    assert path.read_text() == "first" and names(tmp_path) == ["a"]


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    require_writable(tmp_path)
    require_writable(tmp_path / "not" / "yet" / "there")
    assert names(tmp_path) == []


def test_what_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    for name in ("file", "lost"):
        with pytest.raises(UsageError, match=f"{name} cannot be written: it is no folder"):
            require_writable(tmp_path / name)
        with pytest.raises(UsageError, match=f"cannot be written in .*{name}: it is no folder"):
            require_writable(tmp_path / name / "x" / "y")


def test_a_folder_of_the_kernels_cannot_be_written() -> None:
    with pytest.raises(UsageError, match=r"^/proc/self/x cannot be written in /proc/self: "):
        require_writable(Path("/proc/self/x"))


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "cannot be read as JSON"), ("[1]", "expected an object, got list"), (None, "such file")],
)
def test_a_file_without_an_object_is_told_with_its_path(
    tmp_path: Path, text: str | None, told: str
) -> None:
    file = tmp_path / "c.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CheckpointError, match=rf"c\.json.*{told}"):
        read_json(file)
    file.write_text('{"a": 1}')
    assert read_json(file) == {"a": 1}
