"""Builds what is in C, the native kernels and the codec; everything else is in pyproject.toml.

The kernels are plain C that ctypes loads (kernels/native/wmrt.h is their interface), and the codec
is a module of Python's stable interface, so one build serves every Python. Flags are these and no
others: what this Python was built with (`sysconfig`) and CFLAGS do not reach them. CC names the
compiler. WMRT_NATIVE=0 leaves both out. Without Python's headers the codec is left out, and this
says so: the one in Python does the same, slower.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

COMPILE = ["-std=c11", "-O3", "-g0", "-fPIC", "-pthread", "-fvisibility=hidden"]
COMPILE += ["-ffp-contract=off"]  # same bits from every compiler and instruction set
LINK = ["-shared", "-pthread", "-Wl,-z,defs", "-lm"]
CODEC = "wmrt.core._codec"
STABLE = ["-DPy_LIMITED_API=0x030a0000"]  # of 3.10, the oldest Python there is a wmrt for
HEADERS = sysconfig.get_path("include")


class BuildNative(build_ext):
    """Compiles without any flags of Python's, and names no version of it."""

    def get_ext_filename(self, fullname: str) -> str:
        suffix = ".abi3.so" if fullname.endswith("_codec") else ".so"
        return os.path.join(*fullname.split(".")) + suffix

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        made_of = [*map(Path, ext.sources), *map(Path, ext.depends), Path(__file__)]
        if not self.force and target.exists():
            if target.stat().st_mtime > max(path.stat().st_mtime for path in made_of):
                return
        objects = Path(self.build_temp, *Path(ext.sources[0]).parent.parts)
        objects.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        compiler = find_compiler()
        made = [str(objects / Path(source).with_suffix(".o").name) for source in ext.sources]
        flags = [*STABLE, "-isystem", HEADERS] if ext.name == CODEC else []
        link = LINK if ext.name != CODEC else ["-shared"]  # Python itself has what it calls
        commands = [
            [*compiler, *COMPILE, *flags, "-c", source, "-o", object_]
            for source, object_ in zip(ext.sources, made, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(execute, commands))
        execute([*compiler, *made, *link, "-o", str(target)])


class PlatformWheel(bdist_wheel):
    """For one platform, as any wheel with native code, but for every Python 3: one that cannot load
    the codec in C has the one in Python."""

    def get_tag(self) -> tuple[str, str, str]:
        tag: tuple[str, str, str] = super().get_tag()
        return tag if self.root_is_pure else ("py3", "none", tag[2])


def find_compiler() -> list[str]:
    """CC, or the first of gcc, clang and cc that is there."""
    given = shlex.split(os.environ.get("CC", ""))
    if given:
        return given
    for name in ("gcc", "clang", "cc"):
        if shutil.which(name):
            return [name]
    raise SystemExit(advice("there is no C compiler (gcc, clang or cc)"))


def execute(command: list[str]) -> None:
    """Run one compiler command, or end with what to do."""
    try:
        done = subprocess.run(command, check=False)
    except OSError as error:
        raise SystemExit(advice(f"{command[0]} does not run: {error.strerror}")) from None
    if done.returncode:
        raise SystemExit(advice(f"failed: {shlex.join(command)}"))


def advice(cause: str) -> str:
    return (
        f"wmrt's native kernels cannot be built: {cause}. Install a C compiler (Debian, Ubuntu: "
        "apt install gcc libc6-dev; Fedora: dnf install gcc), or set WMRT_NATIVE=0 to install "
        "without them; the native executor is then refused, and the codec is the one in Python."
    )


def native() -> list[Extension]:
    """What is to be built; nothing where it is not wanted or not possible."""
    wanted = os.environ.get("WMRT_NATIVE", "1")
    if wanted not in ("0", "1"):
        raise SystemExit(f"WMRT_NATIVE={wanted!r}: 1 to build the native kernels, 0 not to")
    if wanted == "0":
        return []
    if not sys.platform.startswith("linux"):
        print(f"wmrt: no native kernels on {sys.platform}: they need Linux", file=sys.stderr)
        return []
    sources = sorted(glob("kernels/native/*.c"))
    depends = sorted(glob("kernels/native/*.h"))
    found = [Extension("wmrt.kernels.native._native", sources=sources, depends=depends)]
    if why := no_codec():
        print(f"wmrt: the codec in C is left out: {why}", file=sys.stderr)
        return found
    sources, depends = (sorted(glob(f"wmrt/core/native/*.{end}")) for end in "ch")
    return [*found, Extension(CODEC, sources=sources, depends=depends)]


def no_codec() -> str:
    """Why the codec in C cannot be built for this Python; empty if it can."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return f"it is for CPython with its interpreter lock, not {sys.implementation.cache_tag}"
    if not Path(HEADERS, "Python.h").is_file():
        return f"there is no Python.h in {HEADERS} (Debian, Ubuntu: apt install python3-dev)"
    return ""


setup(
    ext_modules=native(),
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)
