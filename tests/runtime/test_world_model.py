"""WorldModel: one step, every state and schema, and a request that cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.networks import schemas
from tests.runtime.models import drive, model_of, same, states, tiny
from wmrt.core.errors import StateError, UnsupportedError, UsageError
from wmrt.runtime import WorldModel


def test_a_step_is_complete(seed: int) -> None:
    model = model_of(seed)
    state = {"speed": 21.5, "gap": 33.3, "lane": "left", "braking": False}
    step = model.step(state)
    assert step.action.dtype == step.chunk.dtype == np.float32
    assert step.action.shape == (2,) and step.chunk.shape == (4, 2)
    assert np.array_equal(step.action, step.chunk[0])
    assert np.abs(step.chunk).max() <= 1.0001
    assert step.fingerprint == model.schema.fingerprint(state)
    assert step.issues == ()
    assert set(step.predicted) == set(model.schema.fields)
    assert 0.0 <= step.proceed <= 1.0
    assert len(step.packed) == 10
    unpacked = model.network.action_quant.unpack(step.packed)
    # at most one step of amax/7 away
    assert float((unpacked - torch.from_numpy(step.chunk)).abs().max()) <= 1.001 / 7
    parts = step.timing_ns
    assert set(parts) == {"encode", "network", "decode", "total"}
    assert parts["total"] == parts["encode"] + parts["network"] + parts["decode"] > 0


def test_actions_and_chunks_are_copies_of_their_own(seed: int) -> None:
    model = model_of(seed)
    stream = states(model.schema, 2, seed)
    first = model.step(stream[0])
    kept = first.action.copy(), first.chunk.copy()
    model.step(stream[1])
    assert np.array_equal(first.action, kept[0]) and np.array_equal(first.chunk, kept[1])


def test_the_previous_action_defaults_to_the_models_own(seed: int) -> None:
    a, b = model_of(seed), model_of(seed)
    stream = states(a.schema, 12, seed)
    before = np.array(a.schema.neutral, np.float32)
    for state in stream:
        x, y = a.step(state), b.step(state, before)
        assert same(x, y)
        before = x.action
    a.reset()
    assert same(a.step(stream[0]), model_of(seed).step(stream[0], a.schema.neutral))


def test_the_previous_action_matters(seed: int) -> None:
    a, b = model_of(seed), model_of(seed)
    state = states(a.schema, 1, seed)[0]
    assert not np.array_equal(
        a.step(state, [0.9, -0.9]).chunk, b.step(state, (np.float64(-0.9), 0.9)).chunk
    )


@pytest.mark.parametrize(
    "action",
    [[], [0.0], [0, 0, 0], [1.01, 0], [float("nan"), 0], [0, float("inf")], 5, "up", [None, 0],
     ["a", "b"], [[0, 0], [0, 0]]],
)  # fmt: skip
def test_a_previous_action_that_cannot_be_is_refused_and_changes_nothing(
    action: Any, seed: int
) -> None:
    model, reference = model_of(seed), model_of(seed)
    state = states(model.schema, 1, seed)[0]
    with pytest.raises(StateError, match=r"expected 2 numbers \(steering, acceleration\)"):
        model.step(state, action)
    assert same(model.step(state), reference.step(state))


HOSTILE: list[Any] = [
    {},
    None,
    17,
    {"speed": float("nan"), "gap": float("inf"), "lane": 4, "braking": "perhaps"},
    {"speed": "fast", "gap": [], "lane": None, "braking": {}},
    {"speed": 1e300, "gap": -5, "lane": "sideways", "braking": 2, "surplus": 1},
]


@pytest.mark.parametrize("index", range(len(HOSTILE)))
def test_tolerant_states_become_issues_and_finite_actions(index: int, seed: int) -> None:
    model, state = model_of(seed), HOSTILE[index]
    step = model.step(state)
    assert step.issues and np.isfinite(step.chunk).all()
    assert step.issues == model.schema.encode(state).issues
    assert step.fingerprint == model.schema.fingerprint(state)


@pytest.mark.parametrize("index", range(len(HOSTILE)))
def test_strict_states_are_refused_and_change_nothing(index: int, seed: int) -> None:
    model, reference = model_of(seed), model_of(seed)
    with pytest.raises(StateError):
        model.step(HOSTILE[index], strict=True)
    good = {"speed": 10.0, "gap": None, "lane": "left", "braking": True}
    assert same(model.step(good, strict=True), reference.step(good))


@pytest.mark.parametrize("name", list(schemas()))
def test_every_kind_of_schema_steps_imagines_and_round_trips(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    schema = schemas()[name]
    model = model_of(seed, schema, recipe="nvfp4")
    stream = states(schema, 20, seed)
    steps = drive(model, stream)
    for state, step in zip(stream, steps, strict=True):
        assert np.isfinite(step.chunk).all()
        assert step.fingerprint == schema.fingerprint(state)
        # a predicted state is a state of the schema
        assert schema.decode(schema.quantize(step.predicted)[0]) == step.predicted
    rollout = model.imagine(np.zeros((3, 2)))
    assert rollout.q.shape == (1, 3, len(schema.columns))
    model.save_pretrained(tmp_path / "c", card="x")
    again = WorldModel.from_pretrained(tmp_path / "c")
    assert all(same(a, b) for a, b in zip(steps, drive(again, stream), strict=True))


def test_what_cannot_be_had_is_an_error_with_its_reason(seed: int) -> None:
    checkpoint = tiny(seed)
    with pytest.raises(UnsupportedError, match=r"graph=on cannot be had: a CUDA Graph needs"):
        WorldModel.from_checkpoint(checkpoint, graph="on")
    with pytest.raises(UsageError, match="graph 'maybe' is unknown; allowed: auto, on, off"):
        WorldModel.from_checkpoint(checkpoint, graph="maybe")
    for device in ("tpu", "meta", "cpu:x", ""):
        with pytest.raises(UsageError, match="use cpu, cuda or cuda:N"):
            WorldModel.from_checkpoint(checkpoint, device=device)
    with pytest.raises(UnsupportedError, match="device 'cuda:63' cannot be had: torch "):
        WorldModel.from_checkpoint(checkpoint, device="cuda:63")


def test_requested_and_resolved_are_told_apart(seed: int) -> None:
    data = model_of(seed).report().to_json()
    asked = {"recipe": None, "device": "cpu", "graph": "auto", "executor": "auto", "threads": None}
    assert data["requested"] == {**asked, "cpus": None, "pages": "auto"}
    resolved = data["resolved"]
    assert (resolved["recipe"], resolved["device"], resolved["graph"]) == ("bf16", "cpu", False)
    assert "needs a CUDA device" in resolved["graph_reason"]
    assert model_of(seed, graph="off").report().resolved["graph_reason"] == "switched off"


def test_schema_actions_recipe_and_provenance_are_the_checkpoints(seed: int) -> None:
    checkpoint = tiny(seed)
    model = WorldModel.from_checkpoint(checkpoint, recipe="w4a8")
    assert model.schema == checkpoint.schema and model.actions == checkpoint.actions
    assert model.recipe.name == "w4a8" and model.provenance == checkpoint.provenance
