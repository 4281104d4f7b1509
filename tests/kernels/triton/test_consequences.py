"""What is read off the dynamics head: the kernel in the interpreter, the operator, the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.model.networks import build, schemas, small_schema
from wmrt.core.errors import UsageError
from wmrt.kernels.triton import ops_decode
from wmrt.kernels.triton.consequences import consequences
from wmrt.kernels.triton.interpreter import repaired
from wmrt.model.heads import Prediction
from wmrt.model.network import Network
from wmrt.runtime.gpu_weights_decode import decode_weights

assert ops_decode  # registers the operator
OP = torch.ops.wmrt.consequences.default


def network_of(seed: int, shape: str | None = None) -> Network:
    network = build(seed, small_schema() if shape is None else schemas()[shape])
    head, generator = network.dynamics, torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.delta_scale.uniform_(0.1, 1.0, generator=generator)
        head.fill.uniform_(0.0, 5.0, generator=generator)
        head.reward_scale.fill_(0.7)
    return network


def given(network: Network, batch: int, seed: int) -> tuple[list[Any], list[Tensor]]:
    """Arguments and results to be written, NaN before."""
    generator = torch.Generator().manual_seed(seed)
    head, columns = network.dynamics, len(network.schema.columns)
    width = head.numeric * (head.state_bins + 1) + sum(head.category_sizes) + head.reward_bins + 1
    outputs = torch.randn(batch, width, generator=generator) * 3
    codes = torch.randint(0, 3, (batch, columns), generator=generator, dtype=torch.int32)
    values = torch.randn(batch, columns, generator=generator) * 10
    results = [
        torch.full((batch, head.numeric), math.nan),
        torch.full((batch, head.numeric), math.nan),
        torch.full((batch, len(head.category_sizes)), -7),
        torch.full((batch,), math.nan),
        torch.full((batch,), math.nan),
    ]
    return [outputs, codes, values, *decode_weights(network)], results


def of_model(network: Network, arguments: list[Any]) -> list[Tensor]:
    """What the model itself reads off, in float64."""
    outputs, codes, values = arguments[:3]
    head = network.dynamics
    parts = [head.numeric * head.state_bins, head.numeric, sum(head.category_sizes)]
    parts += [head.reward_bins, 1]
    change, missing, category, reward, proceed = outputs.double().split(parts, -1)
    change = (
        change.unflatten(-1, (head.numeric, head.state_bins))
        if head.numeric
        else change.view(len(outputs), 0, head.state_bins)
    )
    prediction = Prediction(change, missing, category, reward, proceed[:, 0])
    known = network.split(codes, values.double())
    following = head.decode_state(prediction, *known)[0]
    expected = head.decode_reward(prediction)
    classes = head.decode_category(prediction)
    return [following, missing, classes, expected, prediction.proceed.sigmoid()]


def close(got: list[Tensor], want: list[Tensor], network: Network) -> None:
    """A softmax of 5 terms, an exponential and five more operations, each of a few ulp; a change
    is at most e^5 times what is rounded."""
    limits = (float(network.dynamics.delta_limit.exp().max()) if network.dynamics.numeric else 1.0,)
    for index, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        if mine.dtype == torch.int64:
            assert torch.equal(mine, theirs)
            continue
        scale = limits[0] * 40 if index == 0 else 8.0
        size = theirs.abs().max().clamp(min=1.0) if theirs.numel() else 1.0
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=float(scale * size) * 2**-24)


SHAPES = [None, "no categories", "no numerics", "one flag", "a vector"]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_kernel_and_operator_are_the_models(shape: str | None, batch: int, seed: int) -> None:
    network = network_of(seed, shape)
    arguments, results = given(network, batch, seed)
    want = of_model(network, arguments)
    with repaired():
        consequences(*arguments, *results)
    close(results, want, network)
    again = given(network, batch, seed)[1]
    OP(*arguments, *again)
    close(again, want, network)


@torch.no_grad()
def test_nan_stays_with_its_robot_and_its_number(seed: int) -> None:
    network = network_of(seed)
    arguments, results = given(network, 2, seed)
    with repaired():
        consequences(*arguments, *results)
        clean = [t.clone() for t in results]
        arguments[0][1, 5] = math.nan  # a bin of the first number
        arguments[0][1, -1] = math.nan  # continuation
        consequences(*arguments, *results)
    spoiled = (results[0][1, 0], results[4][1])
    assert all(bool(t.isnan()) for t in spoiled)
    results[0][1, 0], results[4][1] = clean[0][1, 0], clean[4][1]
    assert all(torch.equal(a, b) for a, b in zip(results, clean, strict=True))


@torch.no_grad()
def test_of_equal_logits_the_first_counts(seed: int) -> None:
    network = network_of(seed)
    arguments, results = given(network, 1, seed)
    arguments[0].zero_()
    with repaired():
        consequences(*arguments, *results)
    other = given(network, 1, seed)[1]
    OP(*arguments, *other)
    assert torch.equal(results[2], torch.zeros_like(results[2])) and torch.equal(
        results[2], other[2]
    )
    close(results[:1], [other[0].double()], network)


@torch.no_grad()
def test_opcheck_and_meta(seed: int) -> None:
    network = network_of(seed)
    arguments, results = given(network, 2, seed)
    torch.library.opcheck(OP, (*arguments, *results), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("index", "change", "says"),
    [
        (0, lambda t: t[:, 1:].contiguous(), "outputs is"),
        (1, lambda t: t.long(), r"codes is torch.int64"),
        (2, lambda t: t.double(), "values is torch.float64"),
        (3, lambda w: w[:-1], "takes 5 weights"),
        (4, lambda sizes: [*sizes, 0], "categories of 1 class or more"),
    ],
)
def test_arguments_are_checked(index: int, change: Any, says: str, seed: int) -> None:
    network = network_of(seed)
    arguments, results = given(network, 2, seed)
    arguments[index] = change(arguments[index])
    for call in (consequences, OP):
        with pytest.raises(UsageError, match=says):
            call(*arguments, *results)


@pytest.mark.parametrize("which", range(5))
def test_sizes_are_not_read_off_a_single_number(which: int, seed: int) -> None:
    arguments, results = given(network_of(seed), 2, seed)
    weights = [*arguments[3][:which], torch.tensor(1.0), *arguments[3][which + 1 :]]
    with pytest.raises(UsageError, match="consequences takes"):
        OP(*arguments[:3], weights, *arguments[4:], *results)
