"""A package of compiled kernels for machines without triton: binaries and a manifest."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wmrt import __version__
from wmrt.core.errors import UsageError
from wmrt.core.extras import require
from wmrt.core.files import replacing, require_writable
from wmrt.kernels.triton import aot
from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.packaged_step import Step

MANIFEST = "manifest.json"
#: Of the manifest, raised when a name in it goes or changes its meaning.
FORMAT = 2
#: Arguments that triton adds behind a kernel's own: memory that none of ours uses, passed as null.
TRAILING = ("global_scratch", "profile_scratch")


Pair = tuple[AotCase, int]


def write_package(
    out: Path,
    pairs: Iterable[Pair],
    steps: Sequence[Step] = (),
    through: Callable[[Sequence[Pair]], Iterable[Pair]] = iter,
) -> dict[str, Any]:
    """Compile each case for its capability, and the kernels of ``steps`` for theirs, into the new
    folder ``out``; returns the manifest, which README.md of this folder describes.

    A binary is written as soon as it is compiled and the manifest last. Where that fails, or is
    interrupted, the folder goes. The same source, triton and capability give the same bytes.

    Args:
        through: passes on what is to be compiled, one by one: a progress bar.

    Raises:
        UsageError: ``out`` is there already or cannot be written; a case that has no grid; two of
            one name.
        UnsupportedError: as `compile_case`.
    """
    require_absent(out)
    given = [*pairs, *((case, step.capability) for step in steps for case in step.cases())]
    _check(given)
    with _whole(out), aot.fresh_cache():
        kernels = [_written(out, *pair) for pair in through(given)]
        manifest = {
            "wmrt": __version__,
            "triton": str(require("triton", "cuda").__version__),
            "format": FORMAT,
            "kernels": kernels,
            "steps": [step.described() for step in steps],
        }
        with replacing(out / MANIFEST) as temporary:  # last: without it the package is not whole
            temporary.write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return manifest


def require_absent(out: Path) -> None:
    """Raise `UsageError` unless the folder can be made."""
    if out.exists():
        raise UsageError(f"{out} is there already; give a new folder")
    require_writable(out)


def _check(pairs: Sequence[Pair]) -> None:
    seen = set()
    for case, capability in pairs:
        launch_of(case)
        if (case.name, capability) in seen:
            raise UsageError(f"{case.name} for sm_{capability} is there twice")
        seen.add((case.name, capability))


@contextmanager
def _whole(out: Path) -> Iterator[None]:
    """``out`` is made, and is gone again if what follows fails or is interrupted."""
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be made: {error.strerror or error}") from None
    try:
        yield
    except BaseException:  # Ctrl-C too
        shutil.rmtree(out, ignore_errors=True)  # what stays has no manifest
        raise


def _written(out: Path, case: AotCase, capability: int) -> dict[str, Any]:
    """Compile and write one; its entry."""
    made = aot.compile_case(case, capability)
    entry = _entry(made)
    with replacing(out / entry["file"]) as temporary:
        temporary.write_bytes(made.cubin)
    return entry


def _entry(made: aot.Compiled) -> dict[str, Any]:
    return {
        "case": made.case.name,
        "capability": made.capability,
        "file": f"{made.case.name}.sm_{made.capability}.cubin",
        "sha256": hashlib.sha256(made.cubin).hexdigest(),
        "bytes": len(made.cubin),
        "entry": made.entry,
        "shared": made.shared_bytes,
        "registers": made.registers,
        **launch_of(made.case),
    }


def launch_of(case: AotCase) -> dict[str, Any]:
    """What a launch of the case needs but for the binary, as the manifest has it.

    Raises `UsageError`: a case that has no grid.
    """
    if case.grid is None:
        raise UsageError(f"{case.name} tells no grid; whoever launches it would have to guess")
    arguments = [[name, case.signature[name]] for name in _own(case)]
    return {
        "grid": case.grid.folded(case.constants),
        "threads": case.warps * 32,
        "dependent": bool(case.options.get("launch_pdl", False)),
        "arguments": [*arguments, *([name, "*i8"] for name in TRAILING)],
        "multiples_of_16": list(aot.aligned(case)),
        "arrays": {name: array.folded(case.constants) for name, array in case.arrays.items()},
        "sizes": dict(case.scalars),
        "constants": {name: getattr(v, "name", v) for name, v in case.constants.items()},
    }


def _own(case: AotCase) -> list[str]:
    """Arguments of the compiled function: those of the kernel that are no constants."""
    return [name for name in case.kernel.arg_names if name in case.signature]
