"""Does a peer compute what it is timed for: its outputs against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.core.errors import UnsupportedError
from wmrt.runtime.bench.peers.common import Link

Array = NDArray[Any]


def relative_error(got: Array, expected: Array) -> float:
    """|got - expected| / |expected| in the Euclidean norm; infinity where `got` is not finite."""
    got, expected = np.asarray(got, np.float64).ravel(), np.asarray(expected, np.float64).ravel()
    if got.shape != expected.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.linalg.norm(got - expected) / max(float(np.linalg.norm(expected)), 1e-300))


def distinct(links: Sequence[Link]) -> list[Link]:
    """The first layer of every shape [N, K]."""
    first: dict[tuple[int, int], Link] = {}
    for link in links:
        first.setdefault((link.n, link.k), link)
    return list(first.values())


def check_layers(
    links: Sequence[Link],
    run: Callable[[Link, NDArray[np.float32]], Array],
    weight: Callable[[Link], NDArray[np.float64]],
    limit: float,
) -> dict[str, float]:
    """Relative error of every distinct shape, by ``NxK``.

    Args:
        links: all layers; the first of each shape is run.
        run: the peer's output [N] for input float32[1, K].
        weight: what that layer's packed weight stands for, float64[N, K].
        limit: the largest error that the peer's own rounding of activations explains.

    Raises `UnsupportedError` naming the shape when an error is larger: such a peer is not timed.
    """
    errors = {}
    for link in distinct(links):
        rng = np.random.default_rng([7, link.n, link.k])
        x = rng.standard_normal((1, link.k), dtype=np.float32)
        expected = weight(link) @ x[0].astype(np.float64)
        errors[f"{link.n}x{link.k}"] = within(run(link, x), expected, limit, link.name)
    return errors


def within(got: Array, expected: Array, limit: float, what: str) -> float:
    """The relative error; raises `UnsupportedError` when it is above `limit`."""
    error = relative_error(got, expected)
    if not error <= limit:
        raise UnsupportedError(
            f"its output of {what} differs from float64 by {error:.3g} of its norm; "
            f"at most {limit:g} is explained by rounding"
        )
    return error
