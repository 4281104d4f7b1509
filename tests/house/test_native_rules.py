"""Rules of the house for C: short files, few and declared names, no surprise at run time."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from wmrt.kernels.native import library as native

FOLDER, CODEC = ROOT / "kernels/native", ROOT / "wmrt/core/native"
SOURCES, CODEC_SOURCES = sorted(FOLDER.glob("*.c")), sorted(CODEC.glob("*.c"))
FILES = [path for folder in (FOLDER, CODEC) for end in "ch" for path in folder.glob(f"*.{end}")]
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
MAX_WIDTH = 100
#: What may allocate, and that only when something is created.
ALLOCATES = {"pool.c"}
ALLOCATORS = re.compile(
    r"\b(?:malloc|calloc|realloc|aligned_alloc|posix_memalign|mmap|alloca)\s*\("
)
FORBIDDEN = re.compile(
    r"\b(?:\w*printf|f?puts|putchar|perror|exit|_exit|abort|assert|getenv|system|signal|rand|time"
    r"|setlocale|sleep|usleep)\s*\("
)
OWN_INCLUDES = re.compile(r'#\s*include\s+"([^"]+)"')
#: System headers; those in the third line inside files of one architecture, and in the last one
#: the codec's alone.
SYSTEM = {
    *("errno.h", "limits.h", "math.h", "poll.h", "pthread.h", "sched.h", "signal.h", "stdatomic.h"),
    *("stdbool.h", "stddef.h", "stdint.h", "stdlib.h", "string.h", "time.h", "sys/auxv.h"),
    *("cpuid.h", "immintrin.h", "arm_neon.h"),
    *("Python.h", "sys/random.h", "sys/socket.h"),
}
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wvla", "-Wstrict-prototypes"]
WARNINGS += ["-Wmissing-prototypes", "-Wpointer-arith", "-Werror"]


def code(path: Path) -> str:
    """A C file without comments and strings, with as many lines."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found.group().count("\n")

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, path.read_text(), flags=re.S)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_form(path: Path) -> None:
    text = path.read_text("utf-8")
    lines = text.splitlines()
    assert len(lines) < MAX_FILE_LINES, "split it"
    assert text.isascii() and "\t" not in text and "\r" not in text and text.endswith("\n")
    for number, line in enumerate(lines, 1):
        assert len(line) <= MAX_WIDTH and line == line.rstrip(), f"{path.name}:{number}"
        assert not re.search(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b", line), (
            f"{path.name}:{number}"
        )
    assert text.startswith("/*"), "begin with what this file is"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_functions_are_short(path: Path) -> None:
    lines = code(path).splitlines()
    begin = 0
    for number, line in enumerate(lines, 1):
        if line == "{":
            begin = number
        if line == "}" and begin:
            assert number - begin + 1 <= MAX_FUNCTION_LINES, f"{path.name}:{begin}: split it"
            begin = 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_prints_exits_or_allocates(path: Path) -> None:
    text = code(path)
    assert not (found := FORBIDDEN.search(text)), f"{path.name}: {found}"
    if path.name not in ALLOCATES:
        assert not (found := ALLOCATORS.search(text)), f"{path.name}: {found}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_includes(path: Path) -> None:
    text = path.read_text("utf-8")
    assert set(re.findall(r"#\s*include\s+<([^>]+)>", text)) <= SYSTEM
    assert all((path.parent / name).is_file() for name in OWN_INCLUDES.findall(text))


def names(*options: str) -> set[str]:
    """Symbols of the built library."""
    command = ["nm", "--dynamic", "--format=posix", *options, str(native.PATH)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {line.split()[0].split("@")[0] for line in done.stdout.splitlines()}


def declared() -> set[str]:
    """Functions that the headers export."""
    found: set[str] = set()
    for path in FOLDER.glob("*.h"):
        found |= set(re.findall(r"^WMRT_API [^;{]*?\b(\w+)\(", path.read_text(), re.MULTILINE))
    return found


def test_exactly_what_is_declared_is_exported() -> None:
    exported = names("--defined-only")
    assert exported == declared()
    assert all(name.startswith("wmrt_") for name in exported)


def test_the_c_library_is_all_it_calls() -> None:
    called = names("--undefined-only")
    assert not {name for name in called if FORBIDDEN.match(f"{name}(")}
    done = subprocess.run(["ldd", str(native.PATH)], check=True, capture_output=True, text=True)
    needed = {Path(line.split()[0]).name.split(".")[0] for line in done.stdout.splitlines()}
    # vdso and the loader itself; before glibc 2.34 threads are a library of their own
    assert {n for n in needed if not n.startswith(("linux-", "ld-"))} <= {
        "libc",
        "libm",
        "libpthread",
    }


COMPILERS = ("gcc", "clang")
#: Of the codec: Python's own tables hold functions as pointers to objects.
HEADERS = sysconfig.get_path("include")
FOR_PYTHON = ["-DPy_LIMITED_API=0x030a0000", "-isystem", HEADERS, "-Wno-pedantic"]


def require(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}: make setup-system installs it")


def require_headers() -> None:
    if not Path(HEADERS, "Python.h").is_file():
        pytest.skip(f"there is no Python.h in {HEADERS}: apt install python3-dev")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_it_compiles_without_a_warning(compiler: str) -> None:
    require(compiler)
    command = [compiler, "-std=c11", "-O1", *WARNINGS, "-fsyntax-only", *map(str, SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4_000]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_codec_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    """Also of the optimizer: it is small."""
    require(compiler)
    require_headers()
    command = [compiler, "-std=c11", "-O3", "-fPIC", *WARNINGS, *FOR_PYTHON, "-shared"]
    command += [*map(str, CODEC_SOURCES), "-o", str(tmp_path / "codec.so")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4_000]


@pytest.mark.full
@pytest.mark.parametrize("compiler", COMPILERS)
def test_it_compiles_without_a_warning_of_the_optimizer(compiler: str, tmp_path: Path) -> None:
    require(compiler)
    for path in SOURCES:
        target = str(tmp_path / "x.o")
        command = [compiler, "-std=c11", "-O3", "-fPIC", *WARNINGS, "-c", str(path), "-o", target]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{path.name}: {done.stderr[:4_000]}"
