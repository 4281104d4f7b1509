"""torch with bfloat16 weights and activations: eager, and compiled by inductor."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from wmrt.runtime.bench.arms import Arm, Missing
from wmrt.runtime.bench.peers.check import check_layers
from wmrt.runtime.bench.peers.common import (
    Link,
    Peer,
    Shape,
    attempt,
    chain,
    check_threads,
    describe,
    input_width,
    random_input,
)

EAGER, COMPILED = "torch-bf16-eager", "torch-bf16-compiled"
# The output is rounded to 8 bits: at most 2^-9 of each number, and as much again for the input.
LIMIT = 2**-8
# Chains and single layers share the code of one function, of which torch compiles 8 by default.
LARGEST = 256


class Weights:
    """bfloat16[N, K] of every layer, shared by all arms of one chain: 2.6 GB at 1.3B."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.tensors = [random_weight(link) for link in links]


_shared: weakref.WeakValueDictionary[tuple[Link, ...], Weights] = weakref.WeakValueDictionary()


def build(shapes: Sequence[Shape], threads: int) -> list[Arm | Missing]:
    """Two arms, eager and compiled, over the same weights; see `wmrt.runtime.bench.peers`."""
    links = tuple(chain(shapes))
    check_threads(threads)
    weights = _shared.get(links) or Weights(links)
    _shared[links] = weights
    return [
        attempt(EAGER, lambda: _arm(EAGER, links, weights, threads)),
        attempt(COMPILED, lambda: _arm(COMPILED, links, weights, threads)),
    ]


def random_weight(link: Link) -> Tensor:
    """bfloat16[N, K], uniform, of a size that keeps the size of a vector."""
    rng = torch.Generator().manual_seed(link.index)
    bound = math.sqrt(3.0 / link.k)
    return torch.empty(link.n, link.k, dtype=torch.bfloat16).uniform_(-bound, bound, generator=rng)


def _forward(links: Sequence[Link], weights: Sequence[Tensor], x: Tensor) -> Tensor:
    outputs: list[Tensor] = []
    for link, weight in zip(links, weights, strict=True):
        source = x if link.source < 0 else outputs[link.source]
        outputs.append(F.linear(source[:, : link.k], weight))
    return outputs[-1]


def _arm(name: str, links: tuple[Link, ...], weights: Weights, threads: int) -> Arm:
    compiled = name == COMPILED

    def forward(links: Sequence[Link], tensors: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
        def body(x: Tensor) -> Tensor:
            return _forward(links, tensors, x)

        return torch.compile(body, fullgraph=True, dynamic=False) if compiled else body

    def run_layer(link: Link, x: NDArray[np.float32]) -> NDArray[np.float32]:
        alone = [Link(link.index, link.name, link.n, link.k, -1)]
        one = forward(alone, [weights.tensors[link.index]])
        y = _run(threads, lambda: one(torch.from_numpy(x).bfloat16()))
        return y.float().numpy()

    def exact(link: Link) -> NDArray[np.float64]:
        return weights.tensors[link.index].double().numpy()

    with _compiling(compiled):
        errors = check_layers(links, run_layer, exact, LIMIT)
    chain_forward = forward(links, weights.tensors)
    x = torch.from_numpy(random_input(input_width(links))).bfloat16()
    peer = Peer(
        name,
        "bf16",
        threads,
        sum(weight.numel() * weight.element_size() for weight in weights.tensors),
        {
            **describe(["torch"], {"compile": "inductor, fullgraph, static" if compiled else None}),
            "covers": "the linear layers",
            "error": errors,
        },
        lambda: _run(threads, lambda: chain_forward(x)),
    )
    with _compiling(compiled):
        peer.step()
    return peer


def _compiling(compiled: bool) -> AbstractContextManager[Any]:
    return torch._dynamo.config.patch(recompile_limit=LARGEST) if compiled else nullcontext()


def _run(threads: int, run: Callable[[], Tensor]) -> Tensor:
    """torch's thread count is the process's: it is set for the call and given back."""
    before = torch.get_num_threads()
    if before != threads:
        torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            return run()
    finally:
        if before != threads:
            torch.set_num_threads(before)
