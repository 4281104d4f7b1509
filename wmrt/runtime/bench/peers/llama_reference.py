"""Logits of such a llama model in float64, from its own packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from wmrt.runtime.bench.peers.llama_shape import (
    NORM_EPSILON,
    ROPE_BASE,
    Llama,
    norm_weight,
    packed,
)

Array = NDArray[np.float64]


def logits(gguf: ModuleType, model: Llama, kind: str, tokens: Sequence[int]) -> Array:
    """float64[vocabulary] after the last token. Weights are decoded by the `gguf` package.

    The model: Touvron et al. 2023, https://arxiv.org/abs/2302.13971, with grouped keys and values;
    RoPE turns pairs of neighbours.
    """

    def weight(name: str) -> Array:
        n, k = model.matrices[name]
        raw = gguf.GGMLQuantizationType[kind]
        decoded: Array = gguf.dequantize(packed(name, kind, n, k), raw).astype(np.float64)
        return decoded

    def norm(x: Array, name: str) -> Array:
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + NORM_EPSILON)
        scaled: Array = x / scale * norm_weight(name, model.width).astype(np.float64)
        return scaled

    x = weight("token_embd")[list(tokens)]
    for i in range(model.layers):
        y = norm(x, f"blk.{i}.attn_norm")
        q, k, v = (y @ weight(f"blk.{i}.attn_{part}").T for part in "qkv")
        x = x + attention(model, q, k, v) @ weight(f"blk.{i}.attn_output").T
        y = norm(x, f"blk.{i}.ffn_norm")
        gate, up = (y @ weight(f"blk.{i}.ffn_{part}").T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weight(f"blk.{i}.ffn_down").T
    result: Array = weight("output") @ norm(x[-1], "output_norm")
    return result


def attention(model: Llama, q: Array, k: Array, v: Array) -> Array:
    """Causal attention [T, heads * head_dim] of q, k, v [T, ...]; keys and values grouped."""
    shared = model.heads // model.kv_heads
    split = [part.reshape(len(part), -1, model.head_dim) for part in (q, k, v)]
    queries, keys = rotate(split[0]), rotate(split[1]).repeat(shared, 1)
    scores = np.einsum("thd,shd->hts", queries, keys) / np.sqrt(model.head_dim)
    scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed: Array = np.einsum("hts,shd->thd", weights, split[2].repeat(shared, 1))
    return mixed.reshape(len(q), -1)


def rotate(x: Array) -> Array:
    """RoPE of float64[T, heads, head_dim] at positions 0 to T - 1: pairs (2i, 2i + 1) turn."""
    angles = np.outer(np.arange(len(x)), ROPE_BASE ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)
