"""What a wheel and a source archive hold: setuptools must follow the four links."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.house.tree import LINKED, ROOT, copy_source, files


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build in: building in place would pick up whatever build/ still holds."""
    return copy_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def built(source: Path) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(source / "dist")]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


def packaged(source: Path, suffix: str) -> set[str]:
    """Names in a wheel of the source's files with this suffix."""
    names = {str(path.relative_to(source)) for path in files("wmrt", suffix=suffix, root=source)}
    for folder in LINKED:
        found = files(folder, suffix=suffix, root=source)
        names |= {f"wmrt/{path.relative_to(source)}" for path in found}
    return names


def test_top_level_is_wmrt_alone(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"wmrt"}
    assert len(top) == 2


def test_every_python_file_is_in(wheel: zipfile.ZipFile, source: Path) -> None:
    want = packaged(source, ".py")
    assert all(f"wmrt/{folder}/__init__.py" in want for folder in LINKED)
    assert {name for name in wheel.namelist() if name.endswith(".py")} == want


def test_data_files_are_in(wheel: zipfile.ZipFile, source: Path) -> None:
    want = {"wmrt/py.typed", *packaged(source, ".html"), *packaged(source, ".json")}
    want |= {str(path.relative_to(source)) for path in files("wmrt/checkpoints", root=source)}
    assert want <= set(wheel.namelist())


def test_licence_and_command_are_in(wheel: zipfile.ZipFile) -> None:
    (info,) = {n.split("/")[0] for n in wheel.namelist() if ".dist-info" in n}
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert b"wmrt = wmrt.cli.main:main" in wheel.read(f"{info}/entry_points.txt")


def test_the_source_archive_holds_files_not_links(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        links = [member.name for member in archive if member.issym() or member.islnk()]
    assert links == []


def test_the_wheel_runs_on_its_own(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = f"import {', '.join(f'wmrt.{name}' for name in LINKED)}; print(wmrt.__file__)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "wmrt" / "__init__.py")
