"""One look at a GPU: kernel tests, graph capture, step times, jitter, memory; under 8 minutes.

    tools/gpu_check.sh out/gpu

Needs Python, torch with CUDA, triton, numpy and safetensors; no network. Every section runs in a
process of its own and is ended when its time is over: what it had found by then is kept and marked.
Writes gpu_check.json and gpu_check.txt. Ends with status 1 where a section fell short, and 2 where
nothing can be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wmrt
from tools import gpu_there
from wmrt.core import machine
from wmrt.core.errors import UnsupportedError, UsageError, WmrtError
from wmrt.core.files import replacing

ROOT = Path(__file__).resolve().parents[1]
#: Seconds of all sections together.
TOTAL = 465.0


@dataclass(frozen=True)
class Section:
    """A name in `tools.gpu_sections`, and its seconds; what an earlier one left over is added."""

    name: str
    seconds: float


SECTIONS = (
    Section("bandwidth", 25),
    Section("tests", 110),
    Section("capture", 65),
    Section("bench", 75),
    Section("launches", 50),
    Section("jitter", 45),
    Section("memory", 35),
    Section("peer", 60),
)
#: Only by name: it compiles kernels for six numbers of robots first.
BY_NAME = (Section("group", 400),)

#: Runs one section to its end or to a number of seconds, and returns its findings.
Run = Callable[[Section, float, Path], dict[str, Any]]


def child(section: str, seconds: float, path: Path, setting: Any = None) -> dict[str, Any]:
    """The work of one section: every finding goes to the file as it comes. Returns all of it."""
    from tools import gpu_sections

    found: dict[str, Any] = {"verdict": "cut", "reason": "its time was over", "findings": {}}
    chosen = gpu_sections.Setting() if setting is None else setting

    def say(name: str, value: Any) -> None:
        found["findings"][name] = value
        write(path, found)

    write(path, found)
    if chosen.place.type == "cuda":
        from wmrt.runtime.spin import request_spin

        say("spin", request_spin(0).to_json())  # before anything makes a context
    work = getattr(gpu_sections, section)
    extra = (seconds,) if section == "tests" else ()
    try:
        work(chosen, say, *extra)
        found |= {"verdict": "pass", "reason": ""}
    except gpu_sections.Short as short:
        found |= {"verdict": "short", "reason": str(short)}
    except Exception as error:  # a section is no reason to lose the others
        found |= {"verdict": "error", "reason": f"{type(error).__name__}: {error}"}
        found["traceback"] = traceback.format_exc()[-4000:]
    write(path, found)
    return found


def in_a_process(section: Section, seconds: float, path: Path) -> dict[str, Any]:
    """`child` as a process that is ended when its time is over."""
    command = [sys.executable, "-m", "tools.gpu_check", "--section", section.name]
    command += ["--seconds", f"{max(seconds - 8, 1):.0f}", "--out", str(path.parent)]
    # Without it cuBLAS may sum in another order on the stream that captures than on another one.
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **os.environ}
    log = path.with_suffix(".log")
    with log.open("w", encoding="utf-8") as to:
        running = subprocess.Popen(
            command, cwd=ROOT, stdout=to, stderr=to, env=environment, start_new_session=True
        )
        try:
            code: int | None = running.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # with the processes that it started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    found = read(path)
    if code not in (0, None) and found["verdict"] == "cut":
        last = log.read_text("utf-8", "replace").strip().splitlines()[-1:] or ["it said nothing"]
        found |= {"verdict": "error", "reason": f"ended with status {code}: {last[0][:300]}"}
    return found


def run_all(names: Sequence[str], out: Path, total: float, run: Run) -> dict[str, Any]:
    """Sections in order within ``total`` seconds; one that no time is left for is said so."""
    begin, saved, results = time.monotonic(), 0.0, dict[str, Any]()
    for section in (*SECTIONS, *BY_NAME):
        if section.name not in names:
            continue
        left = total - (time.monotonic() - begin)
        limit = min(section.seconds + saved, left)
        if limit < 5:
            results[section.name] = {"verdict": "cut", "reason": "no time was left", "findings": {}}
            continue
        started = time.monotonic()
        found = run(section, limit, out / f"section-{section.name}.json")
        spent = time.monotonic() - started
        saved = max(limit - spent, 0.0)
        results[section.name] = {**found, "seconds": round(spent, 1), "limit": round(limit, 1)}
        print(f"{section.name}: {found['verdict']} {found['reason']}".rstrip(), flush=True)
    return results


def identity() -> dict[str, Any]:
    """Device, driver, clocks and versions; raises where there is no GPU to look at, before torch is
    loaded."""
    refused = gpu_there.refusal()
    if refused is not None:
        raise UnsupportedError(refused)
    import torch

    from wmrt.kernels.triton.library import require_kernels

    capability = require_kernels()
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "capability": capability,
        "device_memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "smi": _smi(),
        "cpu": machine.cpu_name(),
        "cpus": machine.usable_cpus(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": machine.installed_version("triton"),
        "kernel": platform.release(),
        "commit": machine.source_commit(),
    }


def _smi() -> str | None:
    """Driver, clocks and power limit as nvidia-smi says them; None where it does not."""
    asked = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return done.stdout.strip() or None


def write(path: Path, value: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, default=str) + "\n", "utf-8")


def read(path: Path) -> dict[str, Any]:
    """What a section wrote; that it wrote nothing, if so."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {"verdict": "cut", "reason": "it wrote nothing", "findings": {}}
    return found


def main(arguments: Sequence[str] | None = None, run: Run = in_a_process) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "out/gpu")))
    parser.add_argument("--only", metavar="NAMES", help="Sections, with commas; group only so.")
    parser.add_argument("--seconds", type=float, default=TOTAL)
    parser.add_argument("--section", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.section:
        given.out.mkdir(parents=True, exist_ok=True)
        child(given.section, given.seconds, given.out / f"section-{given.section}.json")
        return 0
    known = [section.name for section in (*SECTIONS, *BY_NAME)]
    names = given.only.split(",") if given.only else [section.name for section in SECTIONS]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise UsageError(f"--only {unknown[0]}: there are {', '.join(known)}")
    what = identity()
    given.out.mkdir(parents=True, exist_ok=True)
    results = run_all(names, given.out, given.seconds, run)
    from tools.gpu_report import lines

    text = "\n".join(lines(what, results)) + "\n"
    command = ["tools/gpu_check.py", *(sys.argv[1:] if arguments is None else arguments)]
    whole = {"wmrt": wmrt.__version__, "command": command, "identity": what}
    write(given.out / "gpu_check.json", {**whole, "results": {"sections": results}})
    (given.out / "gpu_check.txt").write_text(text, "utf-8")
    print(text)
    return 0 if all(found["verdict"] == "pass" for found in results.values()) else 1


class _Plain(argparse.RawDescriptionHelpFormatter):
    """The description as it is written."""


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WmrtError as error:
        print(f"gpu_check: error: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
