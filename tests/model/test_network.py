"""The one-step path equals the whole-sequence path, past the ring's wrap-around; the ring's
rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from wmrt.core.errors import UsageError
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.config import PRESETS, SELECTORS, ModelConfig, preset
from wmrt.model.network import Network
from wmrt.model.rope import rope_table, rotate, turn_increments
from wmrt.model.schema import StateSchema, category, flag, numeric

ACTIONS = ActionSpec(
    (
        ActionDim("steering", "rad", -0.06, 0.06, 0.3, 0.3),
        ActionDim("acceleration", "m/s2", -5, 5, 15, 30),
    )
)


def small_schema() -> StateSchema:
    return StateSchema(
        {
            "speed": numeric("m/s", 0, 40, decimals=2, buckets=16, required=True),
            "gap": numeric("m", 0, 100, decimals=1, buckets=16),
            "lane": category(["left", "middle", "right"]),
            "braking": flag(),
        },
        neutral=[0.0, 0.0],
    )


def build(seed: int, **changes: object) -> Network:
    torch.manual_seed(seed)
    network = Network(small_schema(), preset("tiny").with_(dropout=0.0, **changes), ACTIONS).eval()
    with torch.no_grad():  # a fresh head is too flat to see a difference in
        for p in network.parameters():
            p.mul_(1.5)
    return network


def stream(
    network: Network, batch: int, steps: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    schema = network.schema
    states = [
        [
            {
                "speed": float(rng.uniform(-1, 45)),
                "gap": None if rng.random() < 0.2 else float(rng.uniform(0, 100)),
                "lane": str(rng.choice(["left", "middle", "right", "?"])),
                "braking": bool(rng.random() < 0.5),
            }
            for _ in range(steps)
        ]
        for _ in range(batch)
    ]
    q = np.stack([np.stack([schema.quantize(s)[0] for s in row]) for row in states])
    codes, values = schema.encode_q(q)
    previous = rng.uniform(-1, 1, (batch, steps, 2)).astype(np.float32)
    return torch.from_numpy(codes).long(), torch.from_numpy(values), torch.from_numpy(previous)


@pytest.fixture
def seed() -> int:
    value = int(np.random.SeedSequence().entropy % 2**31)
    print(f"seed {value}")
    return value


@pytest.mark.parametrize("selector", [s for s in SELECTORS if s != "random"])
@pytest.mark.parametrize("past", [0, 4, 15])
def test_step_equals_sequence_past_wraparound(selector: str, past: int, seed: int) -> None:
    network = build(seed, selector=selector, past=past)
    codes, values, previous = stream(network, 3, 50, seed)
    with torch.no_grad():
        whole, _ = network(codes, values, previous)
        ring = network.new_ring(3)
        stepped = torch.stack(
            [network.step(codes[:, t], values[:, t], previous[:, t], ring) for t in range(50)], 1
        )
    # float32 sums in another order: a few hundred ulp of the largest activation over two layers
    tolerance = 512 * torch.finfo(torch.float32).eps * float(whole.abs().max())
    worst = float((whole - stepped).abs().max())
    assert worst <= tolerance, f"step differs from sequence by {worst} (allowed {tolerance})"


def test_past_beyond_the_window_is_forgotten(seed: int) -> None:
    network = build(seed, selector="full", past=15)
    network.selector.lstm.weight_hh.data.zero_()
    codes, values, previous = stream(network, 1, 40, seed)
    other = codes.clone(), values.clone()
    other[0][:, 0], other[1][:, 0] = codes[:, 1], values[:, 1] + 3
    with torch.no_grad():
        a, _ = network(codes, values, previous)
        b, _ = network(*other, previous)
    window, layers = network.config.window, network.config.layers
    reach = layers * (window - 1)
    assert not torch.equal(a[:, 1], b[:, 1])
    assert torch.equal(a[:, reach + 1 :], b[:, reach + 1 :])


def test_unwritten_slots_have_weight_exactly_zero(seed: int) -> None:
    network = build(seed)
    codes, values, previous = stream(network, 1, 40, seed)
    clean, dirty = network.new_ring(), network.new_ring()
    # Whatever an unwritten slot holds (short of NaN), it must not matter by a single bit.
    for tensor in (dirty.keys, dirty.values, dirty.select_keys):
        tensor.uniform_(-1e3, 1e3)
    with torch.no_grad():
        for t in range(network.config.window + 1):
            a = network.step(codes[:, t], values[:, t], previous[:, t], clean)
            b = network.step(codes[:, t], values[:, t], previous[:, t], dirty)
            assert torch.equal(a, b), f"step {t} read a slot that was not written"


def test_reset_equals_a_new_ring(seed: int) -> None:
    network = build(seed)
    codes, values, previous = stream(network, 1, 30, seed)
    with torch.no_grad():
        ring = network.new_ring()
        first = [network.step(codes[:, t], values[:, t], previous[:, t], ring) for t in range(30)]
        ring.reset()
        again = [network.step(codes[:, t], values[:, t], previous[:, t], ring) for t in range(30)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_robots_in_one_batch_do_not_mix(seed: int) -> None:
    network = build(seed)
    codes, values, previous = stream(network, 3, 30, seed)
    with torch.no_grad():
        together, alone = network.new_ring(3), network.new_ring(1)
        for t in range(30):
            a = network.step(codes[:, t], values[:, t], previous[:, t], together)
            b = network.step(codes[1:2, t], values[1:2, t], previous[1:2, t], alone)
            torch.testing.assert_close(a[1:2], b, rtol=1e-4, atol=1e-4)


def test_rings_at_different_steps_share_a_batch(seed: int) -> None:
    network = build(seed)
    codes, values, previous = stream(network, 2, 24, seed)
    with torch.no_grad():
        ring = network.new_ring(2)
        late = network.new_ring(1)
        for t in range(10):
            network.step(codes[:1, t], values[:1, t], previous[:1, t], late)
        for name in ("keys", "values"):
            getattr(ring, name)[:, :1] = getattr(late, name)
        for name in ("select_keys", "hidden", "cell", "step"):
            getattr(ring, name)[:1] = getattr(late, name)
        fresh = network.new_ring(1)
        for t in range(10, 24):
            both = network.step(codes[:, t], values[:, t], previous[:, t], ring)
            torch.testing.assert_close(
                both[:1],
                network.step(codes[:1, t], values[:1, t], previous[:1, t], late),
                rtol=1e-4,
                atol=1e-4,
            )
            torch.testing.assert_close(
                both[1:],
                network.step(codes[1:, t], values[1:, t], previous[1:, t], fresh),
                rtol=1e-4,
                atol=1e-4,
            )


def test_rope_is_as_exact_at_a_billion_steps(seed: int) -> None:
    increments = turn_increments(32, 1000.0)
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(32 * 2, generator=generator), torch.randn(32 * 2, generator=generator)

    def score(step: int, age: int) -> float:
        rotated = [
            rotate(x, *rope_table(torch.tensor(s), increments))
            for x, s in ((q, step), (k, step - age))
        ]
        return float(rotated[0].double() @ rotated[1].double())

    for age in (1, 7, 63):
        near, far = score(1000, age), score(10**9 + 1000, age)
        scale = float(q.norm() * k.norm())
        assert abs(near - far) <= 4 * torch.finfo(torch.float32).eps * scale


def test_hash_rows_ignore_float_values_and_cover_the_table(seed: int) -> None:
    network = build(seed)
    codes, _, _ = stream(network, 4, 50, seed)
    memory = network.fusion.memory
    rows = memory.row_index(codes)
    assert rows.min() >= 0 and rows.max() < memory.rows
    assert torch.equal(rows, memory.row_index(codes.to(torch.int32)))
    assert len(rows.unique()) > memory.rows // 4


def test_embedding_interpolates_between_neighbours(seed: int) -> None:
    network = build(seed)
    schema, table = network.schema, network.fusion.fields
    knots = schema.columns[0].knots
    middle = {"speed": (knots[3] + knots[4]) / 2, "gap": None, "lane": None, "braking": None}
    ends = [dict(middle, speed=knots[i]) for i in (3, 4)]
    encoded = [schema.encode(s) for s in (middle, *ends)]
    got = [table(torch.from_numpy(e.codes), torch.from_numpy(e.values))[:8] for e in encoded]
    torch.testing.assert_close(got[0], (got[1] + got[2]) / 2, rtol=1e-3, atol=1e-3)


def test_preset_sizes() -> None:
    fields = {f"n{i}": numeric("m", 0, 100, buckets=64) for i in range(32)}
    fields |= {f"c{i}": category([f"v{j}" for j in range(31)]) for i in range(12)}
    schema = StateSchema(fields, neutral=[0.0, 0.0])
    with torch.device("meta"):
        counts = {
            name: sum(p.numel() for p in Network(schema, config, ACTIONS).parameters())
            for name, config in PRESETS.items()
        }
    assert abs(counts["1.3b"] / 1.3e9 - 1) <= 0.02, counts
    assert counts["small"] <= 4.5e6, counts
    for name in ("small", "1.3b"):
        c = PRESETS[name]
        assert all(k % 256 == 0 for k in (c.d_model, c.ffn, c.heads * c.head_dim))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"past": 64}, "past must be 0 to"),
        ({"selector": "best"}, "allowed: learned"),
        ({"heads": 3}, "multiple of kv_heads"),
        ({"head_dim": 63}, "even"),
        ({"state_bins": 64}, "odd"),
    ],
)
def test_config_errors_say_what_is_allowed(change: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ModelConfig(**change)


def test_config_json_round_trip_is_strict() -> None:
    data = preset("tiny").to_json()
    assert ModelConfig.from_json(data) == preset("tiny")
    with pytest.raises(UsageError, match="unknown keys"):
        ModelConfig.from_json({**data, "depth": 3})
    data.pop("window")
    with pytest.raises(UsageError, match="missing keys"):
        ModelConfig.from_json(data)


def test_selected_share_is_the_published_one() -> None:
    assert math.isclose(preset("1.3b").past / (preset("1.3b").window - 1), 8 / 63)
