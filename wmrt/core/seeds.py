"""Which episode seeds may be trained on and which are held out for results."""

from __future__ import annotations

from collections.abc import Iterable

from wmrt.core.errors import UsageError

#: Seeds reserved for evaluation. `wmrt collect` refuses any of them.
HELD_OUT = range(500_000, 510_000)


def require_training_seeds(seeds: Iterable[int]) -> None:
    """Raise `UsageError` if any seed is held out."""
    bad = [seed for seed in seeds if seed in HELD_OUT]
    if bad:
        raise UsageError(
            f"seed {bad[0]} is held out for evaluation ({HELD_OUT.start} to {HELD_OUT.stop - 1}); "
            "collect from seeds outside that range"
        )
