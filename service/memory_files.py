"""What a robot's two files hold: a memory as safetensors, where its breakers stand as JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from wmrt.core.wire import session_number, session_text
from wmrt.runtime.snapshot import Origin, Snapshot
from wmrt.service.memories import STATES, Memory, Opinion, Standing

#: Of a memory. Files of version 1 do not say whether channels voted, nor what those remember; those
#: before 3 have no digest.
VERSION, READ = 3, (1, 2, 3)
#: Of where breakers stand. Files of version 1 have no digest.
STANDING, READ_STANDING = 2, (1, 2)
_GENERATOR, _DIGEST = "generator", "digest"


def pack_memory(memory: Memory) -> bytes:
    """A file, of a robot that is here: its model's memory, and those of the channels beside it."""
    assert memory.snapshot is not None
    tensors, channels = _tensors(memory.snapshot, ""), []
    for i, opinion in enumerate(memory.channels or ()):
        own = opinion.snapshot
        channels.append({"name": opinion.name, "memory": None if own is None else _model(own)})
        tensors |= {} if own is None else _tensors(own, _prefix(i))
    told = {
        "version": VERSION,
        "robot": memory.robot,
        "session": session_text(memory.session),
        "epoch": memory.epoch,
        "sequence": memory.sequence,
        "steps": memory.steps,
        "last_action": list(memory.last_action),
        "breakers": memory.breakers,
        "engaged": memory.engaged,
        **_model(memory.snapshot),
        "channels": channels,
    }
    return save(tensors, {"wmrt": json.dumps(told), _DIGEST: _digest(told, tensors)})


def unpack_memory(path: Path) -> Memory:
    """The memory; OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError,
    SafetensorError or WireError for what is none."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        told = json.loads(metadata["wmrt"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    if told["version"] not in READ:
        raise ValueError(f"version {told['version']!r}, this wmrt reads {READ}")
    if told["version"] >= 3 or _DIGEST in metadata:  # a bit makes 2 of 3
        _require_whole(metadata[_DIGEST], told, tensors)
    channels = None
    if told["version"] >= 2:
        channels = tuple(_opinion(i, one, tensors) for i, one in enumerate(told["channels"]))
    epoch, sequence, steps = _counts(told, "epoch", "sequence", "steps")
    return Memory(
        robot=str(told["robot"]),
        session=session_number(told["session"]),
        epoch=epoch,
        sequence=sequence,
        steps=steps,
        last_action=_action(told["last_action"]),
        **_trouble(told),
        snapshot=_snapshot(told, tensors),
        channels=channels,
    )


def pack_standing(standing: Standing) -> bytes:
    """A file."""
    own = {"version": STANDING, **standing._asdict(), "session": session_text(standing.session)}
    return json.dumps({**own, _DIGEST: _digest(own)}).encode()


def unpack_standing(told: Any) -> Standing:
    """Where they stand; ValueError, KeyError, TypeError, OverflowError or WireError for what does
    not say."""
    if told["version"] not in READ_STANDING:
        raise ValueError(f"version {told['version']!r}, this wmrt reads {READ_STANDING}")
    if told["version"] >= 2 or _DIGEST in told:
        own = {name: value for name, value in told.items() if name != _DIGEST}
        _require_whole(told[_DIGEST], own)
    epoch, sequence = _counts(told, "epoch", "sequence")
    return Standing(
        robot=str(told["robot"]),
        session=session_number(told["session"]),
        epoch=epoch,
        sequence=sequence,
        last_action=_action(told["last_action"]),
        **_trouble(told),
    )


def _digest(told: Any, tensors: Mapping[str, torch.Tensor] | None = None) -> str:
    """Of all that a file says: safetensors takes any bytes for numbers, and a robot would go on
    from a memory that a disk has altered."""
    found = hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted((tensors or {}).items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _require_whole(
    digest: str, told: Any, tensors: Mapping[str, torch.Tensor] | None = None
) -> None:
    if digest != _digest(told, tensors):
        raise ValueError("its digest is of other contents: the file was altered, or is damaged")


def _prefix(channel: int) -> str:
    return f"channels.{channel}."


def _tensors(snapshot: Snapshot, prefix: str) -> dict[str, torch.Tensor]:
    named = {**snapshot.tensors, _GENERATOR: snapshot.generator}
    return {prefix + name: tensor for name, tensor in named.items()}


def _model(snapshot: Snapshot) -> dict[str, Any]:
    """Of a model's memory all that is no tensor."""
    origin = snapshot.origin
    return {
        "previous_action": list(snapshot.last_action),
        "origin": {
            "schema": origin.schema,
            "network": origin.network,
            "weights": origin.weights,
            "recipe": origin.recipe,
        },
    }


def _snapshot(told: Any, tensors: dict[str, torch.Tensor]) -> Snapshot:
    generator = tensors.pop(_GENERATOR)
    return Snapshot(Origin(**told["origin"]), tensors, generator, _action(told["previous_action"]))


def _opinion(channel: int, told: Any, tensors: dict[str, torch.Tensor]) -> Opinion:
    """Takes its tensors out of those of the file."""
    prefix = _prefix(channel)
    own = {name: tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
    plain = {name.removeprefix(prefix): tensor for name, tensor in own.items()}
    kept = told["memory"]
    return Opinion(str(told["name"]), None if kept is None else _snapshot(kept, plain))


def _trouble(told: Any) -> dict[str, Any]:
    if told["breakers"] not in STATES or type(told["engaged"]) is not bool:
        raise ValueError(f"breakers {told['breakers']!r}, engaged {told['engaged']!r}")
    return {name: told[name] for name in ("breakers", "engaged")}


def _counts(told: Any, *names: str) -> list[int]:
    counts = [told[name] for name in names]
    least = [-1 if name == "sequence" else 0 for name in names]
    if not all(type(count) is int and count >= n for count, n in zip(counts, least, strict=True)):
        raise ValueError(f"{', '.join(names)}: {counts}")
    return counts


def _action(values: Any) -> tuple[float, ...]:
    action = tuple(float(value) for value in values)
    if not all(math.isfinite(value) and -1.0 <= value <= 1.0 for value in action):
        raise ValueError(f"action {action}: not in [-1, 1]")
    return action
