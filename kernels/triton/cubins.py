"""A package of compiled kernels for machines without triton: binaries and a manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wmrt import __version__
from wmrt.core.errors import UsageError
from wmrt.core.extras import require
from wmrt.core.files import replacing, require_writable
from wmrt.kernels.triton import aot
from wmrt.kernels.triton.aot_cases import AotCase

MANIFEST = "manifest.json"
#: Arguments that triton adds behind a kernel's own: memory that none of ours uses, passed as null.
TRAILING = ("global_scratch", "profile_scratch")


def write_package(out: Path, pairs: Iterable[tuple[AotCase, int]]) -> list[dict[str, Any]]:
    """Compile each case for its capability into the new folder ``out``; the manifest's entries.

    An entry has what `cuModuleLoadData` and `cuLaunchKernel` need: ``file`` with its ``sha256``,
    ``entry``, ``threads`` of a block, bytes of dynamic ``shared`` memory, and ``arguments`` in
    order as [name, type], null pointers last. ``constants`` are the sizes that it is made for;
    ``multiples_of_16`` are the arguments that must be such. The same source, triton and capability
    give the same bytes.

    Raises:
        UsageError: ``out`` is there already or cannot be written.
        UnsupportedError: as `compile_case`.
    """
    if out.exists():
        raise UsageError(f"{out} is there already; give a new folder")
    require_writable(out)
    entries = []
    with aot.fresh_cache():
        made = [aot.compile_case(case, capability) for case, capability in pairs]
    out.mkdir(parents=True)
    for each in made:
        entries.append(_entry(each))
        with replacing(out / entries[-1]["file"]) as temporary:
            temporary.write_bytes(each.cubin)
    triton = str(require("triton", "cuda").__version__)
    document = {"wmrt": __version__, "triton": triton, "kernels": entries}
    with replacing(out / MANIFEST) as temporary:  # last: a package without it is not whole
        temporary.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return entries


def _entry(made: aot.Compiled) -> dict[str, Any]:
    case = made.case
    arguments = [[name, case.signature[name]] for name in _own(case)]
    return {
        "case": case.name,
        "capability": made.capability,
        "file": f"{case.name}.sm_{made.capability}.cubin",
        "sha256": hashlib.sha256(made.cubin).hexdigest(),
        "bytes": len(made.cubin),
        "entry": made.entry,
        "threads": case.warps * 32,
        "shared": made.shared_bytes,
        "registers": made.registers,
        "arguments": [*arguments, *([name, "*i8"] for name in TRAILING)],
        "multiples_of_16": list(aot.aligned(case)),
        "constants": {name: getattr(v, "name", v) for name, v in case.constants.items()},
    }


def _own(case: AotCase) -> list[str]:
    """Arguments of the compiled function: those of the kernel that are no constants."""
    return [name for name in case.kernel.arg_names if name in case.signature]
