"""Whether channels can disagree: three runs of one deterministic graph always agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from wmrt.core.errors import SafetyError


class Identity(NamedTuple):
    """What answers. Equal identities give equal answers.

    Attributes:
        key: weights and recipe of a model, else which object it is.
        words: for messages.
    """

    key: tuple[Any, ...]
    words: str


def identity_of(thing: Any) -> Identity | None:
    """Of a policy, or of a policy's method. A model is its weights and its recipe, whoever holds
    them and whatever executes them; another policy is the object. None for a plain function: it may
    be anything, and is what its author says."""
    owner = getattr(thing, "__self__", thing)
    weights: Any = getattr(owner, "weights_sha256", None)
    recipe: Any = getattr(owner, "recipe", None)
    if isinstance(weights, str) and hasattr(recipe, "to_json"):
        content = json.dumps(recipe.to_json(), sort_keys=True)
        return Identity((weights, content), f"the weights {weights[:16]} in {recipe.name}")
    if callable(getattr(owner, "step", None)):  # itself, or its method
        return Identity((id(owner),), f"one {type(owner).__name__}")
    return None


def require_diverse(named: Sequence[tuple[str, Identity | None]]) -> None:
    """Raise `SafetyError` if two of ``named`` are the same."""
    seen: dict[tuple[Any, ...], str] = {}
    for name, identity in named:
        if identity is None:
            continue
        first = seen.get(identity.key)
        if first is not None:
            raise SafetyError(
                f"channels: {name!r} and {first!r} are both {identity.words}; they always agree, "
                "so their vote shows nothing: give one of them another recipe, an earlier "
                "checkpoint or an analytic rule"
            )
        seen[identity.key] = name
