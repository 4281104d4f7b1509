"""Builds and runs kernels of an instruction set that this processor may not have.

AVX-512 by SIMDe: the same source lines, compiled against an emulation of the intrinsics. NEON by
QEMU: the same machine code. On a processor that has the set, neither.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.house.tree import ROOT
from wmrt.kernels.native.library import ACTIVATIONS, FORMATS
from wmrt.quant import QuantizedTensor
from wmrt.quant.layouts import to_layout

NATIVE = ROOT / "kernels/native"
HERE = Path(__file__).parent / "emulated"
FLAGS = ["-std=c11", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off"]  # setup.py's
STRICT = ["-O3", "-Wall", "-Wextra", "-Werror"]
SETS = {"avx512-vnni": 2, "neon-dotprod": 3}
PORTABLE = 0
UNTOUCHED = np.uint32(0xEEEEEEEE)
_REQUEST = struct.Struct("<10if i2q")  # the driver's `request`


def tool(name: str) -> str:
    """The path of a program of a Debian package; its absence skips the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}: make setup-system installs it")
    return found


def has_avx512() -> bool:
    flags = Path("/proc/cpuinfo").read_text("utf-8").split()
    return {"avx512f", "avx512bw", "avx512vl", "avx512_vnni"} <= set(flags)


@dataclass(frozen=True)
class Target:
    """How an instruction set is compiled and run here; `extra` flags are for its own files."""

    isa: str
    compiler: str
    runner: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    link: tuple[str, ...] = ()


def target(isa: str) -> Target:
    """The way there is on this machine; skips where none is installed."""
    arm = platform.machine() == "aarch64"
    if isa == "neon-dotprod":
        if arm and "asimddp" in Path("/proc/cpuinfo").read_text("utf-8").split():
            return Target(isa, tool("gcc"))
        qemu = tool("qemu-aarch64")
        return Target(isa, tool("aarch64-linux-gnu-gcc"), (qemu, "-cpu", "max"))
    if arm:
        pytest.skip("AVX-512 is emulated by x86-64 processors only")
    link = ("-Wl,--defsym=wmrt_kernels_avx2=0",)  # dispatch.c names them, the driver does not
    if has_avx512():
        return Target(isa, tool("gcc"), link=link)
    if not Path("/usr/include/simde/x86/avx512.h").exists():
        pytest.skip("there is no SIMDe: make setup-system installs it")
    header = f'-DWMRT_AVX512_HEADER="{HERE / "avx512.h"}"'
    # Out of line and hardly optimised: 1.5 s of compiling in place of 12, for avx512.c.
    extra = (header, "-mavx2", "-mfma", "-mf16c", "-Wno-psabi", "-DSIMDE_NO_INLINE", "-Og")
    return Target(isa, tool("gcc"), (), extra, link)


def objects(config: pytest.Config) -> Path:
    """The folder of object files that outlives the run."""
    return config.cache.mkdir("wmrt_objects")


def compiled(compiler: str, flags: list[str], source: Path, cache: Path) -> Path:
    """The object file of a source, kept in `cache` under what it was made of."""
    made_of = [*NATIVE.glob("*.h"), *HERE.glob("*.h"), source]
    version = subprocess.run([compiler, "-v"], check=True, capture_output=True).stderr
    parts = [version, repr(flags).encode(), *(path.read_bytes() for path in sorted(made_of))]
    key = hashlib.blake2b(b"\0".join(parts), digest_size=12).hexdigest()
    made = cache / f"{source.stem}-{key}.o"
    if not made.exists():
        new = cache / f"{source.stem}-{key}-{os.getpid()}.o"  # another process may make it too
        command = [compiler, *FLAGS, *flags, "-I", str(NATIVE), "-c", str(source), "-o", str(new)]
        subprocess.run(command, check=True)
        new.replace(made)
    return made


def compile_objects(to: Target, cache: Path) -> list[str]:
    """Object files of the driver and of what it needs of the library."""
    names = ["dispatch", "cpu", "portable", "portable_packed", "portable_prepare"]
    sources = [*(NATIVE / f"{name}.c" for name in names), HERE / "driver.c"]
    made = [compiled(to.compiler, ["-O2"], source, cache) for source in sources]
    for source in sorted(NATIVE.glob(f"{to.isa.split('-')[0]}*.c")):
        made.append(compiled(to.compiler, [*STRICT, *to.extra], source, cache))
    return [str(path) for path in made]


@dataclass
class Driver:
    """Collects requests, runs them in one process and hands out the results."""

    command: tuple[str, ...]
    isa: int
    folder: Path
    _sent: list[bytes] = field(default_factory=list)
    _shapes: list[tuple[tuple[int, ...], Any]] = field(default_factory=list)

    @classmethod
    def build(cls, isa: str, folder: Path, cache: Path) -> Driver:
        to = target(isa)
        program = str(folder / "driver")
        command = [to.compiler, *compile_objects(to, cache), "-static", *to.link]
        subprocess.run([*command, "-o", program], check=True)
        return cls((*to.runner, program), SETS[isa], folder)

    def multiply(
        self,
        weight: Weight,
        x: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        rows: tuple[int, int] | None = None,
        isa: int | None = None,
    ) -> None:
        """y[batch, n] of rows [begin, end), as bits: NaN and what is left untouched included."""
        begin, end = rows or (0, weight.n)
        head = self._head(0, weight, x, isa, begin, end, bias is not None)
        bytes_of_bias = b"" if bias is None else bias.numpy().tobytes()
        self._sent += [head, weight.rows, bytes_of_bias, x.numpy().tobytes()]
        self._shapes.append(((len(x), weight.n), np.uint32))

    def prepare(self, weight: Weight, x: torch.Tensor, size: int, isa: int | None = None) -> None:
        """uint8[batch, size] of prepared rows of x."""
        self._sent += [self._head(1, weight, x, isa), x.numpy().tobytes()]
        self._shapes.append(((len(x), size), np.uint8))

    def stream(self, data: bytes) -> None:
        head = _REQUEST.pack(2, self.isa, *[0] * 8, 0.0, 0, 0, len(data))
        self._sent += [head, data]
        self._shapes.append(((1,), np.float64))

    def _head(
        self,
        operation: int,
        weight: Weight,
        x: torch.Tensor,
        isa: int | None,
        begin: int = 0,
        end: int = 0,
        biased: bool = False,
    ) -> bytes:
        kind = (FORMATS[weight.format], ACTIVATIONS[weight.activation])
        numbers = (operation, self.isa if isa is None else isa, weight.n, x.shape[1], *kind)
        return _REQUEST.pack(
            *numbers, len(x), begin, end, biased, weight.global_scale, 0, weight.stride, 0
        )

    def run(self) -> list[NDArray[Any]]:
        """What was asked for since the last run, in order."""
        asked, given = self.folder / "requests", self.folder / "results"
        asked.write_bytes(b"".join(self._sent))
        shapes, self._sent, self._shapes = self._shapes, [], []
        subprocess.run([*self.command, str(asked), str(given)], check=True)
        data, at, found = bytearray(given.read_bytes()), 0, []
        for shape, kind in shapes:
            count = int(np.prod(shape))
            found.append(np.frombuffer(data, kind, count, at).reshape(shape))
            at += found[-1].nbytes
        assert at == len(data)
        return found


@dataclass(frozen=True)
class Weight:
    """A matrix as the kernels read it, and the activations it is multiplied with."""

    rows: bytes
    n: int
    stride: int
    format: str
    activation: str
    global_scale: float = 1.0

    @classmethod
    def of(cls, weight: torch.Tensor | QuantizedTensor, activation: str) -> Weight:
        if isinstance(weight, QuantizedTensor):
            rows = to_layout(weight, "cpu_interleaved")["interleaved"]
            kind, scale = weight.format, weight.global_scale
        else:
            kind = "bf16" if weight.dtype == torch.bfloat16 else "float32"
            rows, scale = weight.contiguous().view(torch.uint8), 1.0
        stride = rows.shape[1]
        packed = isinstance(weight, QuantizedTensor)
        used = units(weight.shape[1]) * UNIT_BYTES[kind] if packed else stride
        data = rows.numpy().tobytes()[: (len(rows) - 1) * stride + used]  # no padding at the end
        return cls(data, len(rows), stride, kind, activation, scale)


UNIT_BYTES = {"nvfp4": 144, "mxfp4": 136, "int4-g128": 132}


def units(columns: int) -> int:
    return -(-columns // 256)
