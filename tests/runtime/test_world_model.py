"""WorldModel: repeatable steps, forks, snapshots, imagination, and what it refuses."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.networks import schemas
from tests.runtime.models import drive, same, states, tiny
from wmrt.core.errors import StateError, UnsupportedError, UsageError
from wmrt.model.checkpoint import load_checkpoint
from wmrt.model.schema import UNKNOWN, StateSchema
from wmrt.quant import get_recipe
from wmrt.runtime import WorldModel


def model_of(weights: int, /, schema: StateSchema | None = None, **options: Any) -> WorldModel:
    changes = {k: options.pop(k) for k in ("selector", "past") if k in options}
    return WorldModel.from_checkpoint(tiny(weights, schema, **changes), **options)


# ---- repeatable ----


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4"])
def test_the_same_stream_gives_the_same_steps_also_after_reset(recipe: str, seed: int) -> None:
    a, b = model_of(seed, recipe=recipe), model_of(seed, recipe=recipe)
    stream = states(a.schema, 40, seed)
    first, second = drive(a, stream), drive(b, stream)
    a.reset()
    third = drive(a, stream)
    for x, y, z in zip(first, second, third, strict=True):
        assert same(x, y) and same(x, z)


@pytest.mark.parametrize("selector", ["learned", "random"])
def test_a_fork_goes_on_alike_and_then_apart(selector: str, seed: int) -> None:
    model = model_of(seed, selector=selector, action_noise=0.1, seed=seed)
    stream = states(model.schema, 30, seed)
    drive(model, stream[:20])
    twin = model.fork()
    assert twin.network is model.network
    assert all(
        a.data_ptr() != b.data_ptr()
        for a, b in zip(
            model.session.ring.tensors().values(), twin.session.ring.tensors().values(), strict=True
        )
    )
    plan = np.zeros((3, 2), np.float32)
    assert np.array_equal(model.imagine(plan).q, twin.imagine(plan).q)
    for a, b in zip(drive(model, stream[20:]), drive(twin, stream[20:]), strict=True):
        assert same(a, b)
    model.step({"speed": 3.0}, [1.0, -1.0])
    model.reset()
    assert int(twin.session.ring.step) == 30


def test_what_a_fork_does_leaves_the_original_alone(seed: int) -> None:
    model, reference = model_of(seed), model_of(seed)
    stream = states(model.schema, 24, seed)
    drive(model, stream[:12])
    drive(reference, stream[:12])
    drive(model.fork(), states(model.schema, 9, seed + 1))
    for a, b in zip(drive(model, stream[12:]), drive(reference, stream[12:]), strict=True):
        assert same(a, b)


@pytest.mark.parametrize("selector", ["learned", "random"])
def test_a_snapshot_restores_bit_for_bit_into_another_instance(selector: str, seed: int) -> None:
    options = {"action_noise": 0.05, "seed": 3}
    model = model_of(seed, selector=selector, **options)
    stream = states(model.schema, 40, seed)
    drive(model, stream[:25])
    kept = model.snapshot()
    expected = drive(model, stream[25:])
    other = model_of(seed, selector=selector, **options)
    drive(other, stream[7:9])
    other.restore(kept)
    model.restore(kept)  # the snapshot was not touched by the steps after it
    for a, b, c in zip(expected, drive(other, stream[25:]), drive(model, stream[25:]), strict=True):
        assert same(a, b) and same(a, c)


def test_a_snapshot_of_another_model_is_refused_and_changes_nothing(seed: int) -> None:
    model, reference = model_of(seed), model_of(seed)
    stream = states(model.schema, 6, seed)
    drive(model, stream[:3])
    drive(reference, stream[:3])
    others = {
        "schema": model_of(seed, schemas()["flags"]),
        "network": model_of(seed, past=3),
        "weights": model_of(seed + 1),
        "recipe": model_of(seed, recipe="nvfp4"),
    }
    for what, other in others.items():
        with pytest.raises(UsageError, match=f"another model.*differ in .*{what}") as caught:
            model.restore(other.snapshot())
        for each in (model, other):
            assert f"{each.weights_sha256[:16]} under recipe {each.recipe.name}" in str(
                caught.value
            )
    for a, b in zip(drive(model, stream[3:]), drive(reference, stream[3:]), strict=True):
        assert same(a, b)


def test_one_bit_of_one_weight_is_another_model(seed: int) -> None:
    checkpoint = tiny(seed)
    model = WorldModel.from_checkpoint(checkpoint)
    kept = model.snapshot()
    name = "blocks.0.qkv.weight"
    flipped = checkpoint.tensors[name].clone()
    flipped.view(torch.uint8).flatten()[seed % flipped.nbytes] ^= 1
    changed = dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, name: flipped})
    with pytest.raises(UsageError, match="differ in weights"):
        WorldModel.from_checkpoint(changed).restore(kept)


def test_recipes_of_one_name_are_told_apart(seed: int) -> None:
    full = get_recipe("nvfp4")
    model, other = (
        model_of(seed, recipe=full),
        model_of(seed, recipe=full.with_(exclude=("*.0.*",))),
    )
    with pytest.raises(UsageError, match=r"exclude.*differ in weights, recipe"):
        other.restore(model.snapshot())


def test_weights_of_a_file_are_named_by_its_hash(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = model_of(seed)
    model.save_pretrained(tmp_path / "a", card="# a")
    model_of(seed + 1).save_pretrained(tmp_path / "b", card="# b")
    a, b = (WorldModel.from_pretrained(tmp_path / name) for name in "ab")
    assert a.weights_sha256 == load_checkpoint(tmp_path / "a").weights_sha256
    drive(a, states(a.schema, 3, seed))
    again = WorldModel.from_pretrained(tmp_path / "a")
    again.restore(a.snapshot())
    assert int(again.session.ring.step) == 3
    with pytest.raises(UsageError, match=f"{a.weights_sha256[:16]}.*{b.weights_sha256[:16]}"):
        b.restore(a.snapshot())


def test_no_global_generator_is_used(seed: int) -> None:
    model = model_of(seed, selector="random", action_noise=0.3, sample=True)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    drive(model, states(model.schema, 5, seed))
    model.imagine(np.zeros((2, 2)))
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


# ---- one step ----


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


# ---- imagination ----


@pytest.mark.parametrize("selector", ["learned", "full", "recent"])
def test_imagining_equals_stepping_by_hand(selector: str, seed: int) -> None:
    model = model_of(seed, selector=selector, recipe="bf16", executor="eager")
    drive(model, states(model.schema, 25, seed))
    rng = np.random.default_rng(seed)
    plan = rng.uniform(-1, 1, (6, 2)).astype(np.float32)
    rollout = model.imagine(plan)
    network, schema, hand = model.network, model.schema, model.fork()
    hidden = hand.session.output.hidden  # type: ignore[union-attr]
    codes, values = hand.session.codes, hand.session.values
    with torch.inference_mode():
        for t, action in enumerate(torch.from_numpy(plan)):
            p = network.predict(hidden, action[None])
            following, known = network.dynamics.decode_state(p, *network.split(codes, values))
            q = np.full(len(schema.columns), UNKNOWN)
            exact = schema.quantize_array(following.numpy())[0]
            q[:2] = np.where(known[0].numpy(), exact, UNKNOWN)
            category = network.dynamics.decode_category(p)[0].numpy()
            q[2:] = np.where(category > 0, category, UNKNOWN)
            assert rollout.q[0, t].tolist() == q.tolist()
            assert abs(rollout.reward[0, t] - float(network.dynamics.decode_reward(p))) < 1e-6
            assert abs(rollout.proceed[0, t] - float(p.proceed.sigmoid())) < 1e-6
            imagined = schema.decode(q)
            hidden = hand.session.step(*schema.encode_q(q), action.tolist()).hidden
            codes, values = hand.session.codes, hand.session.values
            assert schema.encode(imagined).codes.tolist() == codes[0].tolist()


def test_sequences_imagined_together_are_those_imagined_alone(seed: int) -> None:
    model = model_of(seed)
    drive(model, states(model.schema, 20, seed))
    plans = np.random.default_rng(seed).uniform(-1, 1, (3, 4, 2))
    together = model.imagine(plans)
    assert together.q.shape == (3, 4, 4) and together.reward.shape == (3, 4)
    # Batched products round differently, and a difference may tip a decoded digit: rewards only.
    for i, plan in enumerate(plans):
        np.testing.assert_allclose(together.reward[i, 0], model.imagine(plan).reward[0, 0], 0, 1e-5)


def test_imagining_leaves_the_session_alone(seed: int) -> None:
    model, reference = model_of(seed), model_of(seed)
    stream = states(model.schema, 30, seed)
    drive(model, stream[:20])
    drive(reference, stream[:20])
    a, b = model.imagine(np.ones((5, 2))), model.imagine(np.ones((5, 2)))
    assert np.array_equal(a.q, b.q) and np.array_equal(a.reward, b.reward)
    for x, y in zip(drive(model, stream[20:]), drive(reference, stream[20:]), strict=True):
        assert same(x, y)


def test_the_first_imagined_state_is_the_predicted_one(seed: int) -> None:
    model = model_of(seed)
    for state in states(model.schema, 5, seed):
        step = model.step(state)
        rollout = model.imagine(step.action[None])
        assert model.schema.decode(rollout.q[0, 0]) == step.predicted


def test_imagining_needs_a_state(seed: int) -> None:
    model = model_of(seed)
    with pytest.raises(UsageError, match="call step first"):
        model.imagine(np.zeros((3, 2)))
    drive(model, states(model.schema, 1, seed))
    model.imagine(np.zeros((3, 2)))
    model.reset()
    with pytest.raises(UsageError, match="call step first"):
        model.imagine(np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (np.zeros(2), r"actions of shape \[2\]"),
        (np.zeros((0, 2)), "none of them 0"),
        (np.zeros((0, 3, 2)), "none of them 0"),
        (np.zeros((3, 1)), "with A=2"),
        (np.zeros((1, 1, 3, 2)), "expected"),
        ([[0.0, 0.0], [0.0]], "no array of numbers"),
        (["up", "down"], "no array of numbers"),
        ([[float("nan"), 0.0]], "finite"),
        ([[2.0, 0.0]], r"in \[-1, 1\]"),
    ],
)
def test_actions_that_cannot_be_imagined_are_refused(plan: Any, said: str, seed: int) -> None:
    model = model_of(seed)
    drive(model, states(model.schema, 1, seed))
    with pytest.raises(UsageError, match=said):
        model.imagine(plan)


# ---- what was asked for ----


def test_what_cannot_be_had_is_an_error_with_its_reason(seed: int) -> None:
    checkpoint = tiny(seed)
    with pytest.raises(UnsupportedError, match=r"graph=on cannot be had: a CUDA Graph needs"):
        WorldModel.from_checkpoint(checkpoint, graph="on")
    with pytest.raises(UsageError, match="graph 'maybe' is unknown; allowed: auto, on, off"):
        WorldModel.from_checkpoint(checkpoint, graph="maybe")
    for device in ("tpu", "meta", "cpu:x", ""):
        with pytest.raises(UsageError, match="use cpu, cuda or cuda:N"):
            WorldModel.from_checkpoint(checkpoint, device=device)
    with pytest.raises(UnsupportedError, match="'cuda:63' was asked for, but torch sees"):
        WorldModel.from_checkpoint(checkpoint, device="cuda:63")


def test_requested_and_resolved_are_told_apart(seed: int) -> None:
    data = model_of(seed).report().to_json()
    asked = {"recipe": None, "device": "cpu", "graph": "auto", "executor": "auto", "threads": None}
    assert data["requested"] == asked
    resolved = data["resolved"]
    assert (resolved["recipe"], resolved["device"], resolved["graph"]) == ("bf16", "cpu", False)
    assert "needs a CUDA device" in resolved["graph_reason"]
    assert model_of(seed, graph="off").report().resolved["graph_reason"] == "switched off"


def test_schema_actions_recipe_and_provenance_are_the_checkpoints(seed: int) -> None:
    checkpoint = tiny(seed)
    model = WorldModel.from_checkpoint(checkpoint, recipe="w4a8")
    assert model.schema == checkpoint.schema and model.actions == checkpoint.actions
    assert model.recipe.name == "w4a8" and model.provenance == checkpoint.provenance
