"""Shape of the network and the named presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from wmrt.core.errors import UsageError

#: How past slots are chosen. `learned` is the product; the others are control arms.
SELECTORS = ("learned", "full", "recent", "random")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of every part of the world model. One control step is one token.

    Args:
        d_model, layers, heads, kv_heads, head_dim, ffn: the trunk (GQA, SwiGLU).
        window: W, ring length in states, the current one included.
        past: k, past slots each layer reads (0 to W-1).
        selector: one of `SELECTORS`.
        field_dim, mlp_hidden, embed: per-field embedding, StateFusion MLP, and `embedding64` width.
        table_rows, table_groups, table_cells: hashed memory: rows, field groups, cells per numeric.
        action_embed, action_knots: previous-action embedding width (all dims) and knots per dim.
        lstm, select_dim: action-intent LSTM width and slot key width.
        chunk, action_bins: H actions ahead, bins on [-1, 1].
        head_hidden, dyn_hidden, state_bins, reward_bins: heads.
        rope_base: RoPE base.
        dropout: training only.
    """

    d_model: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 768
    window: int = 64
    past: int = 8
    selector: str = "learned"
    field_dim: int = 16
    mlp_hidden: int = 256
    embed: int = 64
    table_rows: int = 2048
    table_groups: int = 8
    table_cells: int = 8
    action_embed: int = 32
    action_knots: int = 33
    lstm: int = 64
    select_dim: int = 32
    chunk: int = 8
    action_bins: int = 64
    head_hidden: int = 256
    dyn_hidden: int = 256
    state_bins: int = 63
    reward_bins: int = 41
    rope_base: float = 1000.0
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for f in fields(self):
            _check(f.name, str(f.type), getattr(self, f.name))
        if self.selector not in SELECTORS:
            raise UsageError(
                f"selector {self.selector!r} is unknown; allowed: {', '.join(SELECTORS)}"
            )
        if not 0 <= self.past <= self.window - 1:
            raise UsageError(f"past must be 0 to window - 1 = {self.window - 1}, got {self.past}")
        if self.heads % self.kv_heads:
            raise UsageError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if self.head_dim % 2:
            raise UsageError(f"head_dim must be even for RoPE, got {self.head_dim}")
        if self.state_bins % 2 == 0:
            raise UsageError(
                f"state_bins must be odd so that 'no change' has its own bin, got {self.state_bins}"
            )

    @property
    def qkv_dim(self) -> int:
        """Rows of the fused QKV projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Inverse of `to_json`; raises `UsageError` on unknown or missing keys."""
        names = {f.name for f in fields(cls)}
        unknown, missing = sorted(set(data) - names), sorted(names - set(data))
        if unknown or missing:
            raise UsageError(f"model config: unknown keys {unknown}, missing keys {missing}")
        return cls(**data)

    def with_(self, **changes: Any) -> ModelConfig:
        """A copy with some values changed."""
        return replace(self, **changes)


def _check(name: str, kind: str, value: object) -> None:
    """Type and range of one value; `UsageError` names it."""
    types = {"int": (int,), "float": (int, float), "str": (str,)}[kind]
    if not isinstance(value, types) or isinstance(value, bool):
        raise UsageError(f"{name} must be of type {kind}, got {value!r:.80}")
    if kind == "int" and isinstance(value, int) and value < (name != "past"):
        raise UsageError(f"{name} must be at least {int(name != 'past')}, got {value}")
    if name == "dropout" and isinstance(value, (int, float)) and not 0 <= value < 1:
        raise UsageError(f"dropout must be at least 0 and below 1, got {value}")
    if name == "rope_base" and isinstance(value, (int, float)) and not 1 < value < float("inf"):
        raise UsageError(f"rope_base must be above 1 and finite, got {value}")


#: `tiny` is for tests, `mini` for ablations, `small` ships; `1.3b`: 1.30B parameters on a schema
#: of 32 numeric fields of 64 buckets and 12 categories of 32
#: values.
PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(
        d_model=64,
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=32,
        ffn=128,
        window=16,
        past=4,
        field_dim=8,
        mlp_hidden=64,
        table_rows=64,
        table_groups=4,
        action_embed=16,
        action_knots=9,
        lstm=16,
        select_dim=8,
        chunk=4,
        head_hidden=64,
        dyn_hidden=64,
        state_bins=21,
        reward_bins=11,
    ),
    "mini": ModelConfig(
        d_model=128,
        head_dim=32,
        ffn=384,
        mlp_hidden=128,
        table_rows=1024,
        head_hidden=128,
        dyn_hidden=128,
    ),
    "small": ModelConfig(),
    "1.3b": ModelConfig(
        d_model=2048,
        layers=24,
        heads=16,
        kv_heads=4,
        head_dim=128,
        ffn=6912,
        mlp_hidden=512,
        table_rows=8192,
        table_groups=16,
        action_embed=64,
        action_knots=65,
        lstm=256,
        select_dim=128,
        head_hidden=2048,
        dyn_hidden=1024,
        state_bins=63,
    ),
}


def preset(name: str) -> ModelConfig:
    """A named `ModelConfig`; raises `UsageError` naming the presets."""
    try:
        return PRESETS[name]
    except KeyError:
        raise UsageError(f"preset {name!r} is unknown; allowed: {', '.join(PRESETS)}") from None
