"""The model card a trained checkpoint carries; results of drives are added when it is published."""

from __future__ import annotations

from typing import Any

from wmrt.model.network import Network

_TEMPLATE = """# wmrt world model for {env}

A structured-state world model with {parameters:,} parameters: d_model {d_model}, {layers} layers,
{heads} heads ({kv_heads} KV), FFN {ffn}, window {window}, {past} past states read ({selector}
selection), chunks of {chunk} actions. One step is {period} s.

State: {fields}.
Actions: {actions}.

## Training
Behaviour cloning of a privileged planner plus next-state prediction on {episodes} simulated
episodes ({steps:,} steps, seeds {first_seed} to {last_seed}): {iterations} iterations of {batch}
windows of {train_window} steps, AdamW {lr}, seed {seed}, {seconds} s.
Sensor dropout dwell: {occlusion_dwell} steps (0: none).

Held-back losses (the action loss is above the expert's own entropy):

| loss | value |
|---|---|
{losses}

ActionQuant: 4-bit chunk error {rmse_plain:.5f} RMS plain, {rmse_compensated:.5f} compensated.

## Limits
Trained and judged in simulation only. It imitates one planner in one kind of traffic and knows
nothing else.
"""


def card(network: Network, provenance: dict[str, Any]) -> str:
    """README.md text from the network and its provenance."""
    train = provenance["train"]
    dims = (f"{d.name} ({d.low} to {d.high} {d.unit})" for d in network.actions.dims)
    return _TEMPLATE.format(
        **network.config.to_json(),
        **{k: v for k, v in provenance.items() if k not in ("train", "validation", "action_quant")},
        **provenance["action_quant"],
        **{k: train[k] for k in ("batch", "lr", "seed", "occlusion_dwell")},
        iterations=train["steps"],
        train_window=train["window"],
        fields=", ".join(column.name for column in network.schema.columns),
        actions=", ".join(dims),
        losses="\n".join(f"| {k} | {v:.4f} |" for k, v in provenance["validation"].items()),
    )
