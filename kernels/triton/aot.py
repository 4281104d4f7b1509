"""Compiling a kernel for a GPU that is not here, and reading what the compiler made.

triton needs no driver for it, and brings ptxas, cuobjdump and nvdisasm.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.core.extras import require
from wmrt.kernels.triton import library, ptx_reads, sass
from wmrt.kernels.triton.aot_cases import AotCase

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_WARP = 32


@dataclass(frozen=True)
class Compiled:
    """A kernel for one compute capability: the binary, its resources and its instructions.

    ``entry`` is the name of the function in the binary; ``early_reads`` see `ptx_reads`.
    """

    case: AotCase
    capability: int
    entry: str
    cubin: bytes
    seconds: float
    registers: int
    stack_bytes: int
    shared_bytes: int
    code: list[sass.Instruction]
    early_reads: list[str]


@contextmanager
def fresh_cache() -> Iterator[None]:
    """Inside, triton finds nothing that was compiled before and leaves nothing behind, and no path
    of this machine gets into a binary, so that the same source gives the same bytes."""
    names = ("TRITON_CACHE_DIR", "TRITON_DISABLE_LINE_INFO")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(zip(names, (folder, "1"), strict=True))
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def compile_case(case: AotCase, capability: int) -> Compiled:
    """Compile ``case`` for ``capability``, such as 87.

    Raises:
        UsageError: the kernel was made for the interpreter.
        UnsupportedError: the compiler refuses it, or a tool of triton's is missing.
    """
    library.triton_version()
    compiler = require("triton.compiler", "cuda")
    backend = require("triton.backends.compiler", "cuda")
    if not hasattr(case.kernel, "is_gluon"):
        raise UsageError(f"{case.name}: TRITON_INTERPRET is set; unset it to compile")
    start = time.perf_counter()
    try:
        made = compiler.compile(
            _source(case),
            target=backend.GPUTarget("cuda", capability, _WARP),
            options={
                "num_warps": case.warps,
                "enable_fp_fusion": library.FP_FUSION,
                **case.options,
            },
        )
    except Exception as error:  # whatever a pass or ptxas raises: the reason is in its text
        raise UnsupportedError(
            f"{case.name} does not compile for sm_{capability}: {type(error).__name__}: {error}"
        ) from error
    seconds = time.perf_counter() - start
    registers, stack, text = _inspect(made.asm["cubin"])
    return Compiled(
        case=case,
        capability=capability,
        entry=str(made.metadata.name),
        cubin=made.asm["cubin"],
        seconds=seconds,
        registers=registers,
        stack_bytes=stack,
        shared_bytes=int(made.metadata.shared),
        code=sass.parse(text),
        early_reads=ptx_reads.reads_before_wait(made.asm["ptx"], pointers(case)),
    )


def aligned(case: AotCase) -> tuple[str, ...]:
    """Arguments that the code takes for multiples of 16."""
    if case.aligned is not None:
        return case.aligned
    return tuple(name for name, kind in case.signature.items() if kind.startswith("*"))


def pointers(case: AotCase) -> list[str]:
    """Pointers among the arguments of the compiled function, in order; "" for what is none."""
    kinds = {n: case.signature[n] for n in case.kernel.arg_names if n in case.signature}
    return [name if kind.startswith("*") else "" for name, kind in kinds.items()]


def _source(case: AotCase) -> Any:
    """What triton compiles: types, constants and alignment, by the position of an argument."""
    names = list(case.kernel.arg_names)
    signature = {name: case.signature.get(name, "constexpr") for name in names}
    constants = {(names.index(name),): value for name, value in case.constants.items()}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned(case)}
    if case.kernel.is_gluon():
        kind = require("triton.experimental.gluon._runtime", "cuda").GluonASTSource
    else:
        kind = require("triton.compiler", "cuda").ASTSource
    return kind(case.kernel, signature, constants, attributes)


def _inspect(cubin: bytes) -> tuple[int, int, str]:
    """Registers, bytes of stack and disassembly."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _tool("cuobjdump", "-res-usage", file.name)
        text = _tool("nvdisasm", "-c", file.name)
    found = _USAGE.search(usage)
    if found is None:
        raise UnsupportedError(f"cuobjdump tells no resources: {usage.strip()[:300]!r}")
    return int(found[1]), int(found[2]), text


def _tool(name: str, *arguments: str) -> str:
    """Output of a program from triton's package."""
    path = Path(str(require("triton", "cuda").__file__)).parent / "backends/nvidia/bin" / name
    if not path.is_file():
        raise UnsupportedError(
            f"this triton has no {name} ({path}); install the package from the registry: "
            "pip install 'wmrt[cuda]'"
        )
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnsupportedError(f"{name} fails: {done.stderr.strip()[:300]}")
    return done.stdout


def measure(made: Compiled) -> dict[str, Any]:
    """Figures of a compiled case, by the names that limits use; None for what it has not.

    ``instructions_per_weight`` is of the inner loop: its instructions over the weights that one
    lane loads in a pass. Without a loop, of the whole kernel: instructions of all lanes over
    `weights_per_program`.
    """
    case, code = made.case, made.code
    region = sass.main_region(code)
    inner = code[region.start : region.stop]
    widths = sass.weight_loads(code)
    loaded = sum(sass.weight_loads(inner)) / case.weight_bits
    lanes = case.warps * _WARP
    per_weight = None
    if case.weights_per_program and loaded:
        share = loaded if region.looped else case.weights_per_program / lanes
        per_weight = round(len(inner) / share, 3)
    return {
        "registers": made.registers,
        "stack_bytes": made.stack_bytes,
        "local_accesses": sass.count(code, "LDL", "STL"),
        "shared_bytes": made.shared_bytes,
        "barriers": sass.count(code, "BAR"),
        "instructions": len(code),
        "looped": region.looped,
        "weights_loaded": round(loaded * lanes) if case.weights_per_program else None,
        "weight_load_bits": min(widths, default=None),
        "instructions_per_weight": per_weight,
        "early_reads": made.early_reads,
        "found": {name: sass.count(code, name) for name in case.instructions},
        "cubin_bytes": len(made.cubin),
        "seconds": round(made.seconds, 3),
    }
