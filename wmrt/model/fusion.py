"""StateFusion: codes and values of one state -> one token.

Dense path: learned bucket embeddings with linear interpolation between neighbouring knots, category
embeddings, a small MLP to `embedding64`, a projection to d_model. It generalises; a table of hashed
states alone could not drive (return 7.6, as bad as random actions).
Memory path: groups of fields, each group's coarse integer codes hashed to a row of one fixed table,
rows summed and gated. Integers only: a hash of the float embedding picked another row in 19 to 30%
of
states between devices and recipes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wmrt.core.errors import UsageError
from wmrt.model.config import ModelConfig
from wmrt.model.hollow import constants
from wmrt.model.schema import Column, StateSchema

#: Seed of the fixed hash multipliers; part of the model's definition, never changed.
HASH_SEED = 0x5EED
_MASK32 = 0xFFFFFFFF


class BucketEmbedding(nn.Module):
    """One embedding row per knot, category value and unknown; every column in one table."""

    row_offset: Tensor
    is_numeric: Tensor
    knots: Tensor

    def __init__(self, columns: Sequence[Column], dim: int) -> None:
        super().__init__()
        offsets, total = [], 0
        widest = max((len(c.knots) for c in columns if c.kind == "numeric"), default=2)
        knots = [[0.0] * widest for _ in columns]
        for i, column in enumerate(columns):
            offsets.append(total)
            if column.kind == "numeric":
                total += 1 + len(column.knots)
                padding = [column.knots[-1]] * (widest - len(column.knots))
                knots[i] = [*column.knots, *padding]
            else:
                total += column.size
        with constants():
            numeric = torch.tensor([c.kind == "numeric" for c in columns])
            self.register_buffer("row_offset", torch.tensor(offsets), persistent=False)
            self.register_buffer("is_numeric", numeric, persistent=False)
            self.register_buffer("knots", torch.tensor(knots, dtype=torch.float32), False)
        self.weight = nn.Parameter(torch.randn(total, dim).mul_(0.5))

    def forward(self, codes: Tensor, values: Tensor) -> Tensor:
        """codes int[..., F], values float32[..., F] -> float32[..., F * dim]."""
        codes = codes.long()
        inside = self.is_numeric & (codes > 0)
        bucket = (codes - 1).clamp(min=0)
        knots = self.knots.expand(*codes.shape, self.knots.shape[-1])
        low = knots.gather(-1, bucket.clamp(max=knots.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
        high = knots.gather(-1, (bucket + 1).clamp(max=knots.shape[-1] - 1).unsqueeze(-1)).squeeze(
            -1
        )
        span = (high - low).clamp(min=1e-12)
        weight = torch.where(inside, ((values - low) / span).clamp(0, 1), torch.zeros_like(values))
        first = self.row_offset + codes
        second = first + inside.long()
        lower, upper = F.embedding(first, self.weight), F.embedding(second, self.weight)
        return torch.lerp(lower, upper, weight.unsqueeze(-1)).flatten(-2)


class HashedMemory(nn.Module):
    """Sum of one table row per field group, chosen by integer hashing of coarse codes."""

    multipliers: Tensor
    cells: Tensor
    buckets: Tensor

    def __init__(
        self, columns: Sequence[Column], rows: int, groups: int, cells: int, dim: int
    ) -> None:
        super().__init__()
        self.rows = rows
        with constants():
            numeric = torch.tensor([cells if c.kind == "numeric" else 0 for c in columns])
            buckets = torch.tensor([c.size - 1 for c in columns])
            self.register_buffer("multipliers", _multipliers(len(columns), groups), False)
            self.register_buffer("cells", numeric, persistent=False)
            self.register_buffer("buckets", buckets, persistent=False)
        self.table = nn.Parameter(torch.randn(rows, dim).mul_(0.1))

    def row_index(self, codes: Tensor) -> Tensor:
        """Rows int64[..., groups] of codes int[..., F]. Exact integers on every device."""
        codes = codes.long()
        coarse = 1 + (codes - 1) * self.cells // self.buckets.clamp(min=1)
        coarse = torch.where((codes > 0) & (self.cells > 0), coarse, codes)
        mixed = ((coarse + 1).unsqueeze(-1) * self.multipliers).sum(dim=-2) & _MASK32
        mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & _MASK32
        mixed = ((mixed ^ (mixed >> 12)) * 0x297A2D39) & _MASK32
        return (mixed ^ (mixed >> 15)) % self.rows

    def forward(self, codes: Tensor) -> Tensor:
        """codes int[..., F] -> float32[..., dim]."""
        return F.embedding(self.row_index(codes), self.table).sum(dim=-2)


def _multipliers(columns: int, groups: int) -> Tensor:
    """int64[columns, groups]: odd where the group sees the column, else 0. The last group sees the
    whole state, the others neighbouring fields."""
    generator = torch.Generator().manual_seed(HASH_SEED)
    odd = torch.randint(1 << 30, (columns, groups), generator=generator) * 2 + 1
    member = torch.zeros(columns, groups, dtype=torch.int64)
    if groups > 1:
        for i in range(columns):
            member[i, i * (groups - 1) // columns] = 1
    member[:, groups - 1] = 1
    return odd * member


class ActionEmbedding(nn.Module):
    """Continuous action -> embedding: interpolated knots on [-1, 1] per dimension, concatenated."""

    def __init__(self, dims: int, knots: int, width: int) -> None:
        super().__init__()
        if width % dims:
            raise UsageError(f"action_embed {width} must be a multiple of the {dims} action dims")
        self.knots = knots
        self.weight = nn.Parameter(torch.randn(dims, knots, width // dims).mul_(0.5))

    def forward(self, action: Tensor) -> Tensor:
        """action float32[..., A] in [-1, 1] -> float32[..., width]."""
        position = ((action + 1) * 0.5 * (self.knots - 1)).clamp(0, self.knots - 1)
        lower = position.floor().clamp(max=self.knots - 2)
        dim = torch.arange(action.shape[-1], device=action.device)
        low, high = self.weight[dim, lower.long()], self.weight[dim, lower.long() + 1]
        return torch.lerp(low, high, (position - lower).unsqueeze(-1)).flatten(-2)


class StateFusion(nn.Module):
    """One state and the previous action -> token float32[..., d_model] and `embedding64`."""

    def __init__(self, schema: StateSchema, config: ModelConfig) -> None:
        super().__init__()
        columns = schema.columns
        self.fields = BucketEmbedding(columns, config.field_dim)
        self.mlp = nn.Sequential(
            nn.Linear(len(columns) * config.field_dim, config.mlp_hidden),
            nn.GELU(),
            nn.Linear(config.mlp_hidden, config.embed),
        )
        self.norm = nn.LayerNorm(config.embed)
        self.out = nn.Linear(config.embed, config.d_model)
        self.memory = HashedMemory(
            columns, config.table_rows, config.table_groups, config.table_cells, config.d_model
        )
        self.gate = nn.Linear(config.embed, 1)
        self.action_in = nn.Linear(config.action_embed, config.d_model, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, codes: Tensor, values: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """codes int[..., F], values float32[..., F], embedded previous action float32[..., E].

        Returns token float32[..., d_model] and embedding64 float32[..., embed].
        """
        embedding: Tensor = self.norm(self.mlp(self.fields(codes, values)))
        memory = torch.sigmoid(self.gate(embedding)) * self.memory(codes)
        token = self.out(embedding) + memory + self.action_in(action)
        return self.dropout(token), embedding
