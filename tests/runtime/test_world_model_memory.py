"""A model's memory: repeatable steps, forks, snapshots, and whose a snapshot is."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model.networks import schemas
from tests.runtime.models import drive, model_of, same, states, tiny
from wmrt.core.errors import UsageError
from wmrt.model.checkpoint import load_checkpoint
from wmrt.quant import get_recipe
from wmrt.runtime import WorldModel


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
