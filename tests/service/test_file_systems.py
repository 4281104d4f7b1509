"""What lies on this machine, and what may lie on a file server."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from wmrt.service import file_systems

MOUNTS = r"""21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:25 / /srv rw,nosuid - tmpfs tmpfs rw
31 21 0:26 / /srv/robots rw shared:2 - nfs4 server:/robots rw,hard
32 21 0:27 / /srv/own\040disk rw - xfs /dev/sdb rw
33 21 0:28 / /srv/twice rw - ext4 /dev/sdc rw
34 33 0:29 / /srv/twice rw - fuse.sshfs somewhere rw
"""


def test_the_innermost_mount_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "mountinfo"
    told.write_text(MOUNTS)
    monkeypatch.setattr(file_systems, "_MOUNTS", told)
    kinds = {
        "/": "ext4",
        "/srv": "tmpfs",
        "/srv/robots": "nfs4",
        "/srv/robots/a/b": "nfs4",
        "/srv/robots2": "tmpfs",
        "/srv/own disk/x": "xfs",
        "/srv/twice": "fuse.sshfs",
    }
    assert {name: file_systems.kind_of(Path(name)) for name in kinds} == kinds
    local = [name for name in kinds if file_systems.is_local(Path(name))]
    assert local == ["/", "/srv", "/srv/robots2", "/srv/own disk/x"]


def test_what_nobody_can_tell_is_not_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_systems, "_MOUNTS", tmp_path / "missing")
    assert file_systems.kind_of(tmp_path) is None and not file_systems.is_local(tmp_path)


def test_it_is_the_system_s_own_answer(tmp_path: Path) -> None:
    if shutil.which("findmnt") is None:
        pytest.skip("there is no findmnt; it comes with util-linux")
    asked = subprocess.run(
        ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if asked.returncode:
        pytest.skip(f"findmnt does not know {tmp_path}: {asked.stderr}")
    assert file_systems.kind_of(tmp_path) == asked.stdout.split()[-1]
