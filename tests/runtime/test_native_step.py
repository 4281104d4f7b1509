"""The native step against the network: every part of it, every recipe, odd sizes, threads, NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.networks import schemas
from tests.runtime.models import drive, eager, same, states, tiny
from tests.runtime.native_oracle import Oracle
from wmrt.core import machine
from wmrt.kernels.native import library as lib
from wmrt.kernels.native import step as abi
from wmrt.model.checkpoint import Checkpoint
from wmrt.runtime import WorldModel
from wmrt.runtime.native_session import NativeSession

RECIPES = ("bf16", "nvfp4", "mxfp4", "w4a8", "nvfp4-a16", "mxfp4-a16")
ISAS = [isa.name for isa in lib.usable_isas()]
#: Nothing a multiple of anything.
ODD: dict[str, Any] = {
    "d_model": 76, "layers": 3, "heads": 6, "kv_heads": 3, "head_dim": 10, "ffn": 99, "window": 7,
    "past": 3, "field_dim": 5, "mlp_hidden": 37, "embed": 29, "table_rows": 31, "table_groups": 3,
    "action_embed": 6, "action_knots": 5, "lstm": 11, "select_dim": 9, "chunk": 3,
    "action_bins": 9, "head_hidden": 41, "dyn_hidden": 43, "state_bins": 7, "reward_bins": 5,
}  # fmt: skip


def native(checkpoint: Checkpoint, **options: Any) -> WorldModel:
    return WorldModel.from_checkpoint(checkpoint, executor="native", **options)


def session_of(model: WorldModel) -> NativeSession:
    assert isinstance(model.session, NativeSession)
    return model.session


def judged(checkpoint: Checkpoint, steps: int, seed: int, **options: Any) -> Oracle:
    """Every part of every step of a random stream, past the ring's wrap-around."""
    model = native(checkpoint, **options)
    oracle = Oracle(checkpoint, session_of(model))
    rng = np.random.default_rng(seed)
    for state in states(model.schema, steps, seed):
        read = model.schema.encode(state, strict=False)
        oracle.step(read.codes, read.values, rng.uniform(-1, 1, len(model.actions)))
    return oracle


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_part_is_the_networks(
    recipe: str,
    isa: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setenv("WMRT_ISA", isa)
    oracle = judged(tiny(seed), 19, seed, recipe=recipe)  # W is 16
    assert oracle.chosen > 9 and oracle.session.state.isa.name == isa
    record_property("isa", isa)


@pytest.mark.parametrize("changes", [{}, {"past": 0}, {"past": 6}, {"heads": 3}], ids=str)
@pytest.mark.parametrize("selector", ["learned", "full", "recent"])
def test_odd_sizes_and_selectors(selector: str, changes: dict[str, Any], seed: int) -> None:
    sizes = {**ODD, **changes, "selector": selector}
    oracle = judged(tiny(seed, **sizes), 10, seed, recipe="nvfp4")
    assert oracle.chosen > 4


@pytest.mark.parametrize("shape", schemas())
def test_every_kind_of_schema(shape: str, seed: int) -> None:
    judged(tiny(seed, schemas()[shape]), 3, seed, recipe="mxfp4")


def test_it_answers_as_the_eager_executor(seed: int) -> None:
    """bf16, where a difference of rounding stays one: no codes tip over for long."""
    checkpoint = tiny(seed, selector="recent")
    a, b = native(checkpoint), eager(checkpoint)
    for state in states(a.schema, 20, seed):
        x, y = a.step(state), b.step(state, None)
        assert b.session.output is not None
        best = b.session.output.logits[0].topk(2, -1).values
        clear = (best[..., 0] - best[..., 1] > 0.05).numpy()  # else either bin may be the mode
        off = np.abs(x.chunk - y.chunk)[clear]
        assert off.max(initial=0.0) < 0.02 and x.issues == y.issues
        b._last_action = a._last_action
        assert (x.fingerprint, x.chunk.shape, x.chunk.dtype) == (y.fingerprint, (4, 2), np.float32)


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4"])
def test_threads_do_not_change_a_bit(recipe: str, seed: int) -> None:
    checkpoint = tiny(seed, **ODD)
    stream = states(checkpoint.schema, 12, seed)
    runs = [
        drive(native(checkpoint, recipe=recipe, threads=count), stream)
        for count in range(1, machine.usable_cpus() + 1)
    ]
    for other in runs[1:]:
        assert all(same(a, b) for a, b in zip(runs[0], other, strict=True))


def test_three_threads_on_any_number_of_processors(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tiny(seed, **ODD)
    stream = states(checkpoint.schema, 4, seed)
    alone = drive(native(checkpoint, recipe="w4a8", threads=1), stream)
    monkeypatch.setattr(machine, "usable_cpus", lambda: 3)
    three = native(checkpoint, recipe="w4a8", threads=3)
    assert three.report().resolved["threads"] == 3
    assert all(same(a, b) for a, b in zip(alone, drive(three, stream), strict=True))


def test_what_a_layer_adds_reaches_everything_behind_it(seed: int) -> None:
    """Each layer's attention and MLP on its own: switched off, x after it and the end change."""
    checkpoint = tiny(seed, layers=3)
    stream = states(checkpoint.schema, 3, seed)
    plain, hidden = _traced(checkpoint, stream, None)
    for layer in range(3):
        for part in range(2):
            scale = torch.ones(3, 2)
            scale[layer, part] = 0.0
            trace, other = _traced(checkpoint, stream, scale)
            changed = [bool((a != b).any()) for a, b in zip(plain, trace, strict=True)]
            assert changed == [i > layer for i in range(4)] and bool((other != hidden).any())


def _traced(
    checkpoint: Checkpoint, stream: list[dict[str, Any]], scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    session = session_of(native(checkpoint, recipe="nvfp4"))
    trace = torch.zeros(4, 1, session.network.config.d_model)
    session.state.look(trace=trace, residual_scale=scale)
    read = session.network.schema.encode(stream[0], strict=False)
    session.step(read.codes, read.values, [0.0, 0.0])  # one step: nothing comes through the ring
    return trace, session.state.arrays["hidden"].clone()


@pytest.mark.parametrize("recipe", ["bf16", "w4a8"])
def test_nan_goes_through_and_never_out_of_bounds(recipe: str, seed: int) -> None:
    model = native(tiny(seed), recipe=recipe)
    session, count = session_of(model), len(model.schema.columns)
    codes = np.full(count, np.iinfo(np.int32).max, np.int32)  # no code of any column
    session.step(codes, np.full(count, np.nan, np.float32), [np.nan, np.nan])
    out = session.state.arrays
    assert all(bool(out[name].isnan().all()) for name in ("hidden", "logits", "chunk", "change"))
    assert bool(out["expected"].isnan()) and int(out["category_code"].sum()) == 0
    for code in (-1, -(2**31)):  # the ring holds NaN now: so does every step that looks back
        session.step(np.full(count, code, np.int32), np.zeros(count, np.float32), [2.0, -2.0])
    model.reset()
    step = model.step({"speed": float("nan")})
    assert np.isfinite(step.chunk).all()


def test_its_structures_are_the_librarys() -> None:
    library = abi.step_library()
    assert library.wmrt_step_sizeof(2) == 0
    assert abi.kernel_isa(0, 99, 0) is None and abi.kernel_isa(0, 2, 2) == "portable"
