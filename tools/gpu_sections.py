"""What `tools/gpu_check.py` looks at on a GPU, section by section. Needs torch, triton, numpy,
safetensors and wmrt, nothing else.

A section writes down what it has as soon as it has it: one that is cut keeps that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools import gpu_tests
from tools.gpu_group import PLAIN
from tools.gpu_group import group as group
from tools.gpu_setting import Built, Setting, Short, arm_of, captured, network_of
from wmrt.kernels.triton.library import capability
from wmrt.kernels.triton.variants import DEPENDENT_FROM, varied
from wmrt.quant.resident import measure_resident
from wmrt.runtime.bench.arms import Arm
from wmrt.runtime.bench.deadline import find_misses
from wmrt.runtime.bench.flat import flatness
from wmrt.runtime.bench.floor import Floor
from wmrt.runtime.bench.gpu_arms import (
    CompiledRunner,
    DeviceStream,
    encoded,
    feed,
)
from wmrt.runtime.bench.gpu_network import kernels
from wmrt.runtime.bench.outcome import Row, Work, ratios, row_of
from wmrt.runtime.bench.rounds import Course, Effort, Instruments, run_rounds
from wmrt.runtime.static_step import CapturableStep, StaticStep

ROOT = Path(__file__).resolve().parents[1]
KERNEL_TESTS = ROOT / "tests" / "kernels" / "triton"
#: Of the interpreter and the compiler, which need no GPU and more packages.
NOT_ON_A_GPU = (
    *("test_aot", "test_cubins", "test_interpreter", "test_ptx", "test_ptx_reads", "test_sass"),
)
RECIPES = ("bf16", "nvfp4", "mxfp4", "w4a8")

#: Writes one finding of a section.
Say = Callable[[str, Any], None]


# -- sections -------------------------------------------------------------------------------------


def bandwidth(setting: Setting, say: Say) -> None:
    """What the device copies, which the floor of a step is counted with."""
    floor = _floor(setting)
    floor.sample("before", 15)
    say("gb_per_s", floor.bandwidth(1))
    say("spread", floor.spread("before", 1))
    say("buffer_bytes", setting.buffer)


def tests(setting: Setting, say: Say, seconds: float) -> None:
    """Every test of a kernel, with its CPU tensors carried to the GPU, in several processes: most
    of the time goes into compiling."""
    base = int(os.environ.get("WMRT_TEST_SEED") or secrets.randbelow(2**32))
    say("seed", base)
    counts, files, failures = Counter[str](), dict[str, Counter[str]](), list[dict[str, str]]()
    told = 0.0
    for outcome in gpu_tests.run(kernel_tests(), base, seconds, setting.device, setting.workers):
        counts[outcome.result] += 1
        files.setdefault(outcome.test.partition(".")[0], Counter())[outcome.result] += 1
        if outcome.result == "failed":
            failures.append({"test": outcome.test, "reason": outcome.reason})
        if time.monotonic() - told > 1.0:
            told = time.monotonic()
            _tell(say, counts, files, failures)
    _tell(say, counts, files, failures)
    if failures or counts["cut"] or not counts["passed"]:
        raise Short(f"{counts['passed']} passed, {len(failures)} failed, {counts['cut']} were cut")


def _tell(say: Say, counts: Any, files: Any, failures: Any) -> None:
    say("counts", dict(counts))
    say("files", {name: dict(own) for name, own in files.items()})
    say("failures", failures)


def kernel_tests() -> list[str]:
    """Modules of kernel tests that mean something on a GPU."""
    found = sorted(path.stem for path in KERNEL_TESTS.glob("test_*.py"))
    return [f"tests.kernels.triton.{name}" for name in found if name not in NOT_ON_A_GPU]


def capture(setting: Setting, say: Say) -> None:
    """Each recipe's step captured, then replayed against an eager twin, bit for bit, over more
    steps than the ring is long. The twin's launches follow one another."""
    broken = []
    for recipe in RECIPES:
        with captured(setting, recipe) as built:
            twin = setting.step(built.network)
            different = _different(setting, built, twin)
            say(recipe, {"graph": built.executor.to_json(), "different": different,
                         "steps": setting.compared, "kernels": kernels(built.network)})  # fmt: skip
        broken += [recipe] if different else []
    if broken:
        raise Short(f"replays differ from eager steps: {', '.join(broken)}")


def _different(setting: Setting, built: Built, twin: CapturableStep) -> list[str]:
    """Buffers of which a replayed and an eager step ever differed in a bit."""
    given = encoded(built.network.schema, twin.inputs, 20, False)
    found: set[str] = set()
    for index in range(setting.compared):
        for step in (built.step, twin):
            feed(step.inputs, given[index % len(given)])
        built.executor.replay()
        built.executor.wait()
        with torch.inference_mode(), varied(**PLAIN):
            twin.run()
        pairs = ((name, tensor, built.step.buffers[name]) for name, tensor in twin.buffers.items())
        found |= {name for name, a, b in pairs if not _same_bits(a, b)}
    return sorted(found)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return torch.equal(raw[0], raw[1])


def bench(setting: Setting, say: Say) -> None:
    """Step times of every recipe, in turns."""
    with contextlib.ExitStack() as stack:
        made = [(recipe, stack.enter_context(captured(setting, recipe))) for recipe in RECIPES]
        arms = [arm_of(setting, b, recipe, "captured", b.executor) for recipe, b in made]
        _measure(setting, arms, say)


def launches(setting: Setting, say: Say) -> None:
    """Steps of nvfp4 by how launches follow one another, in turns: the control arm first."""
    with contextlib.ExitStack() as stack:
        arms = []
        for name, way in ways(setting).items():
            built = stack.enter_context(captured(setting, "nvfp4", **way))
            arms.append(arm_of(setting, built, "nvfp4", name, built.executor))
        _measure(setting, arms, say)


def ways(setting: Setting) -> dict[str, dict[str, Any]]:
    """Changes of the device's variant by name; dependent launches only where there are such."""
    found: dict[str, dict[str, Any]] = {"plain": PLAIN, "ahead": {"dependent": False}}
    if setting.place.type != "cuda" or capability(setting.place) >= DEPENDENT_FROM:
        found |= {"dependent": {"dependent": True, "ahead_kib": 0}, "both": {"dependent": True}}
    return found


def peer(setting: Setting, say: Say) -> None:
    """torch.compile in bfloat16 beside nvfp4, in turns."""
    network = network_of(setting, "bf16")
    with captured(setting, "nvfp4") as built:
        step = StaticStep(network)
        other, runner = Built(network, step, built.executor), CompiledRunner(step, setting.compile)
        arms = [
            arm_of(setting, built, "nvfp4", "captured", built.executor),
            arm_of(setting, other, "bf16", "torch.compile", runner),
        ]
        with contextlib.closing(runner):
            _measure(setting, arms, say)


def _measure(setting: Setting, arms: Sequence[Arm], say: Say) -> None:
    floor = _floor(setting)
    courses = run_rounds(arms, [None], setting.effort, Instruments(floor))
    rows = [_row(setting, course, floor) for course in courses]
    say("floor", floor.to_json())
    say("arms", [row.figures for row in rows])
    say("ratios", ratios(rows))


def jitter(setting: Setting, say: Say) -> None:
    """Paced steps of nvfp4 against a deadline, each miss with its cause."""
    floor, effort = _floor(setting), Effort(rounds=2, steps=setting.paced)
    with captured(setting, "nvfp4") as built:
        arm = arm_of(setting, built, "nvfp4", "captured", built.executor)
        rates: list[Fraction | None] = [Fraction(setting.rate_hz)]
        (course,) = run_rounds([arm], rates, effort, Instruments(floor))
        row = _row(setting, course, floor)
    misses = find_misses(course.recording, round(setting.deadline_ms * 1e6))
    say("arm", row.figures)
    say("misses", {"steps": list(misses.steps), **misses.to_json()})
    if misses.steps:
        raise Short(f"{len(misses.steps)} of {course.recording.steps} steps missed the deadline")


def memory(setting: Setting, say: Say) -> None:
    """Whether the host's memory and the device's stay where they are."""
    with captured(setting, "nvfp4") as built:
        arm = arm_of(setting, built, "nvfp4", "captured", built.executor)
        arm.step()
        before = _device_bytes(setting)
        found = flatness(arm.step, lambda: measure_resident().private_dirty.bytes, setting.flat)
        after = _device_bytes(setting)
    say("host", found)
    say("device", {"before": before, "after": after})
    say("read_bytes", arm.read_bytes)
    grown = 0 if before is None or after is None else after["allocated"] - before["allocated"]
    if found["verdict"] != "flat" or grown:
        raise Short(f"host {found['verdict']}, tensors of the device grew by {grown:,} bytes")


def _device_bytes(setting: Setting) -> dict[str, int] | None:
    """What tensors hold, and what the driver has given to anybody; None without CUDA."""
    if setting.place.type != "cuda":
        return None
    free, size = torch.cuda.mem_get_info(setting.place)
    return {"allocated": torch.cuda.memory_allocated(setting.place), "used": size - free}


def _floor(setting: Setting) -> Floor:
    return Floor(DeviceStream(setting.place, setting.buffer), [1])


def _row(setting: Setting, course: Course, floor: Floor) -> Row:
    role = "peer" if course.arm.name == "torch.compile" else "own"
    work = Work(setting.preset, setting.device, role=role)
    return row_of(course, work, floor, setting.deadline_ms)
