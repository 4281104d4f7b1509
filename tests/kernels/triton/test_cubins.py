"""The package of compiled kernels: whole, the same twice, with nothing of this machine in it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kernels.triton import manifests
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton import (
    action_quant,
    activations,
    aot,
    aot_cases,
    cubins,
    gemv,
    norm,
    ops,
    variants,
)
from wmrt.kernels.triton import transition_attention as attention
from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.recorded import Launch, recorded
from wmrt.quant.formats import block_format
from wmrt.quant.layouts.gpu import GpuGemv

assert ops  # registers action_pack

CASES = {case.name: case for case in aot_cases.cases()}
PAIRS = [(CASES["action_pack.8x2"], 87), (CASES["action_pack.8x2"], 120)]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cubins") / "package"
    cubins.write_package(out, PAIRS)
    return out


def test_the_manifest_names_every_file_with_its_hash(package: Path) -> None:
    manifest = json.loads((package / cubins.MANIFEST).read_text())
    kernels = manifest["kernels"]
    assert [(k["case"], k["capability"]) for k in kernels] == [(c.name, t) for c, t in PAIRS]
    files = {path.name for path in package.iterdir()}
    assert files == {cubins.MANIFEST, *(k["file"] for k in kernels)}
    for kernel in kernels:
        content = (package / kernel["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == kernel["sha256"]
        assert len(content) == kernel["bytes"] and content[:4] == b"\x7fELF"


def test_what_a_launch_needs_is_what_the_binary_has(package: Path) -> None:
    kernel = json.loads((package / cubins.MANIFEST).read_text())["kernels"][0]
    assert kernel["entry"] == "pack_kernel" and kernel["threads"] == 32
    assert [name for name, _ in kernel["arguments"]] == ["chunk", "out", *cubins.TRAILING]
    assert kernel["multiples_of_16"] == ["chunk", "out"] and not kernel["dependent"]
    assert kernel["grid"] == ["batch", 1, 1] and kernel["sizes"] == {}
    assert kernel["arrays"]["chunk"] == {"role": "input", "shape": ["batch", 8, 2]}
    assert kernel["constants"]["STEPS"] == 8 and kernel["constants"]["DIMS"] == 2
    # Offset and size of every argument, the last one first, as the binary itself tells them.
    told = aot._tool("cuobjdump", "-elf", str(package / kernel["file"]))
    found = re.findall(r"Ordinal\s*:\s*0x(\w+)\s+Offset\s*:\s*0x(\w+)\s+Size\s*:\s*0x(\w+)", told)
    assert sorted(int(ordinal, 16) for ordinal, _, _ in found) == [0, 1, 2, 3]
    assert {int(size, 16) for _, _, size in found} == {8}


def test_the_same_bytes_again_and_no_path_in_them(package: Path, tmp_path: Path) -> None:
    cubins.write_package(tmp_path / "again", PAIRS[:1])
    name = f"{PAIRS[0][0].name}.sm_87.cubin"
    content = (tmp_path / "again" / name).read_bytes()
    assert content == (package / name).read_bytes()
    assert str(Path(cubins.__file__).parents[2]).encode() not in content and b".py" not in content


def ops_of_no_step() -> dict[str, Callable[[], object]]:
    """Calls of every kernel that no step launches, on tensors without memory."""

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    how = variants.Variant("prmt", "prmt", 64)
    stored = GpuGemv().stored(block_format("nvfp4"), (96, 700))
    words, scales = (empty(*stored[n][0], dtype=stored[n][1]) for n in ("words", "lane_scales"))
    codes, factors, floats = empty(19, 768, dtype=torch.int8), empty(19, 24), empty(3, 768)
    ring, slots = (2, 5, 2, 32), empty(2, 3, dtype=torch.int32)
    return {
        "pack_kernel": lambda: action_quant.action_pack(empty(5, 9, 7)),
        "int8_groups": lambda: activations.int8_codes(empty(3, 2500), 2560),
        "lane_order": lambda: activations.lane_floats(empty(3, 2500), 2560),
        "gemv": lambda: [
            gemv.multiply(codes, factors, words, scales, "nvfp4", 1.0, how),
            gemv.multiply(floats, None, words, scales, "nvfp4", 1.0, how),
        ],
        "rms_norm_kernel": lambda: [
            norm.rms_norm(empty(6, 300), empty(300), 1e-5),
            norm.rms_norm_int8(empty(6, 300), empty(300), 1e-5, padded_to=256),
        ],
        "transition_attention_kernel": lambda: attention.transition_attention(
            empty(2, 4, 32), empty(*ring), empty(*ring), slots, empty(2, 3), empty(2, 4, 32)
        ),
    }


@pytest.mark.parametrize("name", ops_of_no_step())
def test_operators_launch_what_the_manifest_says(name: str) -> None:
    """Those of a step: tests/runtime/test_step_launches.py."""
    launches: list[Launch] = []
    with recorded(launches.append):
        ops_of_no_step()[name]()
    assert launches and {launch.name for launch in launches} == {name}
    for launch in launches:
        rows = {"gemv": 1, "transition_attention_kernel": 2, "rms_norm_kernel": 6, "pack_kernel": 5}
        manifests.check(launch, manifests.nearest(launch), rows.get(name, 3))


def launched_from(entry: dict[str, Any], chunks: torch.Tensor) -> torch.Tensor:
    """action_pack by what the manifest says: shapes, types, programs, constants."""
    values = {**entry["constants"], "batch": len(chunks)}
    kinds = dict(entry["arguments"])
    given = {
        name: torch.zeros(
            [manifests.evaluated(axis, values) for axis in array["shape"]],
            dtype=manifests.TYPES[kinds[name].removeprefix("*")],
        )
        for name, array in entry["arrays"].items()
    }
    (source,) = (name for name, array in entry["arrays"].items() if array["role"] == "input")
    (result,) = (name for name, array in entry["arrays"].items() if array["role"] == "output")
    given[source].copy_(chunks)
    kernel = CASES[entry["case"]].kernel
    with repaired():
        manifests.kernel_launched(kernel, entry, manifests.grid_of(entry, values), given)
    return given[result].flatten(1)


def test_a_launch_from_the_manifest_alone(package: Path, seed: int) -> None:
    entry = json.loads((package / cubins.MANIFEST).read_text())["kernels"][0]
    chunks = torch.randn(7, 8, 2, generator=torch.Generator().manual_seed(seed))
    want = torch.ops.wmrt.action_pack(chunks)
    assert torch.equal(launched_from(entry, chunks), want)
    for wrong in (["add", "batch", -1], 1):
        assert not torch.equal(launched_from({**entry, "grid": [wrong, 1, 1]}, chunks), want)


@pytest.mark.parametrize("ends", [UnsupportedError("no"), KeyboardInterrupt()])
def test_half_a_package_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: BaseException
) -> None:
    """Binaries are there while others are compiled, and gone if that fails."""
    compiled, out = aot.compile_case, tmp_path / "package"

    def second_fails(case: aot_cases.AotCase, capability: int) -> aot.Compiled:
        if capability == 120:
            assert [path.suffix for path in out.iterdir()] == [".cubin"]
            raise ends
        return compiled(case, capability)

    monkeypatch.setattr(aot, "compile_case", second_fails)
    with pytest.raises(type(ends)):
        cubins.write_package(out, PAIRS)
    assert not out.exists() and not list(tmp_path.iterdir())


def test_what_goes_into_no_package(tmp_path: Path) -> None:
    case = CASES["action_pack.8x2"]
    with pytest.raises(UsageError, match="tells no grid"):
        cubins.write_package(tmp_path / "a", [(replace(case, grid=None), 87)])
    with pytest.raises(UsageError, match="sm_87 is there twice"):
        cubins.write_package(tmp_path / "a", [(case, 87), (case, 87)])
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        cubins.write_package(tmp_path / "file" / "a", [(case, 87)])


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is there already"):
        cubins.write_package(tmp_path, PAIRS)
