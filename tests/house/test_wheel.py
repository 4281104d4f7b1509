"""What a wheel and a source archive hold: setuptools must follow the four links and build the C."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.house.tree import LINKED, ROOT, copy_source, files

LIBRARY, CODEC = "wmrt/kernels/native/_native.so", "wmrt/core/_codec.abi3.so"
#: What is built here.
BUILT = [CODEC, LIBRARY] if Path(sysconfig.get_path("include"), "Python.h").is_file() else [LIBRARY]


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


@pytest.fixture(scope="module")
def archived(built: Path) -> list[tarfile.TarInfo]:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        return archive.getmembers()


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
    suffixes = (".css", ".html", ".js", ".json", ".pyi")
    want = {"wmrt/py.typed"}.union(*(packaged(source, suffix) for suffix in suffixes))
    assert "wmrt/service/page/index.html" in want
    want |= {str(path.relative_to(source)) for path in files("wmrt/checkpoints", root=source)}
    assert want <= set(wheel.namelist())


def test_licence_and_command_are_in(wheel: zipfile.ZipFile) -> None:
    (info,) = {n.split("/")[0] for n in wheel.namelist() if ".dist-info" in n}
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert b"wmrt = wmrt.cli.main:main" in wheel.read(f"{info}/entry_points.txt")


def test_the_wheel_is_for_this_platform_and_every_python(wheel: zipfile.ZipFile) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert str(wheel.filename).endswith(f"-py3-none-{platform}.whl")


def test_the_wheel_holds_what_was_built_and_no_source_of_it(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    native = [name for name in names if "/native/" in name and not name.endswith(".py")]
    assert native == [LIBRARY]
    assert sorted(name for name in names if ".so" in name) == BUILT


def test_the_source_archive_holds_files_not_links(archived: list[tarfile.TarInfo]) -> None:
    assert [member.name for member in archived if member.issym() or member.islnk()] == []


def test_the_source_archive_holds_all_c_and_nothing_built(
    archived: list[tarfile.TarInfo], source: Path
) -> None:
    names = {member.name.split("/", 1)[1] for member in archived if member.isfile()}
    want = {str(path.relative_to(source)) for path in files("kernels", "wmrt/core", root=source)}
    assert len(want := {name for name in want if name.endswith((".c", ".h"))}) > 5
    assert {name for name in names if name.endswith((".c", ".h"))} == want
    assert [name for name in names if name.endswith((".so", ".o"))] == []
    assert "setup.py" in names and {name.split("/")[0] for name in names if "/" in name} == {
        "kernels",
        "wmrt",
        "wmrt.egg-info",
    }


def test_the_wheel_runs_on_its_own(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Without a compiler, and without anything beside it."""
    wheel.extractall(tmp_path)
    code = f"import {', '.join(f'wmrt.{name}' for name in LINKED)}; print(wmrt.__file__)"
    code += "; from wmrt.kernels.native import library; print(library.PATH, library.isa().name)"
    code += "; from wmrt.core.codec import codec; print(codec().choice.resolved)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "", "WMRT_ISA": "portable"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    package, native, codec = done.stdout.splitlines()
    assert codec == ("c" if CODEC in BUILT else "python")
    assert package == str(tmp_path / "wmrt" / "__init__.py")
    assert native == f"{tmp_path / LIBRARY} portable"


@pytest.mark.full
def test_an_installed_wheel_has_its_command_and_its_library(built: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    (path,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
    subprocess.run([*pip, "--no-index", "--no-deps", str(path)], check=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(tmp_path / "venv")}))
    # What wmrt needs, without its own editable install: a path in a .pth is not searched for .pth.
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    done = subprocess.run(
        [tmp_path / "venv/bin/wmrt", "doctor"],
        cwd=tmp_path,
        env={"PATH": "", "COLUMNS": "200", "WMRT_ISA": "portable"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "(by WMRT_ISA of portable" in done.stdout and os.fspath(ROOT) not in done.stdout
