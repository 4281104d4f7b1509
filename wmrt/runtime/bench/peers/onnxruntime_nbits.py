"""ONNX Runtime: MatMulNBits, 4 bits in blocks of 32, int8 activations (accuracy level 4).

The operator: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. One graph
holds all layers one behind the other. Weights lie in a file of external data, which the session
maps, packs for the processor and lets go.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

NAME = "onnxruntime-matmulnbits"
BLOCK = 32
# int8 activations in blocks of 32 cost 0.5% of a normal vector; see tests.
LIMIT = 0.015
#: `force_spinning_stop`: its threads would otherwise spin for milliseconds into the next arm.
CONFIG = {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"}


def build(shapes: Sequence[Shape], threads: int) -> list[Arm | Missing]:
    """One arm; see `wmrt.runtime.bench.peers`."""
    links = chain(shapes)
    check_threads(threads)
    return [attempt(NAME, lambda: _arm(links, threads))]


def _arm(links: Sequence[Link], threads: int) -> Arm:
    onnx, ort = require("onnx", "onnx"), require("onnxruntime", "onnxruntime")
    whole_groups(links, BLOCK)

    def run(link: Link, x: NDArray[np.float32]) -> Any:
        alone = _session(onnx, ort, [Link(link.index, link.name, link.n, link.k, -1)], threads)
        return alone.run(None, {"x": x})[0]

    errors = check_layers(links, run, dequantized, LIMIT)
    session = _session(onnx, ort, links, threads)
    binding = session.io_binding()
    binding.bind_cpu_input("x", random_input(input_width(links)))
    binding.bind_output("y")
    settings = {
        "bits": 4,
        "block_size": BLOCK,
        "accuracy_level": 4,
        "scales": "float32",
        "prepacking": True,
        "execution_mode": "sequential",
        "intra_op_num_threads": threads,
        **CONFIG,
    }
    detail = describe(["onnxruntime", "onnx"], settings)
    return Peer(
        NAME,
        "w4a8-g32",
        threads,
        sum(link.n * link.k // 2 + link.n * link.k // BLOCK * 4 for link in links),
        {**detail, "covers": "the linear layers", "error": errors},
        lambda: session.run_with_iobinding(binding),
    )


def dequantized(link: Link) -> NDArray[np.float64]:
    """float64[N, K] of a layer's codes and scales: (code - 8) x scale, low nibble first."""
    codes = random_codes(link)
    levels = np.stack([codes & 15, codes >> 4], -1).reshape(link.n, -1, BLOCK).astype(np.float64)
    scales = random_scales(link, BLOCK).astype(np.float32)[..., None]
    weight: NDArray[np.float64] = ((levels - 8) * scales).reshape(link.n, link.k)
    return weight


def _session(onnx: ModuleType, ort: ModuleType, links: Sequence[Link], threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    for key, value in CONFIG.items():
        options.add_session_config_entry(key, value)
    with tempfile.TemporaryDirectory(prefix="wmrt-peer-") as folder:
        path = Path(folder) / "chain.onnx"
        path.write_bytes(_model(onnx, links, path.with_name("weights.bin")).SerializeToString())
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _model(onnx: ModuleType, links: Sequence[Link], weights: Path) -> Any:
    """The graph; its weights are written to `weights`, one layer at a time."""
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    nodes, constants = [], []
    with weights.open("wb") as file:
        for link in links:
            made, source = _cut(onnx, link)
            constants += made
            nodes += [helper.make_node("Slice", source, [f"x{link.index}"])]
            codes = random_codes(link).reshape(link.n, link.k // BLOCK, BLOCK // 2)
            scales = random_scales(link, BLOCK).astype(np.float32)
            constants.append(_external(onnx, file, f"codes{link.index}", codes))
            constants.append(_external(onnx, file, f"scales{link.index}", scales))
            nodes.append(_matmul(onnx, link, last=link is links[-1]))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", float32, [1, input_width(links)])],
        [helper.make_tensor_value_info("y", float32, [1, links[-1].n])],
        constants,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _matmul(onnx: ModuleType, link: Link, last: bool) -> Any:
    i = link.index
    return onnx.helper.make_node(
        "MatMulNBits",
        [f"x{i}", f"codes{i}", f"scales{i}"],
        ["y" if last else f"y{i}"],
        domain="com.microsoft",
        K=link.k,
        N=link.n,
        bits=4,
        block_size=BLOCK,
        accuracy_level=4,
    )


def _cut(onnx: ModuleType, link: Link) -> tuple[list[Any], list[str]]:
    """Constants and input names of the Slice that takes the first K numbers of the source."""
    source = "x" if link.source < 0 else f"y{link.source}"
    values = {f"from{link.index}": 0, f"to{link.index}": link.k, f"axis{link.index}": 1}
    constants = [onnx.numpy_helper.from_array(np.array([v]), name) for name, v in values.items()]
    return constants, [source, *values]


def _external(onnx: ModuleType, file: Any, name: str, array: NDArray[Any]) -> Any:
    """A tensor whose bytes are appended to `file` at the next multiple of 4096, to be mapped."""
    file.seek(-file.tell() % 4096, 1)
    place = {"location": Path(file.name).name, "offset": file.tell(), "length": array.nbytes}
    file.write(array.tobytes())
    tensor = onnx.TensorProto(
        name=name,
        dims=array.shape,
        data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor
