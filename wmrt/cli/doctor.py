"""``wmrt doctor``: what this machine and this installation have, and what is missing."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

import wmrt
from wmrt.cli.common import console, falls_short, json_option, write_result
from wmrt.core import machine
from wmrt.core.codec import VARIABLE, codec
from wmrt.core.errors import WmrtError

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@click.command(epilog="Example: wmrt doctor --json doctor.json")
@click.option(
    "--graph",
    "look",
    is_flag=True,
    help="Look at the GPU step for what a CUDA Graph refuses, some 6 s; where there is a CUDA "
    "device that is done in any case.",
)
@json_option
def command(look: bool, json_path: Path | None) -> None:
    """Show what this machine and this installation have, and what is missing.

    Ends with status 1 if wmrt itself cannot run here; a missing extra is only reported.
    """
    requirements = installed_requirements()
    torch = torch_facts()
    results: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {
            "name": machine.cpu_name(),
            "usable": machine.usable_cpus(),
            "physical": len(machine.physical_cpus()),
            "features": machine.cpu_features(),
        },
        "memory_bytes": machine.memory_bytes(),
        "realtime": {
            "fifo_refused": machine.realtime_refusal(),
            "lockable_bytes": machine.lockable_bytes(),
            "huge_pages": machine.huge_pages(),
        },
        "native": native_facts(),
        "codec": codec_facts(),
        "torch": torch,
        "graph": graph_facts() if look or torch["cuda"] else None,
        "requirements": requirements,
        "checkpoints": packaged_checkpoints(),
    }
    _show(results)
    write_result(json_path, results)
    missing = [name for name, version in requirements.get("", {}).items() if version is None]
    if not requirements:
        falls_short("wmrt is not installed, only found; run: pip install -e . in its folder")
    if missing:
        falls_short(f"missing {', '.join(missing)}; run: pip install wmrt")
    if torch["error"]:
        falls_short(f"torch does not load: {torch['error']}")
    for wrong in faults(results):
        falls_short(wrong)
    graph = results["graph"]
    if graph and not graph["capturable"]:
        falls_short(f"the GPU step cannot be captured as a CUDA Graph: {_graph(graph)}")


def installed_requirements() -> dict[str, dict[str, str | None]]:
    """Extra ("" for the base) to ``{distribution: installed version or None}``.

    Read from wmrt's own metadata; empty when wmrt is imported without having been installed.
    """
    found: dict[str, dict[str, str | None]] = {}
    try:
        declared = metadata.requires("wmrt") or []
    except metadata.PackageNotFoundError:
        return found
    for line in declared:
        name, extra = _REQUIREMENT.match(line), _EXTRA.search(line)
        if name is not None:
            group = found.setdefault(extra.group(1) if extra else "", {})
            group[name.group(1)] = machine.installed_version(name.group(1))
    return found


def torch_facts() -> dict[str, Any]:
    """Version, threads and CUDA devices of torch, or in ``error`` why it does not load."""
    try:
        torch: Any = import_module("torch")
    except (ImportError, OSError) as error:  # OSError: a shared library of the wheel is missing
        return {"version": None, "threads": None, "cuda": [], "error": str(error)}
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "version": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "cuda": [torch.cuda.get_device_name(index) for index in range(devices)],
        "error": None,
    }


def native_facts() -> dict[str, Any]:
    """Path and instruction sets of the native library, or in ``error`` why it is not to be used.

    ``usable`` names the instruction sets of this processor, ``isa`` the one that is taken,
    ``asked`` is WMRT_ISA. ``path`` is None where none was built, which is no fault.
    """
    facts: dict[str, Any] = {"path": None, "usable": [], "isa": None, "error": None}
    facts["asked"] = os.environ.get("WMRT_ISA") or None
    try:
        native: Any = import_module("wmrt.kernels.native.library")
    except (ImportError, OSError) as error:  # as torch's, which the operators need
        return {**facts, "error": str(error)}
    facts["path"] = str(native.PATH) if native.PATH.exists() else None
    try:
        facts["usable"] = [isa.name for isa in native.usable_isas()]
        facts["isa"] = native.isa().name
    except WmrtError as error:
        facts["error"] = str(error)
    return facts


def faults(results: dict[str, Any]) -> list[str]:
    """What is wrong with what is in C."""
    native, own = results["native"], results["codec"]
    parts = [own, native] if native["path"] else [own]
    return [part["error"] for part in parts if part["error"]]


def codec_facts() -> dict[str, Any]:
    """What makes and reads a step's messages; in ``error`` why what WMRT_CODEC asks for is not."""
    try:
        return {**codec().choice._asdict(), "error": None}
    except WmrtError as error:
        return {"requested": os.environ.get(VARIABLE), "resolved": None, "error": str(error)}


def graph_facts() -> dict[str, Any]:
    """What `wmrt.runtime.graph_lint` finds in the fused step of preset small in nvfp4, on tensors
    that only say they are on a GPU; in ``error`` why it cannot look."""
    facts: dict[str, Any] = {"preset": "small", "recipe": "nvfp4", "capturable": False}
    try:
        subjects: Any = import_module("wmrt.runtime.graph_subjects")
        lint: Any = import_module("wmrt.runtime.graph_lint").lint
        like: Any = import_module("wmrt.model.checkpoint").load_checkpoint("highway")
        config: Any = import_module("wmrt.model.config").preset(facts["preset"])
        recipe: Any = import_module("wmrt.quant").get_recipe(facts["recipe"])
        made = subjects.fused_subject(like.schema, config, like.actions, recipe)
        return {**facts, **lint(made).to_json(), "error": None}
    except (ImportError, OSError, WmrtError) as error:
        return {**facts, "error": str(error)}


def packaged_checkpoints() -> list[dict[str, Any]]:
    """Name, size and weight files of every checkpoint inside the package."""
    found = []
    for config in sorted((Path(wmrt.__file__).parent / "checkpoints").glob("*/config.json")):
        files = [file for file in config.parent.iterdir() if file.is_file()]
        try:
            error = None if isinstance(json.loads(config.read_text("utf-8")), dict) else "no object"
        except (OSError, ValueError) as fault:
            error = str(fault)
        if not any(file.suffix == ".safetensors" for file in files):
            error = error or "no weights"
        found.append(
            {
                "name": config.parent.name,
                "bytes": sum(file.stat().st_size for file in files),
                "config_error": error,
            }
        )
    return found


def _show(results: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in _rows(results):
        table.add_row(label, Text(value))  # Text: "wmrt[drive]" is no markup
    console().print(table)


def _rows(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    cpu, torch, memory = results["cpu"], results["torch"], results["memory_bytes"]
    yield "wmrt", f"{wmrt.__version__} ({machine.source_commit() or 'not a checkout'})"
    yield "python", f"{results['python']} on {results['platform']}"
    yield "cpu", f"{cpu['name']}, {cpu['usable']} usable, {cpu['physical']} cores"
    yield "cpu features", " ".join(cpu["features"]) or "unknown"
    yield "memory", "unknown" if memory is None else f"{memory / 2**30:.1f} GiB"
    yield "real time", _realtime(results["realtime"])
    yield "native", _native(results["native"])
    told = results["codec"]
    yield "codec", told["error"] or f"{told['resolved']} {told['reason']}".strip()
    yield "torch", torch["error"] or f"{torch['version']}, {torch['threads']} threads"
    yield "cuda", ", ".join(torch["cuda"]) or "no device"
    yield "gpu step", _graph(results["graph"])
    for extra, packages in results["requirements"].items():
        yield f"extra {extra}" if extra else "base", _summary(extra, packages)
    for entry in results["checkpoints"]:
        state = entry["config_error"] or f"{entry['bytes'] / 1e6:.1f} MB"
        yield f"checkpoint {entry['name']}", state
    if not results["checkpoints"]:
        yield "checkpoints", "none packaged"


def _realtime(facts: dict[str, Any]) -> str:
    refused, lockable = facts["fifo_refused"], facts["lockable_bytes"]
    fifo = "FIFO allowed" if refused is None else f"FIFO refused ({refused}; see ulimit -r)"
    lock = "any memory" if lockable is None else f"{lockable / 2**20:.0f} MiB of memory (ulimit -l)"
    return f"{fifo}, {lock} lockable, huge pages {facts['huge_pages'] or 'unknown'}"


def _native(facts: dict[str, Any]) -> str:
    if facts["error"]:
        return str(facts["error"])
    why = "by WMRT_ISA" if facts["asked"] else "the best"
    return f"{facts['isa']} ({why} of {', '.join(facts['usable'])})"


def _graph(facts: dict[str, Any] | None) -> str:
    if facts is None:
        return "not looked at: wmrt doctor --graph"
    if facts["error"]:
        return str(facts["error"])
    if facts["clean"]:
        state = "clean"
    else:
        kinds = {f"{fault['kind']} at {fault['where']}": None for fault in facts["faults"]}
        state = "; ".join(kinds) or "it did not run to its end"
    step = f"{facts['launches']} operators of {facts['preset']} {facts['recipe']}"
    return f"graph lint: {state} ({step})"


def _summary(extra: str, packages: dict[str, str | None]) -> str:
    """Present packages with their versions, then the missing ones and the command for them."""
    present = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    missing = ", ".join(name for name, version in packages.items() if not version)
    if not missing:
        return present
    target = f"'wmrt[{extra}]'" if extra else "wmrt"
    return f"{present}{'; ' if present else ''}missing {missing}: pip install {target}"
