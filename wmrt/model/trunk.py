"""One trunk layer: pre-RMSNorm, grouped-query transition attention, SwiGLU, no biases."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wmrt.model.config import ModelConfig
from wmrt.model.linear import Linear
from wmrt.model.rope import rotate
from wmrt.model.transition import Selection, jump_softmax

RMS_EPS = 1e-5


class RMSNorm(nn.Module):
    """Zhang and Sennrich, 2019; float32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, RMS_EPS)


class Block(nn.Module):
    """Attention over the chosen slots and a gated MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.attention_norm = RMSNorm(config.d_model)
        self.qkv = Linear(config.d_model, config.qkv_dim)
        self.out = Linear(config.heads * config.head_dim, config.d_model)
        self.mlp_norm = RMSNorm(config.d_model)
        self.gate_up = Linear(config.d_model, 2 * config.ffn)
        self.down = Linear(config.ffn, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [..., d] -> q [..., H, hd], k [..., KV, hd] (both after RoPE), v [..., KV, hd]."""
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, self.head_dim))
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """x [..., d] and attended [..., H, hd] -> x with both branches added."""
        x = x + self.dropout(self.out(attended.flatten(-2)))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        result: Tensor = x + self.dropout(self.down(F.silu(gate) * up))
        return result

    def forward(
        self, x: Tensor, bias: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Whole sequence: x [B, T, d], bias [B, T, T] -> x, and q, k for selector distillation."""
        q, k, v = (t.transpose(1, 2) for t in self.project(x, cos, sin))
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias.unsqueeze(1), enable_gqa=True
        )
        return self.finish(x, attended.transpose(1, 2)), q, k

    def step(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        slot: Tensor,
        chosen: Selection,
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        """One step: x [B, d]; ring keys, values [B, W, KV, hd], written in place at ``slot``
        int64[B].

        Reads k + 1 slots: the current one and ``chosen.slots``.
        """
        q, k, v = self.project(x, cos, sin)
        return self.finish(x, self.look(q, k, v, keys, values, slot, chosen))

    def look(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keys: Tensor,
        values: Tensor,
        slot: Tensor,
        chosen: Selection,
    ) -> Tensor:
        """The attention of one step: writes k, v [B, KV, hd] into the ring at ``slot`` and returns
        what q [B, H, hd] gathers from it, [B, H, hd]."""
        batch = q.shape[0]
        row = torch.arange(batch, device=q.device)
        keys[row, slot], values[row, slot] = k, v
        slots = torch.cat([slot.unsqueeze(1), chosen.slots], dim=1)
        bias = F.pad(chosen.bias, (1, 0))
        gathered_k, gathered_v = keys[row.unsqueeze(1), slots], values[row.unsqueeze(1), slots]
        q = q.view(batch, self.kv_heads, -1, self.head_dim)
        logits = torch.einsum("bghd,bngd->bghn", q, gathered_k) / math.sqrt(self.head_dim)
        weights = jump_softmax(logits, bias[:, None, None, :])
        attended = torch.einsum("bghn,bngd->bghd", weights, gathered_v)
        return attended.reshape(batch, self.heads, self.head_dim)
