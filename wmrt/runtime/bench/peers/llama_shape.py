"""A llama model that reads the same weights per step as the model it stands for, as GGUF.

Layer for layer the same matrices; the heads become one output matrix of as many weights, so that
its vocabulary is small and no logits are computed that the model would not compute.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.core.errors import UsageError
from wmrt.runtime.bench.peers.common import Shape

ROPE_BASE, NORM_EPSILON, BLOCK = 10_000.0, 1e-5, 32
_BLOCK_NAME = re.compile(r"blocks\.(\d+)\.(qkv|out|gate_up|down)")


@dataclass(frozen=True)
class Llama:
    """Sizes of the model: residual width, layers, heads, FFN, vocabulary."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """GGUF name -> [N, K] of every quantized matrix, in file order."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found = {"token_embd": (self.vocabulary, self.width)}
        for i in range(self.layers):
            found |= {
                f"blk.{i}.attn_q": (q, self.width),
                f"blk.{i}.attn_k": (kv, self.width),
                f"blk.{i}.attn_v": (kv, self.width),
                f"blk.{i}.attn_output": (self.width, q),
                f"blk.{i}.ffn_gate": (self.ffn, self.width),
                f"blk.{i}.ffn_up": (self.ffn, self.width),
                f"blk.{i}.ffn_down": (self.width, self.ffn),
            }
        return {**found, "output": (self.vocabulary, self.width)}

    @property
    def norms(self) -> list[str]:
        """GGUF names of the norm weights, each float32[width]."""
        pairs = [(f"blk.{i}.attn_norm", f"blk.{i}.ffn_norm") for i in range(self.layers)]
        return [*(name for pair in pairs for name in pair), "output_norm"]

    @property
    def read_weights(self) -> int:
        """Matrix weights that one decode step reads: all but the embedding table."""
        return sum(n * k for name, (n, k) in self.matrices.items() if name != "token_embd")

    def shallow(self) -> Llama:
        """The same model with its first layer only; its weights are the same too."""
        return replace(self, layers=1)


def llama_of(shapes: Sequence[Shape]) -> Llama:
    """The llama model of a trunk ``blocks.i.{qkv,out,gate_up,down}`` and heads.

    Raises `UsageError` when the layers are not those of such a trunk.
    """
    blocks: dict[str, dict[str, tuple[int, int]]] = {}
    heads = 0
    for name, n, k in shapes:
        match = _BLOCK_NAME.fullmatch(name)
        if match:
            blocks.setdefault(match[1], {})[match[2]] = (n, k)
        else:
            heads += n * k
    trunk = list(blocks.values())
    if not trunk or len(trunk[0]) != 4 or any(block != trunk[0] for block in trunk):
        raise UsageError(
            "the layers are not equal blocks of qkv, out, gate_up and down, as a llama model has"
        )
    return _llama(trunk[0], len(trunk), heads)


def _llama(block: dict[str, tuple[int, int]], layers: int, head_weights: int) -> Llama:
    (width, q), (ffn2, _), (_, ffn) = block["out"], block["gate_up"], block["down"]
    kv = (block["qkv"][0] - q) // 2
    head_dim = next((d for d in (128, 64, 32, 16) if kv > 0 and q % d == kv % d == 0), 0)
    whole = not any(k % BLOCK for k in (width, q, ffn))
    if not head_dim or ffn2 != 2 * ffn or block["qkv"] != (q + 2 * kv, width) or not whole:
        raise UsageError(f"no llama model has blocks of the shapes {block}")
    vocabulary = max(32, math.ceil(head_weights / width / 8) * 8)  # rows are packed by eights
    return Llama(width, layers, q // head_dim, kv // head_dim, head_dim, ffn, vocabulary)


def norm_weight(name: str, width: int) -> NDArray[np.float32]:
    """float32[width] around 1."""
    return _rng(name).uniform(0.5, 1.5, width).astype(np.float32)


def packed(name: str, kind: str, n: int, k: int) -> NDArray[np.uint8]:
    """Random blocks uint8[N, bytes of a row] of ``Q4_0`` or ``MXFP4``.

    Each block is a scale (float16; an exponent) before 16 bytes of codes, all codes equally likely;
    scales keep the size of a vector.
    """
    rng = _rng(name)
    blocks = k // BLOCK
    codes = rng.integers(0, 256, (n, blocks, BLOCK // 2), dtype=np.uint8)
    if kind == "Q4_0":
        unit = 1.0 / math.sqrt(k * 21.5 * 13 / 12)
        sizes = rng.uniform(0.5, 1.5, (n, blocks, 1)) * rng.choice((-unit, unit), (n, blocks, 1))
        scales = sizes.astype("<f2").view(np.uint8)
    else:
        unit = 1.0 / math.sqrt(k * 8.5625)  # the mean square of E2M1 over all codes
        low = 127 + math.floor(math.log2(unit))
        scales = rng.integers(low, low + 2, (n, blocks, 1), dtype=np.uint8)
    return np.concatenate([scales, codes], -1).reshape(n, -1)


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def write(gguf: ModuleType, model: Llama, kind: str, path: Path) -> int:
    """The model as a GGUF file, one matrix in memory at a time. Returns bytes read per step."""
    writer = gguf.GGUFWriter(path, "llama")
    _write_keys(writer, model)
    raw = gguf.GGMLQuantizationType[kind]
    block_bytes = gguf.GGML_QUANT_SIZES[raw][1]
    shapes = {name: (n, k // BLOCK * block_bytes) for name, (n, k) in model.matrices.items()}
    for name, shape in shapes.items():
        size = shape[0] * shape[1]
        writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.uint8), size, raw)
    for name in model.norms:
        writer.add_tensor_info(
            f"{name}.weight", (model.width,), np.dtype(np.float32), 4 * model.width
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in _tensors(model, kind):
        writer.write_tensor_data(tensor)
    writer.close()
    return model.read_weights // BLOCK * int(block_bytes)


def _tensors(model: Llama, kind: str) -> Iterator[NDArray[Any]]:
    for name, (n, k) in model.matrices.items():
        yield packed(name, kind, n, k)
    for name in model.norms:
        yield norm_weight(name, model.width)


def _write_keys(writer: Any, model: Llama) -> None:
    writer.add_context_length(2048)
    writer.add_embedding_length(model.width)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(model.ffn)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_vocab_size(model.vocabulary)
    writer.add_tokenizer_model("none")
