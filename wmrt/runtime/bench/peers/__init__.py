"""The same step by other runtimes, for `wmrt bench --peers`: what it costs in the linear layers.

Each module builds arms from the model's linear layers, in order, as (name, N, K): every layer with
random weights of its own, so that a step reads the whole set from memory, and each behind the one
before it, so that none runs early. Before it is timed, a peer's output of every distinct shape is
compared with float64; the error is kept in `detail`, and a peer that is wrong is not timed. Threads
inherit the process's affinity. Peers are an extra: ``pip install 'wmrt[peers]'``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from wmrt.core.errors import UsageError
from wmrt.runtime.bench.arms import Arm, Missing

#: Name -> module. Imported when built, so that no peer's library is loaded for another.
PEERS = {
    "torch": "torch_bf16",
    "onnxruntime": "onnxruntime_nbits",
    "openvino": "openvino_int4",
    "llama.cpp": "llama_cpp_decode",
}


def build(
    shapes: Sequence[tuple[str, int, int]], threads: int, names: Sequence[str] = tuple(PEERS)
) -> list[Arm | Missing]:
    """The arms of all peers named; one that cannot run here is a `Missing` with its reason.

    Args:
        shapes: name, N and K of every linear layer, in the order of a step.
        threads: that compute, at least 1.
        names: of `PEERS`.

    Raises `UsageError` for another name, no threads, or layers without a size.
    """
    unknown = sorted(set(names) - PEERS.keys())
    if unknown:
        raise UsageError(f"unknown peers {unknown}; peers are {', '.join(PEERS)}")
    arms: list[Arm | Missing] = []
    for name in names:
        module = importlib.import_module(f"{__name__}.{PEERS[name]}")
        arms += module.build(shapes, threads)
    return arms
