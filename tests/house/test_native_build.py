"""setup.py builds the same library everywhere, and says what to do when it cannot."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.house.tree import copy_source

LIBRARY, CODEC = "kernels/native/_native.so", "wmrt/core/_codec.abi3.so"
#: Whether this Python has what the codec is built with.
HEADERS = Path(sysconfig.get_path("include"), "Python.h").is_file()


def build(source: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``setup.py build_ext --inplace`` there; CC and WMRT_NATIVE only as given."""
    outer = {k: v for k, v in os.environ.items() if k not in ("CC", "WMRT_NATIVE", "CFLAGS")}
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=source,
        env={**outer, **environment},
        capture_output=True,
        text=True,
    )


def simplify(source: Path) -> None:
    """Leave only the C that is quick to compile."""
    for path in (source / "kernels/native").glob("*.c"):
        if path.name != "cpu.c":
            path.unlink()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return copy_source(tmp_path / "source")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"PATH": ""}, "there is no C compiler (gcc, clang or cc)"),
        ({"CC": "/nowhere/cc"}, "/nowhere/cc does not run: No such file or directory"),
        ({"CC": "false"}, "failed: false -std=c11"),
    ],
)
def test_no_compiler_says_what_to_do(environment: dict[str, str], said: str, source: Path) -> None:
    done = build(source, **environment)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("wmrt's native kernels cannot be built: ") and said in last
    assert "apt install gcc" in last and "WMRT_NATIVE=0" in last
    assert not (source / LIBRARY).exists() and not (source / CODEC).exists()


def test_it_can_be_left_out(source: Path) -> None:
    assert build(source, WMRT_NATIVE="0", PATH="").returncode == 0
    assert not (source / LIBRARY).exists() and not (source / CODEC).exists()
    done = build(source, WMRT_NATIVE="no")
    assert done.returncode == 1 and "WMRT_NATIVE='no': 1 to build" in done.stderr


@pytest.mark.full
def test_without_it_the_wheel_is_for_every_platform(source: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "bdist_wheel"]
    subprocess.run(command, cwd=source, env={**os.environ, "WMRT_NATIVE": "0"}, check=True)
    (path,) = (source / "dist").glob("*.whl")
    assert path.name.endswith("-py3-none-any.whl")


def test_it_is_built_again_only_after_a_change(source: Path) -> None:
    simplify(source)
    library = source / LIBRARY
    assert build(source).returncode == 0
    first = library.stat().st_mtime_ns
    assert build(source, CC="false").returncode == 0 and library.stat().st_mtime_ns == first
    os.utime(source / "kernels/native/wmrt.h")
    assert build(source, CC="false").returncode == 1


@pytest.mark.skipif(not HEADERS, reason="there is no Python.h: apt install python3-dev")
def test_the_codec_is_built_beside_it_and_again_only_after_a_change(source: Path) -> None:
    simplify(source)
    codec = source / CODEC
    assert build(source).returncode == 0
    first = codec.stat().st_mtime_ns
    assert build(source, CC="false").returncode == 0 and codec.stat().st_mtime_ns == first
    os.utime(source / "wmrt/core/native/codec.h")
    assert build(source, CC="false").returncode == 1


def test_without_python_s_headers_the_codec_is_left_out_and_said_to_be(source: Path) -> None:
    simplify(source)
    script = source / "setup.py"
    text = script.read_text()
    assert 'HEADERS = sysconfig.get_path("include")' in text
    script.write_text(text.replace('sysconfig.get_path("include")', '"/nowhere/include"'))
    done = build(source)
    assert done.returncode == 0, done.stderr
    assert "codec in C is left out: there is no Python.h in /nowhere/include" in done.stderr
    assert "apt install python3-dev" in done.stderr
    assert (source / LIBRARY).exists() and not (source / CODEC).exists()


@pytest.mark.full
def test_the_same_source_gives_the_same_bytes_anywhere(tmp_path: Path) -> None:
    digests = set()
    for folder, flags in (("a", ""), ("a/longer/one", "-O0 -ffast-math -march=native")):
        source = copy_source(tmp_path / folder)
        assert build(source, CFLAGS=flags, LDFLAGS="-Wl,-O0").returncode == 0
        built = [source / name for name in (LIBRARY, CODEC) if HEADERS or name == LIBRARY]
        digests.add(tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in built))
    assert len(digests) == 1
