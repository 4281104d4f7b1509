"""Each installed peer computes what float64 of its own weights says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.runtime.bench.test_peers import SHAPES
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.runtime.bench.arms import Missing
from wmrt.runtime.bench.peers import (
    llama_cpp_decode,
    llama_reference,
    llama_shape,
    onnxruntime_nbits,
    openvino_int4,
)

WEIGHTS = sum(n * k for _, n, k in SHAPES)
PEERS = "the [peers] extra is not installed: pip install 'wmrt[peers]'"


def test_onnxruntime() -> None:
    pytest.importorskip("onnx", reason=PEERS)
    pytest.importorskip("onnxruntime", reason=PEERS)
    (arm,) = onnxruntime_nbits.build(SHAPES, 1)
    assert not isinstance(arm, Missing), arm
    assert arm.read_bytes == WEIGHTS * (4 + 1) // 8  # 4 bits, and 32 per 32 weights
    json.dumps(dict(arm.detail))
    arm.step()
    arm.close()


def test_openvino() -> None:
    pytest.importorskip("openvino", reason=PEERS)
    (arm,) = openvino_int4.build(SHAPES, 1)
    assert not isinstance(arm, Missing), arm
    down = 2 * 64 * 128  # whose K takes groups of 128; the others' takes 64
    assert arm.read_bytes == WEIGHTS // 2 + down // 64 + (WEIGHTS - down) // 32
    json.dumps(dict(arm.detail))
    arm.step()
    arm.close()


@pytest.mark.parametrize("kind", llama_cpp_decode.KINDS)
def test_llama_cpp(kind: str) -> None:
    pytest.importorskip("gguf", reason=PEERS)
    pytest.importorskip("llama_cpp", reason=PEERS)
    arm = dict(zip(llama_cpp_decode.KINDS, llama_cpp_decode.build(SHAPES, 1), strict=True))[kind]
    assert not isinstance(arm, Missing), arm
    assert arm.read_bytes == WEIGHTS * {"Q4_0": 18, "MXFP4": 17}[kind] // 32
    json.dumps(dict(arm.detail))
    for _ in range(100):  # more positions than the context holds
        arm.step()
    arm.close()


def test_llama_cpp_check_finds_wrong_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = pytest.importorskip("gguf", reason=PEERS)
    llama = pytest.importorskip("llama_cpp", reason=PEERS)
    model = llama_shape.llama_of(SHAPES).shallow()
    honest = llama_shape.packed

    def other(name: str, *shape: object) -> np.ndarray:
        return honest("other" if name.endswith("attn_v") else name, *shape)  # type: ignore[arg-type]

    monkeypatch.setattr(llama_reference, "packed", other)
    with pytest.raises(UnsupportedError, match="one layer's logits"):
        llama_cpp_decode.check(llama, gguf, model, "Q4_0", 1)


def test_llama_cpp_says_why_it_does_not_load(tmp_path: Path) -> None:
    llama = pytest.importorskip("llama_cpp", reason=PEERS)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF, but not")
    with pytest.raises(UnsupportedError, match=r"does not load this model: .*GGUF"):
        llama_cpp_decode.Decoder(llama, path, 32, 1)


def test_a_k_of_no_whole_block_is_missing() -> None:
    pytest.importorskip("onnxruntime", reason=PEERS)
    (arm,) = onnxruntime_nbits.build([("a", 8, 40)], 1)
    assert isinstance(arm, Missing) and "K = 40, no multiple of 32" in arm.reason


def test_the_llama_model_reads_the_same_weights() -> None:
    model = llama_shape.llama_of(SHAPES)
    assert (model.layers, model.heads, model.kv_heads, model.head_dim) == (2, 2, 1, 32)
    assert (model.width, model.ffn, model.vocabulary) == (64, 128, 96)
    assert model.read_weights == WEIGHTS
    assert model.shallow().matrices.items() <= model.matrices.items()


@pytest.mark.parametrize(
    "shapes",
    [
        [("a", 64, 64)],
        SHAPES[:3],
        [*SHAPES[:4], ("blocks.1.qkv", 64, 64)],
        [*SHAPES[:2], ("blocks.0.gate_up", 200, 64), SHAPES[3]],
    ],
)
def test_layers_of_no_llama_model(shapes: list[tuple[str, int, int]]) -> None:
    with pytest.raises(UsageError, match="llama model"):
        llama_shape.llama_of(shapes)


def test_reference_attention_is_torchs(seed: int) -> None:
    model = llama_shape.llama_of(SHAPES)
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((5, heads * 32)) for heads in (2, 1, 1))
    turned = [llama_reference.rotate(a.reshape(5, -1, 32)) for a in (q, k)]
    split = [torch.from_numpy(a).transpose(0, 1) for a in (*turned, v.reshape(5, 1, 32))]
    expected = F.scaled_dot_product_attention(*split, is_causal=True, enable_gqa=True)
    got = llama_reference.attention(model, q, k, v)
    # Both are float64 sums of 32 and 5 products of numbers of size 1.
    np.testing.assert_allclose(got, expected.transpose(0, 1).reshape(5, -1), atol=1e-12, rtol=0)


def test_rope_turns_by_distance_and_leaves_position_0(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, 1, 32))
    turned_a, turned_b = (llama_reference.rotate(np.stack([x] * 9)) for x in (a, b))
    assert (turned_a[0] == a).all()
    products = np.einsum("thd,shd->ts", turned_a, turned_b)
    for t in range(8):
        assert products[t, t + 1] == pytest.approx(products[0, 1], abs=1e-12)
