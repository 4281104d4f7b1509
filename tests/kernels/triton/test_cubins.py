"""The package of compiled kernels: whole, the same twice, with nothing of this machine in it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from wmrt.core.errors import UsageError
from wmrt.kernels.triton import aot, aot_cases, cubins

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
    assert kernel["multiples_of_16"] == ["chunk", "out"]
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


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is there already"):
        cubins.write_package(tmp_path, PAIRS)
