"""Dependent launches: the same bits, in the whole chain of a step. That nothing is read too early
is seen in what compilers make of the AOT cases called ``.dependent``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.kernels.fused import DEPENDENT, DEVICE, running
from tests.kernels.triton import test_ops_heads, test_ops_state
from wmrt.kernels.triton.action_decode import action_decode
from wmrt.kernels.triton.dense import dense
from wmrt.kernels.triton.dependent import options
from wmrt.kernels.triton.norm import rms_norm_to
from wmrt.kernels.triton.state_fusion import state_fusion
from wmrt.kernels.triton.transition_attention import (
    transition_attention,
    transition_attention_int8,
)
from wmrt.kernels.triton.transition_select import transition_select

HEADS: dict[str, Callable[..., None]] = {
    "transition_attention": transition_attention,
    "transition_attention_int8": transition_attention_int8,
    "dense": dense,
    "rms_norm_to": rms_norm_to,
    "action_decode": action_decode,
}
STATE: dict[str, tuple[Callable[..., None], Callable[[int], tuple[Any, ...]]]] = {
    "state_fusion": (state_fusion, test_ops_state.fusion_arguments),
    "transition_select": (transition_select, test_ops_state.select_arguments),
}


@pytest.fixture(autouse=True)
def runs() -> Iterator[None]:
    with running():
        yield


def moved(value: Any) -> Any:
    """On the device, in memory of its own with the same strides."""
    if isinstance(value, torch.Tensor):
        own = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=DEVICE)
        return own.copy_(value)
    return [moved(each) for each in value] if isinstance(value, list) else value


def given(name: str, seed: int) -> tuple[Any, ...]:
    return test_ops_heads.arguments(seed)[name] if name in HEADS else STATE[name][1](seed)


@pytest.mark.parametrize("name", [*HEADS, *STATE])
def test_the_same_bits(name: str, seed: int) -> None:
    launch = HEADS[name] if name in HEADS else STATE[name][0]
    results = []
    for dependent in (False, DEPENDENT.dependent):
        arguments = [moved(each) for each in given(name, seed)]
        launch(*arguments, dependent=dependent)
        results.append([a.cpu() for a in arguments if isinstance(a, torch.Tensor)])
    before = [a for a in given(name, seed) if isinstance(a, torch.Tensor)]
    pairs = list(zip(*results, strict=True))
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
    assert any(not torch.equal(a, old) for (a, _), old in zip(pairs, before, strict=True))


def test_a_launch_says_whether_it_depends() -> None:
    for dependent in (False, True):
        said = options(dependent)
        assert said["DEPENDENT"] is said["launch_pdl"] is dependent and said["enable_fp_fusion"]
