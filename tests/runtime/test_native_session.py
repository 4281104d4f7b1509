"""The native executor: when it runs, what it says, what it holds; one robot's memory under it."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.runtime.models import drive, eager, same, states, tensors_within, tiny
from tests.runtime.native_oracle import near
from wmrt.core import machine
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.native import library as lib
from wmrt.model.checkpoint import load_checkpoint, save_checkpoint
from wmrt.runtime import WorldModel
from wmrt.runtime.build import linears, to_checkpoint
from wmrt.runtime.native_session import NativeSession
from wmrt.runtime.probe import watch


def native(seed: int, **options: Any) -> WorldModel:
    return WorldModel.from_checkpoint(tiny(seed), executor="native", **options)


# ---- which executor ----


def test_auto_is_native_and_says_what_runs(seed: int) -> None:
    model = WorldModel.from_checkpoint(tiny(seed), recipe="nvfp4")
    report = model.report()
    assert isinstance(model.session, NativeSession)
    assert (report.requested["executor"], report.requested["threads"]) == ("auto", None)
    resolved = report.resolved
    assert (resolved["executor"], resolved["isa"]) == ("native", lib.isa().name)
    assert resolved["threads"] == max(1, machine.usable_cpus() - 1)
    assert report.kernels == {"linear_nvfp4_a8.native": 8, "linear_bf16.native": 2}


@pytest.mark.parametrize(
    ("recipe", "changes", "why"),
    [
        ("fp8", {}, "no native linear for weights 'fp8-channel'"),
        ("w4a8-zp", {}, "no native linear for weights 'int4-g128-zp'"),
        ("bf16", {"selector": "random"}, "no random selector"),
    ],
)
def test_what_it_cannot_step_runs_eagerly_or_is_refused(
    recipe: str, changes: dict[str, Any], why: str, seed: int
) -> None:
    checkpoint = tiny(seed, **changes)
    resolved = WorldModel.from_checkpoint(checkpoint, recipe=recipe).report().resolved
    assert resolved["executor"] == "eager" and why in resolved["executor_reason"]
    with pytest.raises(UnsupportedError, match="executor=native cannot be had: .*" + why):
        WorldModel.from_checkpoint(checkpoint, recipe=recipe, executor="native")


def test_without_the_library_auto_says_so(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lib, "_library", None)
    monkeypatch.setattr(lib, "PATH", tmp_path / "absent.so")
    resolved = WorldModel.from_checkpoint(tiny(seed)).report().resolved
    assert resolved["executor"] == "eager" and "not built" in resolved["executor_reason"]
    with pytest.raises(UnsupportedError, match="not built"):
        native(seed)


def test_words_and_numbers_that_are_none(seed: int) -> None:
    with pytest.raises(UsageError, match="executor 'fast' is unknown; allowed: auto, native"):
        WorldModel.from_checkpoint(tiny(seed), executor="fast")
    nonsense: tuple[Any, ...] = (0, -1, machine.usable_cpus() + 1, "two", 1.5, True)
    for threads in nonsense:
        for executor in ("native", "eager", "auto"):
            with pytest.raises(UsageError, match="the processors this process may use"):
                WorldModel.from_checkpoint(tiny(seed), executor=executor, threads=threads)


# ---- what it holds ----


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4"])
def test_nothing_but_the_reported_tensors_is_held(recipe: str, seed: int) -> None:
    model = native(seed, recipe=recipe)
    report = model.report()
    drive(model, states(model.schema, 3, seed))
    model.reset()
    gc.collect()
    held = {t.untyped_storage().data_ptr(): t for t in tensors_within(model)}
    calls = model.session.state.calls.untyped_storage().nbytes()  # type: ignore[attr-defined]
    total = sum(t.untyped_storage().nbytes() for t in held.values())
    assert total - calls == report.resident_bytes
    small = [t for n, t in model.network.named_parameters() if "action_quant" not in n]
    assert {t.dtype for t in small} == {torch.bfloat16}


def test_a_mapped_file_is_read_where_it_is(tmp_path: Path, seed: int) -> None:
    first = native(seed, recipe="nvfp4")
    plain = to_checkpoint(first.network, first.recipe, {}, layout="cpu_interleaved")
    save_checkpoint(tmp_path / "m", plain, card="# packed")
    checkpoint = load_checkpoint(tmp_path / "m")
    model = WorldModel.from_checkpoint(checkpoint, executor="native")
    for name, module in linears(model.network).items():
        for part, tensor in (*module.named_buffers(), *module.named_parameters()):
            assert tensor.data_ptr() == checkpoint.tensors[f"{name}.{part}"].data_ptr(), name
    session = model.session
    assert isinstance(session, NativeSession)
    first_rows = session.state.model.matrices[session.state.model.names.index("blocks.0.qkv")].rows
    assert first_rows == checkpoint.tensors["blocks.0.qkv.interleaved"].data_ptr()
    table = "fusion.memory.table"
    held = model.network.get_parameter(table)
    assert held.data_ptr() == checkpoint.tensors[table].data_ptr()
    stream = states(model.schema, 5, seed)
    assert all(same(a, b) for a, b in zip(drive(first, stream), drive(model, stream), strict=True))


def test_the_probe_sees_every_linear_of_a_native_step(seed: int) -> None:
    model = native(seed, recipe="mxfp4")
    with watch(model) as calls:
        drive(model, states(model.schema, 3, seed))
    assert calls.keys() == linears(model.network).keys()
    for name, call in calls.items():
        assert call["calls"] == 3 and call["kernels"] == [model.report().layers[name]]
        assert call["isa"] in ("portable", model.report().resolved["isa"])
        assert 0 <= call["deviation"] < 1e-5 and call["input"] == "float32"
    # Another weight than the network says: the structure is what runs.
    session = model.session
    assert isinstance(session, NativeSession)
    index = session.state.model.names.index("blocks.1.down")
    session.state.model.matrices[index].global_scale *= 1.01
    with watch(model) as calls:
        drive(model, states(model.schema, 1, seed))
    assert calls["blocks.1.down"]["deviation"] == pytest.approx(0.01, rel=1e-2)
    assert calls["blocks.0.down"]["deviation"] < 1e-5


# ---- one robot's memory ----


def test_a_step_keeps_what_it_was_given(seed: int) -> None:
    model = native(seed)
    stream = states(model.schema, 4, seed)
    first = model.step(stream[0])
    action, chunk = first.action.copy(), first.chunk.copy()
    drive(model, stream[1:])
    assert np.array_equal(first.action, action) and np.array_equal(first.chunk, chunk)


def test_memory_moves_between_executors(tmp_path: Path, seed: int) -> None:
    save_checkpoint(tmp_path / "m", tiny(seed, selector="recent"), card="# float")
    a, b = (WorldModel.from_pretrained(tmp_path / "m", executor=e) for e in ("native", "eager"))
    stream = states(a.schema, 25, seed)
    drive(a, stream[:20])
    b.restore(a.snapshot())
    assert int(b.session.ring.step) == 20
    for state in stream[20:]:
        x, y = a.step(state), b.step(state)
        assert np.abs(x.chunk - y.chunk).max() < 0.02  # roundings to bfloat16 may tip over
        b._last_action = a._last_action


def test_imagining_is_stepping(seed: int) -> None:
    """Bit for bit: an imagined future is what the model would say of those states."""
    model = native(seed, recipe="nvfp4")
    drive(model, states(model.schema, 18, seed))
    plan = np.random.default_rng(seed).uniform(-1, 1, (18, 3, 2)).astype(np.float32)
    rollout = model.imagine(plan)
    assert rollout.q.shape == (18, 3, len(model.schema.columns))
    again = model.imagine(plan[[4, 17]])
    assert np.array_equal(again.q, rollout.q[[4, 17]])
    assert np.array_equal(again.reward, rollout.reward[[4, 17]])
    assert np.isfinite(rollout.reward).all() and np.isfinite(rollout.proceed).all()


def test_imagination_is_the_eager_ones(seed: int) -> None:
    checkpoint = tiny(seed, selector="full")
    a, b = WorldModel.from_checkpoint(checkpoint, executor="native"), eager(checkpoint)
    state = states(a.schema, 1, seed)[0]
    a.step(state), b.step(state)
    plan = np.random.default_rng(seed).uniform(-1, 1, (2, 1, 2)).astype(np.float32)
    x, y = a.imagine(plan), b.imagine(plan)
    near("reward", torch.from_numpy(x.reward), torch.from_numpy(y.reward), 1 << 16)
    near("proceed", torch.from_numpy(x.proceed), torch.from_numpy(y.proceed), 1 << 16)


def test_a_forked_process_is_refused_not_hung(seed: int) -> None:
    if machine.usable_cpus() < 2:
        pytest.skip("one processor: no threads to lose")
    model = native(seed, threads=2)
    model.step({})
    child = os.fork()
    if child == 0:
        try:
            model.step({})
        except UsageError as error:
            os._exit(7 if "after the fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
