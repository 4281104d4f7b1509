"""WMRT_ISA end to end: the whole step runs under the set it names, or nothing runs at all."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cli.calls import line, run
from tests.kernels.native import emulation
from tests.runtime.models import drive, states, tiny
from tests.runtime.native_oracle import Oracle
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.native import library as lib
from wmrt.kernels.native import step as abi
from wmrt.model.checkpoint import save_checkpoint
from wmrt.runtime import WorldModel
from wmrt.runtime.capacity import estimate
from wmrt.runtime.native_session import NativeSession
from wmrt.runtime.probe import watch

USABLE = [isa.name for isa in lib.usable_isas()]
ABSENT = [isa.name for isa in lib._isas() if isa.name not in USABLE]
RECIPES = ("bf16", "nvfp4", "mxfp4", "w4a8", "nvfp4-a16", "mxfp4-a16")


@pytest.fixture
def folder(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save_checkpoint(tmp_path / "model", tiny(seed), card="# tiny")
    return tmp_path / "model"


@pytest.mark.parametrize("isa", USABLE)
def test_a_model_runs_under_the_set_that_is_named(
    isa: str, folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WMRT_ISA", isa)
    model = WorldModel.from_pretrained(folder, recipe="nvfp4")
    assert model.report().resolved["isa"] == isa
    with watch(model) as calls:
        drive(model, states(model.schema, 2, seed))
    packed = [call["isa"] for name, call in calls.items() if name.startswith("blocks.")]
    assert len(packed) == 8 and set(packed) == {isa}


@pytest.mark.parametrize("executor", ["auto", "native"])
@pytest.mark.parametrize("isa", [*ABSENT, "sse9"])
def test_one_that_is_absent_is_an_error_whatever_the_executor(
    isa: str, executor: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WMRT_ISA", isa)
    kind = UnsupportedError if isa in ABSENT else UsageError
    with pytest.raises(kind, match=rf"WMRT_ISA='?{isa}.*usable here are portable"):
        WorldModel.from_pretrained(folder, executor=executor)
    with pytest.raises(kind, match="usable here are portable"):
        estimate(tiny(1), "nvfp4", executor=executor)


def test_torch_needs_no_instruction_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMRT_ISA", ABSENT[0])
    model = WorldModel.from_pretrained(folder, executor="eager")
    assert model.report().resolved["isa"] is None


@pytest.mark.parametrize("isa", USABLE)
def test_drive_reports_it(isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("highway_env", reason="pip install 'wmrt[drive]'")
    from wmrt.cli.driving import stand

    monkeypatch.setenv("WMRT_ISA", isa)
    monkeypatch.setattr(stand, "WARM_UP", 1)
    options = ["drive", "--episodes", "1", "--no-breakers"]
    found = run(tmp_path / "r.json", *options)
    assert (
        found["identity"]["resolved"]["isa"]
        == found["results"]["run"]["report"]["resolved"]["isa"]
        == isa
    )


@pytest.mark.parametrize("isa", [ABSENT[0], "sse9"])
def test_drive_refuses_an_absent_one_in_one_line(
    isa: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("highway_env", reason="pip install 'wmrt[drive]'")
    monkeypatch.setenv("WMRT_ISA", isa)
    said = line(capsys, "drive", "--episodes", "1")
    assert f"{isa}" in said and "usable here are portable" in said


@pytest.fixture
def emulated(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The whole library with AVX-512 in an emulation, in the place of the one that is built."""
    to = emulation.target("avx512-vnni")
    made = []
    for source in sorted(emulation.NATIVE.glob("*.c")):
        flags = ["-O2"]
        if source.name.startswith("avx512"):
            flags = [*emulation.STRICT, *to.extra]
        elif source.name == "cpu.c":
            flags = ["-D__builtin_cpu_supports(set)=1"]  # it has what is emulated
        made.append(
            emulation.compiled(to.compiler, flags, source, emulation.objects(request.config))
        )
    path = tmp_path / "_native.so"
    link = ["-shared", "-pthread", "-Wl,-z,defs", "-lm", "-o", str(path)]
    subprocess.run([to.compiler, *map(str, made), *link], check=True)
    monkeypatch.setattr(lib, "_library", lib.load(path))
    monkeypatch.setenv("WMRT_ISA", to.isa)
    abi.step_library.cache_clear()
    yield to.isa
    abi.step_library.cache_clear()


@pytest.mark.full
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_part_of_a_step_under_avx512_is_the_networks(
    recipe: str, emulated: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    checkpoint = tiny(seed)
    model = WorldModel.from_checkpoint(checkpoint, recipe=recipe, executor="native", threads=1)
    assert model.report().resolved["isa"] == emulated
    assert isinstance(model.session, NativeSession)
    oracle = Oracle(checkpoint, model.session)
    rng = np.random.default_rng(seed)
    for state in states(model.schema, 19, seed):  # W is 16
        read = model.schema.encode(state, strict=False)
        oracle.step(read.codes, read.values, rng.uniform(-1, 1, len(model.actions)))
    assert oracle.chosen > 9
    record_property("isa", f"{emulated} (emulated)")
