"""``config.json`` of a checkpoint: what it must hold, read and written strictly.

Keys of format version 1, all of them required, no others allowed:
``format_version`` 1 · ``schema`` and ``schema_hash`` · ``model`` (configuration of the network) ·
``actions`` (list of action dimensions) · ``quantization`` (contract of packed weights, or null) ·
``provenance`` · ``weights`` (per weight file its ``bytes`` and ``sha256_tree``) ·
``tensors`` (per tensor its ``shape`` and ``dtype``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wmrt.core.errors import CheckpointError, SafetyError, SchemaError, UsageError
from wmrt.core.files import read_json
from wmrt.core.types import ActionSpec
from wmrt.model.config import ModelConfig
from wmrt.model.locate import CONFIG_FILE, WEIGHTS_FILE
from wmrt.model.schema import StateSchema

FORMAT_VERSION = 1
_TYPES: dict[str, tuple[type, ...]] = {
    "format_version": (int,),
    "schema": (dict,),
    "schema_hash": (str,),
    "model": (dict,),
    "actions": (list,),
    "quantization": (dict, type(None)),
    "provenance": (dict,),
    "weights": (dict,),
    "tensors": (dict,),
}

TensorSpecs = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class CheckpointConfig:
    """Parsed ``config.json``; ``weights_*`` describe ``model.safetensors``."""

    schema: StateSchema
    model: dict[str, Any]
    actions: ActionSpec
    quantization: dict[str, Any] | None
    provenance: dict[str, Any]
    weights_bytes: int
    weights_root: str
    tensors: TensorSpecs

    def to_json(self) -> dict[str, Any]:
        """Plain data, as it stands in the file."""
        return {
            "format_version": FORMAT_VERSION,
            "schema": self.schema.to_json(),
            "schema_hash": self.schema.hash,
            "model": self.model,
            "actions": self.actions.to_json(),
            "quantization": self.quantization,
            "provenance": self.provenance,
            "weights": {
                WEIGHTS_FILE: {"bytes": self.weights_bytes, "sha256_tree": self.weights_root}
            },
            "tensors": {
                name: {"shape": list(shape), "dtype": dtype_name(dtype)}
                for name, (shape, dtype) in sorted(self.tensors.items())
            },
        }


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def read_config(folder: Path) -> CheckpointConfig:
    """Parse ``folder/config.json``.

    Raises:
        CheckpointError: not readable JSON, another format version, missing or unknown keys, a value
            of the wrong type or out of its range, or a schema that does not match its recorded
            hash. Names the file and the keys.
    """
    path = folder / CONFIG_FILE
    data = read_json(path)
    _require_version(path, data)
    _require_keys(str(path), data, _TYPES)
    weights_bytes, weights_root = _weights(path, data["weights"])
    return CheckpointConfig(
        schema=_schema(path, data),
        model=_model(path, data["model"]),
        actions=_actions(path, data["actions"]),
        quantization=data["quantization"],
        provenance=data["provenance"],
        weights_bytes=weights_bytes,
        weights_root=weights_root,
        tensors={name: _tensor_spec(path, name, spec) for name, spec in data["tensors"].items()},
    )


def _require_version(path: Path, data: Mapping[str, Any]) -> None:
    """Before the keys: another version may well have other keys."""
    version = data.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format_version is {version!r}; this wmrt reads version {FORMAT_VERSION}; "
            "install the wmrt that wrote it, or save the checkpoint again"
        )


def _require_keys(where: str, data: object, types: Mapping[str, tuple[type, ...]]) -> None:
    """Exactly these keys, each of one of its types."""
    if not isinstance(data, dict):
        raise CheckpointError(f"{where}: expected an object, got {type(data).__name__}")
    missing, unknown = sorted(types.keys() - data.keys()), sorted(data.keys() - types.keys())
    if missing or unknown:
        kinds = (("missing keys", missing), ("unknown keys", unknown))
        found = "; ".join(f"{kind}: {', '.join(map(repr, keys))}" for kind, keys in kinds if keys)
        raise CheckpointError(f"{where}: {found}; expected exactly {', '.join(types)}")
    for key, allowed in types.items():
        if not isinstance(data[key], allowed) or isinstance(data[key], bool):
            names = " or ".join(kind.__name__ for kind in allowed)
            raise CheckpointError(f"{where}: {key} must be {names}, got {type(data[key]).__name__}")


def _weights(path: Path, data: Mapping[str, Any]) -> tuple[int, str]:
    _require_keys(f"{path}: weights", data, {WEIGHTS_FILE: (dict,)})
    entry = data[WEIGHTS_FILE]
    where = f"{path}: weights[{WEIGHTS_FILE!r}]"
    _require_keys(where, entry, {"bytes": (int,), "sha256_tree": (str,)})
    return entry["bytes"], entry["sha256_tree"]


def _model(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """As it stands, once it is known to describe a network."""
    try:
        ModelConfig.from_json(data)
    except UsageError as error:
        raise CheckpointError(f"{path}: model: {error}") from None
    return data


def _schema(path: Path, data: Mapping[str, Any]) -> StateSchema:
    try:
        schema = StateSchema.from_json(data["schema"])
    except SchemaError as error:
        raise CheckpointError(f"{path}: schema: {error}") from None
    if schema.hash != data["schema_hash"]:
        raise CheckpointError(
            f"{path}: schema has hash {schema.hash}, schema_hash records {data['schema_hash']}; "
            "the schema was changed after the checkpoint was saved"
        )
    return schema


def _actions(path: Path, data: list[Any]) -> ActionSpec:
    try:
        return ActionSpec.from_json(data)
    except (SafetyError, TypeError) as error:
        raise CheckpointError(f"{path}: actions: {error}") from None


def _tensor_spec(path: Path, name: str, spec: object) -> tuple[tuple[int, ...], torch.dtype]:
    where = f"{path}: tensors[{name!r}]"
    _require_keys(where, spec, {"shape": (list,), "dtype": (str,)})
    assert isinstance(spec, dict)  # checked above; for the type checker
    dtype = getattr(torch, spec["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"{where}: unknown dtype {spec['dtype']!r}")
    if not all(type(size) is int and size >= 0 for size in spec["shape"]):
        raise CheckpointError(f"{where}: shape must be whole numbers >= 0, got {spec['shape']}")
    return tuple(spec["shape"]), dtype
