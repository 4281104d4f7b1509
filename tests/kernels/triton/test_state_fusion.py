"""StateFusion's kernels, on a GPU or in the interpreter, against float64 and the model itself."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels import state_oracle as oracle
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.state_arguments import FusionSizes, fusion_work
from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.state_fusion import state_fusion
from wmrt.model.network import Network
from wmrt.runtime.gpu_weights_state import fusion_weights

BARE = {"mlp_hidden": 3, "embed": 2, "d_model": 10, "field_dim": 2}


@pytest.fixture(autouse=True)
def runs() -> object:
    with nullcontext() if oracle.DEVICE == "cuda" else repaired():
        yield


def check(net: Network, batch: int, seed: int) -> None:
    given = oracle.states(net, batch, seed)
    action, token, bound = oracle.fused(net, *given)
    got = oracle.fuse(state_fusion, net, *given)
    off = (got.token - token).abs()
    assert bool((off <= bound).all()), float((off / bound).max())
    # Bounds hold for the worst of all roundings. What float32 really is off by, torch shows.
    torchs = net.fusion(*given[:2], net.action_embedding(given[2]))[0] - token
    allowed = 16 * float(torchs.abs().max()) + 4 * oracle.U * float(token.abs().max())
    assert float(off.max()) <= allowed
    torch.testing.assert_close(
        got.action.double(), action, rtol=0, atol=oracle.embedding_bound(net)
    )
    s = FusionSizes(*fusion_weights(net)[1])
    rows = got.work.view(batch, -1)[:, s.mlp_hidden :].contiguous().view(torch.int32)
    assert torch.equal(rows.long(), net.fusion.memory.row_index(given[0]))


@pytest.mark.parametrize("narrow", [True, False])
def test_two_robots(narrow: bool, seed: int) -> None:
    net = oracle.network(seed, narrow=narrow)
    kinds = {t.dtype for t in fusion_weights(net)[0]}
    assert (torch.bfloat16 in kinds) == narrow
    check(net, 2, seed)


def test_more_fields_than_a_pass_and_one_group(seed: int) -> None:
    check(oracle.network(seed, numbers=70, table_groups=1, field_dim=4), 1, seed)


def test_widths_of_the_largest_preset(seed: int) -> None:
    check(oracle.network(seed, numbers=14, **oracle.WIDE), 1, seed)


def test_sixteen_robots(seed: int) -> None:
    """Rows of the memory are the model's for each of them."""
    more = {"embed": 24, "table_rows": 2048, "table_groups": 16, "table_cells": 8}
    check(oracle.network(seed, **BARE | more), 16, seed)


def test_a_robot_has_the_same_bits_beside_any_others(seed: int) -> None:
    net = oracle.network(seed, **BARE)
    given = oracle.states(net, 3, seed)
    together = oracle.fuse(state_fusion, net, *given)
    for robot in range(3):
        alone = oracle.fuse(state_fusion, net, *(t[robot : robot + 1] for t in given))
        assert torch.equal(alone.token[0], together.token[robot])
        assert torch.equal(alone.action[0], together.action[robot])
    codes, values, previous = given
    codes[1], values[1], previous[1, 0] = 1, math.nan, math.nan
    broken = oracle.fuse(state_fusion, net, codes, values, previous)
    assert bool(broken.token[1].isnan().all()) and bool(broken.action[1, :5].isnan().all())
    assert torch.equal(broken.token[::2], together.token[::2])
    assert torch.equal(broken.action[::2], together.action[::2])


def test_codes_that_are_not_the_schemas_become_the_nearest(seed: int) -> None:
    net = oracle.network(seed, **BARE)
    codes, values, previous = oracle.states(net, 2, seed)
    sizes = torch.tensor([column.size for column in net.schema.columns])
    codes[0], codes[1] = -3, sizes + 5
    near = torch.stack([torch.zeros_like(sizes), sizes - 1]).int()
    got = oracle.fuse(state_fusion, net, codes, values, previous)
    want = oracle.fuse(state_fusion, net, near, values, previous)
    assert torch.equal(got.token, want.token)


def test_a_value_that_is_unknown_plays_no_part(seed: int) -> None:
    net = oracle.network(seed, **BARE)
    codes, values, previous = oracle.states(net, 1, seed)
    codes[:] = 0
    found = [
        oracle.fuse(state_fusion, net, codes, torch.full_like(values, v), previous).token.numpy()
        for v in (1.0, math.nan, math.inf)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def arguments() -> dict[str, Any]:
    net = oracle.network(0, **BARE)
    weights, sizes = fusion_weights(net)
    codes, values, previous = oracle.states(net, 2, 0)
    out = (torch.zeros(2, 10), torch.zeros(fusion_work(sizes, 2)), torch.zeros(2, 10))
    names = "codes values previous weights sizes action work token".split()
    return dict(zip(names, (codes, values, previous, weights, sizes, *out), strict=True))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"codes": torch.zeros(2, 5)}, UsageError, r"codes is torch.float32 \[2, 5\]"),
        ({"codes": torch.zeros(17, 5, dtype=torch.int32)}, UsageError, "1 to 16 robots"),
        ({"values": torch.zeros(5, 2).t()}, UsageError, "not contiguous; state_fusion takes"),
        ({"previous": torch.zeros(2, 3)}, UsageError, r"takes contiguous float32 \[2, 2\] on cpu"),
        ({"token": torch.zeros(2, 10, device="meta")}, UsageError, "on meta"),
        ({"work": torch.zeros(3)}, UsageError, r"work is torch.float32 \[3\]"),
        ({"weights": []}, UsageError, "0 given of FusionWeights, which are 14: fields, knots"),
        ({"sizes": [1, 2]}, UsageError, "2 given of FusionSizes"),
        ({"sizes": [5, 2, 34, 3, 2, 10, 61, 3, 2, 1, 10]}, UsageError, "action_knots at least 2"),
        ({"sizes": [5, 2, 34, 3, 2, 10, 61, 3, 3, 5, 10]}, UsageError, "multiple of actions"),
        ({"sizes": [5, 2, 34, 3, 2000, 10, 61, 3, 2, 5, 10]}, UnsupportedError, "up to 1024"),
    ],
)  # fmt: skip
def test_arguments_are_checked(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        state_fusion(**{**arguments(), **change})
