"""What gcc makes of the kernels: instructions per 256 weights, nothing on the stack, full loads.

This is what can be known of a processor's speed without it. The counts are gcc 12's.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels.native.emulation import NATIVE, STRICT, compiled, objects, tool

ARM = platform.machine() == "aarch64"
SLACK = 1.15  # for another gcc
# Weights that one pass through the loop takes, and its instructions for a batch of 1, 2, 3 ...
COUNTS: dict[str, tuple[int, list[int]]] = {
    "avx512_nvfp4_a8": (256, [28, 37, 46, 55, 64, 73, 82, 93]),
    "avx512_mxfp4_a8": (256, [32, 43, 54, 65, 76, 87, 98, 109]),
    "avx512_int4_a8": (256, [26, 37, 48, 59, 70, 81, 92, 103]),
    "avx512_nvfp4_a16": (256, [60, 78, 97, 116, 135, 158, 187, 209]),
    "avx512_mxfp4_a16": (256, [62, 80, 99, 118, 137, 160, 183, 201]),
    "avx512_f32": (64, [16, 21, 28, 36]),
    "avx512_bf16": (64, [18, 23, 30, 38]),
    "neon_nvfp4_a8": (256, [106, 159, 214, 265, 318, 371, 428, 481]),
    "neon_mxfp4_a8": (256, [101, 148, 198, 248, 296, 343, 392, 439]),
    "neon_int4_a8": (256, [85, 136, 192, 243, 294, 347, 399, 451]),
    "neon_nvfp4_a16": (256, [298, 447, 597, 755]),
    "neon_mxfp4_a16": (256, [302, 458, 610, 763]),
    "neon_f32": (16, [24, 36, 48, 60]),
    "neon_bf16": (32, [44, 68, 92, 116]),
}


def toolchain(prefix: str) -> tuple[str, str]:
    """Compiler and disassembler for the processor that a set of kernels is for."""
    if (prefix == "neon") == ARM:
        return tool("gcc"), tool("objdump")
    triple = "aarch64-linux-gnu" if prefix == "neon" else "x86_64-linux-gnu"
    return tool(f"{triple}-gcc"), tool(f"{triple}-objdump")


def inner_loops(objdump: str, path: Path) -> Iterator[tuple[str, list[str]]]:
    """Each function's shortest loop that prefetches: its name and the loop's instructions."""
    command = [objdump, "-d", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for function in text.split("\n\n"):
        name = re.search(r"^[0-9a-f]+ <(\S+)>:", function, re.MULTILINE)
        lines = re.findall(r"^\s+([0-9a-f]+):\t(.*)$", function, re.MULTILINE)
        index = {address: i for i, (address, _) in enumerate(lines)}
        loops = []
        for i, (_, instruction) in enumerate(lines):
            jump = re.match(r"(?:j\w+|b\.\w+|cbn?z|b)\s+(?:\w+, )?([0-9a-f]+) <", instruction)
            if jump and index.get(jump[1], i) < i:
                body = [line for _, line in lines[index[jump[1]] : i + 1]]
                loops += [body] if any("prefetch" in x or "prfm" in x for x in body) else []
        if name and loops:
            yield name[1], min(loops, key=len)


@pytest.fixture(scope="module", params=["avx512", "neon"])
def loops(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """Inner loops of a set's kernels by name, as ``avx512_nvfp4_a8_x1``; compiled strictly."""
    compiler, objdump = toolchain(request.param)
    sources = sorted(NATIVE.glob(f"{request.param}*.c"))
    assert len(sources) == 3
    made = [compiled(compiler, STRICT, source, objects(request.config)) for source in sources]
    found = [pair for path in made for pair in inner_loops(objdump, path)]
    return {name.removeprefix("wmrt_"): body for name, body in found if name != "stream"}


def test_every_kernel_takes_the_instructions_it_is_known_to_take(
    loops: dict[str, list[str]],
) -> None:
    prefix = next(iter(loops)).split("_")[0]
    known = {
        f"{name}_x{batch}": count
        for name, (_, counts) in COUNTS.items()
        if name.startswith(prefix)
        for batch, count in enumerate(counts, 1)
    }
    assert sorted(loops) == sorted(known)
    over = {
        name: (len(loops[name]), count)
        for name, count in known.items()
        if len(loops[name]) > count * SLACK
    }
    assert over == {}, "instructions now, and as known"


def test_sums_and_codes_stay_in_registers(loops: dict[str, list[str]]) -> None:
    stack = re.compile(r"mm\d+.*\(%rsp|\(%rsp.*mm\d+|\b[qv]\d+.*\[sp")
    spilled = {
        name: kept for name, body in loops.items() if (kept := list(filter(stack.search, body)))
    }
    assert spilled == {}


def test_int8_kernels_use_dot_products_and_whole_registers(loops: dict[str, list[str]]) -> None:
    for name, body in loops.items():
        kind, batch = name.rsplit("_x", 1)
        if not kind.endswith("a8"):
            continue
        arm = name.startswith("neon")
        dots = sum(line.startswith("sdot" if arm else "vpdpbusd") for line in body)
        assert dots == (16 if arm else 4) * int(batch), name
        lookups = sum(line.startswith("tbl" if arm else "vpshufb") for line in body)
        assert lookups == (0 if "int4" in name else 16 if arm else 4), name
        assert sum("prefetch" in line or "prfm" in line for line in body) == 3, name
        if arm:
            part = [line for line in body if re.match(r"ld\w*\s+(?!q|\{v\d+\.16b|x|p)", line)]
        else:
            reads = [line for line in body if re.match(r"v\S+\s+[^%]*\(|v\S+\s.*\(%", line)]
            part = [line for line in reads if "zmm" not in line]
        assert len(part) <= 2, f"{name}: only scales are read by less than a register: {part}"


@pytest.mark.full
def test_the_whole_library_builds_for_arm(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    compiler, _ = toolchain("neon")
    sources = sorted(NATIVE.glob("*.c"))
    made = [compiled(compiler, STRICT, source, objects(request.config)) for source in sources]
    link = ["-shared", "-pthread", "-Wl,-z,defs", "-lm", "-o", str(tmp_path / "_native.so")]
    subprocess.run([compiler, *map(str, made), *link], check=True)
