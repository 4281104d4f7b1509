"""StateFusion: interpolated embeddings, exact integer hashing, the previous action."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.model.networks import build, schemas, small_schema, stream
from wmrt.core.errors import UsageError
from wmrt.model.fusion import HASH_SEED, ActionEmbedding, BucketEmbedding, HashedMemory
from wmrt.model.schema import StateSchema, category, numeric, vector

EPS = torch.finfo(torch.float32).eps
DIM = 8


def table_of(schema: StateSchema, seed: int) -> BucketEmbedding:
    torch.manual_seed(seed)
    return BucketEmbedding(schema.columns, DIM)


def embed(table: BucketEmbedding, schema: StateSchema, state: dict[str, object]) -> Tensor:
    codes, values, _ = schema.encode(state)
    with torch.no_grad():
        return table(torch.from_numpy(codes), torch.from_numpy(values)).view(-1, DIM)


# ---- bucket embeddings ----


def test_a_number_is_interpolated_between_its_two_knots(seed: int) -> None:
    rng = np.random.default_rng(seed)
    knots = [0.0, *np.sort(rng.uniform(1, 39, 15)).tolist(), 40.0]
    schema = small_schema().with_knots({"speed": knots})
    table, column = table_of(schema, seed), schema.columns[0]
    for speed in [*rng.uniform(0, 40, 40), 0.0, 40.0]:
        codes, values, _ = schema.encode({"speed": float(speed)})
        bucket, value = int(codes[0]) - 1, float(values[0])
        low, high = column.knots[bucket], column.knots[bucket + 1]
        assert low <= value <= high
        weight = (value - low) / (high - low)
        rows = table.weight.detach()[1 + bucket : 3 + bucket].double()
        expected = rows[0] * (1 - weight) + rows[1] * weight
        got = embed(table, schema, {"speed": float(speed)})[0].double()
        # the weight is a quotient of float32 differences; narrow buckets lose eps * 40 / width
        tolerance = 16 * EPS * 40 / (high - low) + 1e-6
        torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


def test_at_a_knot_the_embedding_is_that_row_and_beyond_the_range_the_last(seed: int) -> None:
    schema = small_schema()
    table, rows = table_of(schema, seed), schema.columns[0].size
    for i, knot in enumerate(schema.columns[0].knots):
        torch.testing.assert_close(
            embed(table, schema, {"speed": knot})[0],
            table.weight[1 + i].detach(),
            rtol=0,
            atol=1e-5,
        )
    assert torch.equal(
        embed(table, schema, {"speed": 1e9})[0], embed(table, schema, {"speed": 40.0})[0]
    )
    assert rows == len(schema.columns[0].knots)


def test_unknown_has_a_row_of_its_own_whatever_the_value_says(seed: int) -> None:
    schema = small_schema()
    table = table_of(schema, seed)
    codes = torch.zeros(4, dtype=torch.int32)
    a = table(codes, torch.zeros(4)).view(4, DIM)
    b = table(codes, torch.tensor([3.0, -7.0, 1.0, 9.0])).view(4, DIM)
    assert torch.equal(a, b)
    for column in range(4):
        assert torch.equal(a[column], table.weight[int(table.row_offset[column])])


def test_every_code_of_every_column_has_its_own_row(seed: int) -> None:
    schema = StateSchema(
        {
            "pose": vector(2, "m", 0, 1, decimals=3, buckets=4),
            "lane": category(["a", "b"]),
            "x": numeric("m", -2, 2, decimals=1, buckets=8),
        },
        neutral=[0.0],
    )
    table = table_of(schema, seed)
    sizes = [6, 6, 3, 10]  # knots and unknown; values and unknown
    assert table.weight.shape[0] == sum(sizes)
    first = 0
    for i, (column, rows) in enumerate(zip(schema.columns, sizes, strict=True)):
        seen: set[int] = set()
        for code in range(column.size):
            table.zero_grad()
            codes = torch.zeros(len(sizes), dtype=torch.int32)
            codes[i] = code
            knots = column.knots[code - 1 : code + 1] if column.numeric and code else (0.0,)
            values = torch.zeros(len(sizes))
            values[i] = sum(knots) / len(knots)
            table(codes, values).view(-1, DIM)[i].sum().backward()
            used = table.weight.grad.abs().sum(-1).nonzero()[:, 0] - first
            assert used.tolist() == ([code, code + 1] if len(knots) > 1 else [code])
            seen.update(used.tolist())
        assert seen == set(range(rows))
        first += rows


# ---- hashed memory ----


def reference_rows(schema: StateSchema, codes: np.ndarray, memory: HashedMemory) -> np.ndarray:
    """The hash written out again in Python integers, its multipliers from NumPy's generator."""
    columns, groups = schema.columns, memory.multipliers.shape[1]
    bits = np.random.MT19937()
    bits._legacy_seeding(HASH_SEED)
    drawn = bits.random_raw(2 * len(columns) * groups)[1::2].tolist()
    rows = []
    for state in codes.reshape(-1, len(columns)).tolist():
        for group in range(groups):
            total = 0
            for i, (column, code) in enumerate(zip(columns, state, strict=True)):
                if group < groups - 1 and i * (groups - 1) // len(columns) != group:
                    continue
                if column.kind == "numeric" and code > 0:
                    code = 1 + (code - 1) * int(memory.cells[i]) // (column.size - 1)
                odd = 2 * (drawn[i * groups + group] % (1 << 30)) + 1
                total += (code + 1) * odd
            mixed = total % 2**32
            mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) % 2**32
            mixed = ((mixed ^ (mixed >> 12)) * 0x297A2D39) % 2**32
            rows.append((mixed ^ (mixed >> 15)) % memory.rows)
    return np.array(rows).reshape(*codes.shape[:-1], groups)


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("name", ["small", *schemas()])
def test_hash_rows_equal_a_second_implementation(name: str, groups: int, seed: int) -> None:
    schema = small_schema() if name == "small" else schemas()[name]
    network = build(seed, schema, table_groups=groups)
    codes, _, _ = stream(network, 2, 20, seed)
    memory = network.fusion.memory
    got = memory.row_index(codes)
    assert np.array_equal(got.numpy(), reference_rows(schema, codes.numpy(), memory))


def test_hash_rows_do_not_depend_on_dtype_or_memory_layout_and_cover_the_table(seed: int) -> None:
    network = build(seed)
    codes, _, _ = stream(network, 4, 50, seed)
    memory = network.fusion.memory
    rows = memory.row_index(codes)
    assert int(rows.min()) >= 0 and int(rows.max()) < memory.rows
    assert torch.equal(rows, memory.row_index(codes.to(torch.int32)))
    assert torch.equal(rows, memory.row_index(codes.transpose(0, 1)).transpose(0, 1))
    alone = torch.stack([memory.row_index(state) for state in codes.flatten(0, 1)])
    assert torch.equal(rows.flatten(0, 1), alone)
    assert len(rows.unique()) > memory.rows // 4


def test_hash_rows_are_the_same_on_a_cuda_device(seed: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    network = build(seed)
    codes, _, _ = stream(network, 4, 50, seed)
    memory = network.fusion.memory
    expected = memory.row_index(codes)
    assert torch.equal(memory.to("cuda").row_index(codes.to("cuda")).cpu(), expected)


def test_a_small_change_of_a_number_keeps_its_rows(seed: int) -> None:
    network = build(seed)
    schema, memory = network.schema, network.fusion.memory
    base = {"speed": 20.3, "gap": 51.0, "lane": "left", "braking": True}

    def rows(**changes: object) -> Tensor:
        return memory.row_index(torch.from_numpy(schema.encode({**base, **changes}).codes))

    assert torch.equal(rows(), rows(speed=20.9))  # same coarse cell of 5 m/s
    assert int((rows() != rows(speed=5.0)).sum()) >= 1
    assert int((rows() != rows(lane="right")).sum()) >= 1
    assert int((rows() != rows(gap=None)).sum()) >= 1


# ---- previous action ----


def test_action_embedding_interpolates_each_dimension(seed: int) -> None:
    torch.manual_seed(seed)
    layer, rng = ActionEmbedding(2, 9, 16), np.random.default_rng(seed)
    knots = np.linspace(-1, 1, 9)
    actions = rng.uniform(-1, 1, (30, 2))
    with torch.no_grad():
        got = layer(torch.from_numpy(actions.astype(np.float32))).view(30, 2, 8).numpy()
        rows = layer.weight.numpy()
    for row, action in zip(got, actions, strict=True):
        for d in range(2):
            expected = [np.interp(action[d], knots, rows[d, :, j]) for j in range(8)]
            np.testing.assert_allclose(row[d], expected, rtol=0, atol=64 * EPS * 4)


def test_action_embedding_at_its_ends_and_beyond(seed: int) -> None:
    torch.manual_seed(seed)
    layer = ActionEmbedding(1, 5, 4)
    with torch.no_grad():
        got = layer(torch.tensor([[-1.0], [1.0], [-3.0], [7.0]]))
    for row, knot in zip(got, (0, 4, 0, 4), strict=True):
        assert torch.equal(row, layer.weight[0, knot].detach())


def test_action_embedding_width_must_divide() -> None:
    with pytest.raises(UsageError, match="action_embed 16 must be a multiple of the 3 action dims"):
        ActionEmbedding(3, 9, 16)


# ---- the whole ----


@pytest.mark.parametrize("name", list(schemas()))
def test_token_and_embedding_for_every_kind_of_schema(name: str, seed: int) -> None:
    network = build(seed, schemas()[name])
    codes, values, previous = stream(network, 2, 7, seed)
    with torch.no_grad():
        token, embedding = network.fusion(codes, values, network.action_embedding(previous))
    assert token.shape == (2, 7, network.config.d_model)
    assert embedding.shape == (2, 7, network.config.embed)
    assert bool(torch.isfinite(token).all())
    # the embedding is normalised: zero mean, unit variance before its learned scale
    plain = (embedding - network.fusion.norm.bias) / network.fusion.norm.weight
    assert float(plain.detach().mean(-1).abs().max()) < 1e-3


def test_gate_decides_how_much_memory_reaches_the_token(seed: int) -> None:
    network = build(seed)
    fusion = network.fusion
    codes, values, previous = stream(network, 1, 5, seed)
    action = network.action_embedding(previous)
    with torch.no_grad():
        fusion.gate.weight.zero_()
        fusion.gate.bias.fill_(-200)
        closed, embedding = fusion(codes, values, action)
        dense = fusion.out(embedding) + fusion.action_in(action)
        assert torch.equal(closed, dense)
        fusion.gate.bias.fill_(200)
        opened, _ = fusion(codes, values, action)
    torch.testing.assert_close(opened - dense, fusion.memory(codes), rtol=1e-4, atol=1e-4)


def test_memory_is_the_sum_of_its_rows(seed: int) -> None:
    network = build(seed)
    memory = network.fusion.memory
    codes, _, _ = stream(network, 1, 6, seed)
    expected = memory.table[memory.row_index(codes)].sum(-2)
    assert torch.equal(memory(codes), expected)
