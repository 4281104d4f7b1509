"""The one-step path equals the whole-sequence path, past the ring's wrap-around; the ring's
rules."""

from __future__ import annotations

import pytest
import torch

from tests.model.networks import ACTIONS, build, schemas, small_schema, stream
from wmrt.core.errors import UsageError
from wmrt.model.config import SELECTORS, preset
from wmrt.model.network import Network
from wmrt.model.schema import StateSchema


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


@pytest.mark.parametrize("name", list(schemas()))
def test_every_kind_of_schema_steps_as_it_trains(name: str, seed: int) -> None:
    network = build(seed, schemas()[name])
    codes, values, previous = stream(network, 2, 20, seed)
    with torch.no_grad():
        whole, _ = network(codes, values, previous)
        ring = network.new_ring(2)
        for t in range(20):
            stepped = network.step(codes[:, t], values[:, t], previous[:, t], ring)
            torch.testing.assert_close(stepped, whole[:, t], rtol=1e-4, atol=1e-4)


def test_random_selection_is_a_function_of_its_generator(seed: int) -> None:
    network = build(seed, selector="random")
    codes, values, previous = stream(network, 2, 20, seed)

    def run(number: int) -> torch.Tensor:
        generator, ring = torch.Generator().manual_seed(number), network.new_ring(2)
        with torch.no_grad():
            for t in range(20):
                last = network.step(codes[:, t], values[:, t], previous[:, t], ring, generator)
        return last

    assert torch.equal(run(seed), run(seed))
    assert not torch.equal(run(seed), run(seed + 1))


def test_ring_copies_are_independent_and_its_bytes_are_its_tensors(seed: int) -> None:
    network = build(seed)
    codes, values, previous = stream(network, 2, 6, seed)
    with torch.no_grad():
        ring = network.new_ring(2)
        for t in range(5):
            network.step(codes[:, t], values[:, t], previous[:, t], ring)
        copy, wide = ring.clone(), ring.repeat(3)
        last = codes[:, 5], values[:, 5], previous[:, 5]
        expected = network.step(*last, ring)
        assert torch.equal(network.step(*last, copy), expected)
        tripled = network.step(*(x.repeat_interleave(3, 0) for x in last), wide)
    torch.testing.assert_close(tripled, expected.repeat_interleave(3, 0), rtol=1e-5, atol=1e-5)
    assert wide.step.tolist() == [6] * 6
    assert wide.nbytes == 3 * ring.nbytes
    assert ring.nbytes == sum(t.nbytes for t in ring.tensors().values())


def test_kept_attention_is_what_distillation_reads(seed: int) -> None:
    network = build(seed)
    codes, values, previous = stream(network, 1, 7, seed)
    with torch.no_grad():
        _, without = network(codes, values, previous)
        _, kept = network(codes, values, previous, keep_attention=True)
    c = network.config
    assert without.attention == []
    assert [(q.shape, k.shape) for q, k in kept.attention] == [
        ((1, c.heads, 7, c.head_dim), (1, c.kv_heads, 7, c.head_dim))
    ] * c.layers
    assert kept.scores.shape == (1, 7, 7) and kept.embedding.shape == (1, 7, c.embed)


def test_neutral_must_have_one_number_per_action() -> None:
    schema = StateSchema(small_schema().fields, neutral=[0.0])
    with pytest.raises(UsageError, match="neutral action has 1 numbers, the actions are steering"):
        Network(schema, preset("tiny"), ACTIONS)
