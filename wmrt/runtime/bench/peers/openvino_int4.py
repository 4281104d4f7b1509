"""OpenVINO: signed 4-bit weights in groups of 128 with float16 scales, the form that its weight
compression writes, at its latency hint.

https://docs.openvino.ai/2026/openvino-workflow/model-optimization-guide/weight-compression.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.core.errors import UnsupportedError
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
    random_codes,
    random_input,
    random_scales,
    require,
    whole_groups,
)

NAME = "openvino-int4"
GROUPS = (128, 64, 32)
# With VNNI it rounds activations to int8 in groups of 32, which costs 0.5%; with AVX2 it does not.
LIMIT = 0.015


def build(shapes: Sequence[Shape], threads: int) -> list[Arm | Missing]:
    """One arm; see `wmrt.runtime.bench.peers`."""
    links = chain(shapes)
    check_threads(threads)
    return [attempt(NAME, lambda: _arm(links, threads))]


def _arm(links: Sequence[Link], threads: int) -> Arm:
    ov = require("openvino", "openvino")
    whole_groups(links, GROUPS[-1])
    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,  # it would pick processors; all arms share the process's
    }

    def run(link: Link, x: NDArray[np.float32]) -> Any:
        alone = Link(link.index, link.name, link.n, link.k, -1)
        return _compiled(ov, [alone], config)(x)[0]

    errors = check_layers(links, run, dequantized, LIMIT)
    compiled = _compiled(ov, links, config)
    request = compiled.create_infer_request()
    request.set_input_tensor(ov.Tensor(random_input(input_width(links))))
    detail = {
        **describe(["openvino"], {**config, **_resolved(compiled), "weights": "i4"}),
        "covers": "the linear layers",
        "groups": sorted({group_of(link) for link in links}),
        "error": errors,
    }
    size = sum(link.n * link.k // 2 + link.n * link.k // group_of(link) * 2 for link in links)
    return Peer(NAME, "w4-g128", threads, size, detail, request.infer)


def group_of(link: Link) -> int:
    """Weights per scale: 128 where K allows it."""
    return next(group for group in GROUPS if link.k % group == 0)


def _scales(link: Link) -> NDArray[np.float16]:
    return random_scales(link, group_of(link)).astype(np.float16)[..., None]


def dequantized(link: Link) -> NDArray[np.float64]:
    """float64[N, K] of a layer's codes and scales: two's complement, low nibble first."""
    codes = random_codes(link)
    levels = np.stack([codes & 15, codes >> 4], -1).reshape(link.n, -1, group_of(link))
    signed = (levels.astype(np.int8) ^ 8) - np.int8(8)
    weight: NDArray[np.float64] = (signed * _scales(link).astype(np.float64)).reshape(
        link.n, link.k
    )
    return weight


def _resolved(compiled: Any) -> dict[str, Any]:
    """What the compiled model says of itself; raises `UnsupportedError` if weights grew."""
    kernels, precisions = set(), set()
    for op in compiled.get_runtime_model().get_ordered_ops():
        info = op.get_rt_info()
        if str(info["layerType"].astype(str)) == "FullyConnected":
            kernels.add(str(info["primitiveType"].astype(str)))
            precisions.add(str(info["runtimePrecision"].astype(str)))
    if precisions != {"i4"}:
        raise UnsupportedError(f"weights were expanded to {sorted(precisions)}: not 4-bit layers")
    group = compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE")
    return {"kernels": sorted(kernels), "DYNAMIC_QUANTIZATION_GROUP_SIZE": int(group)}


def _compiled(ov: Any, links: Sequence[Link], config: dict[str, Any]) -> Any:
    ops = require("openvino.opset13", "openvino")
    inputs = ops.parameter([1, input_width(links)], ov.Type.f32)
    outputs: list[Any] = []
    for link in links:
        source = inputs if link.source < 0 else outputs[link.source]
        cut = ops.slice(source, *([value] for value in (0, link.k, 1, 1)))
        outputs.append(ops.matmul(cut, _weight(ov, ops, link), False, True))
    model = ov.Model([outputs[-1]], [inputs], "chain")
    return ov.Core().compile_model(model, "CPU", config)


def _weight(ov: Any, ops: Any, link: Link) -> Any:
    """[N, K] float32 as the plugin looks for it: i4, to f16, times scale, reshaped, to f32."""
    group = group_of(link)
    shape = ov.Shape([link.n, link.k // group, group])
    array = random_codes(link)  # wrapped by the tensor, copied by the constant
    codes = ov.op.Constant(ov.Tensor(array, shape, ov.Type.i4), shared_memory=False)
    scaled = ops.multiply(ops.convert(codes, "f16"), ops.constant(_scales(link)))
    flat = ops.reshape(scaled, ops.constant(np.array([link.n, link.k])), False)
    return ops.convert(flat, "f32")
