"""Model configuration: presets, and errors that say what is allowed."""

from __future__ import annotations

import math

import pytest
import torch

from tests.model.networks import ACTIONS
from wmrt.core.errors import UsageError
from wmrt.model.config import PRESETS, ModelConfig, preset
from wmrt.model.network import Network
from wmrt.model.schema import StateSchema, category, numeric


def test_preset_sizes() -> None:
    fields = {f"n{i}": numeric("m", 0, 100, buckets=64) for i in range(32)}
    fields |= {f"c{i}": category([f"v{j}" for j in range(31)]) for i in range(12)}
    schema = StateSchema(fields, neutral=[0.0, 0.0])
    with torch.device("meta"):
        counts = {
            name: sum(p.numel() for p in Network(schema, config, ACTIONS).parameters())
            for name, config in PRESETS.items()
        }
    assert abs(counts["1.3b"] / 1.3e9 - 1) <= 0.02, counts
    assert counts["small"] <= 4.5e6, counts
    for name in ("small", "1.3b"):
        c = PRESETS[name]
        assert all(k % 256 == 0 for k in (c.d_model, c.ffn, c.heads * c.head_dim))


def test_selected_share_is_the_published_one() -> None:
    assert math.isclose(preset("1.3b").past / (preset("1.3b").window - 1), 8 / 63)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"past": 64}, "past must be 0 to"),
        ({"selector": "best"}, "allowed: learned"),
        ({"heads": 3}, "multiple of kv_heads"),
        ({"head_dim": 63}, "even"),
        ({"state_bins": 64}, "odd"),
    ],
)
def test_config_errors_say_what_is_allowed(change: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ModelConfig(**change)


def test_an_unknown_preset_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"'huge' is unknown; allowed: tiny, .*1\.3b"):
        preset("huge")


def test_config_json_round_trip_is_strict() -> None:
    data = preset("tiny").to_json()
    assert ModelConfig.from_json(data) == preset("tiny")
    with pytest.raises(UsageError, match="unknown keys"):
        ModelConfig.from_json({**data, "depth": 3})
    data.pop("window")
    with pytest.raises(UsageError, match="missing keys"):
        ModelConfig.from_json(data)
