"""What peers share: the chain of layers, random weights, what a result says of a library."""

from __future__ import annotations

import importlib
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.core.errors import MissingExtraError, UsageError
from wmrt.runtime.bench.arms import Arm, Missing

Shape = tuple[str, int, int]  # name, N, K


@dataclass(frozen=True)
class Link:
    """One linear layer in the chain that a step runs through.

    Attributes:
        index, name, n, k: its place, name, outputs N and inputs K.
        source: the layer whose first K outputs it reads; -1 is the step's input.
    """

    index: int
    name: str
    n: int
    k: int
    source: int


def chain(shapes: Sequence[Shape]) -> list[Link]:
    """Every layer behind the latest one that is wide enough, so that none can run early.

    Raises `UsageError` for no layers, or one without inputs or outputs.
    """
    links: list[Link] = []
    for index, (name, n, k) in enumerate(shapes):
        if min(n, k) < 1:
            raise UsageError(f"layer {name!r} has shape [{n}, {k}]; both must be at least 1")
        wide = [link.index for link in links if link.n >= k]
        links.append(Link(index, name, n, k, wide[-1] if wide else -1))
    if not links:
        raise UsageError("no linear layer was given; a peer needs at least one")
    return links


def input_width(links: Sequence[Link]) -> int:
    """Length of the step's input: the most that a layer reads of it."""
    return max(link.k for link in links if link.source < 0)


def check_threads(threads: int) -> int:
    """`threads`; raises `UsageError` unless it is at least 1."""
    if threads < 1:
        raise UsageError(f"threads must be at least 1, got {threads}")
    return threads


@dataclass(eq=False)  # an arm is itself, and a key
class Peer:
    """An arm around one call of another library; see `wmrt.runtime.bench.arms.Arm`."""

    name: str
    recipe: str
    threads: int
    read_bytes: int
    detail: Mapping[str, Any]
    run: Callable[[], object] = field(repr=False)
    release: Callable[[], None] | None = field(default=None, repr=False)

    def step(self) -> None:
        self.run()

    def close(self) -> None:
        self.run = _closed
        release, self.release = self.release, None
        if release is not None:
            release()


def _closed() -> None:
    raise UsageError("this arm was closed; build it again")


def require(module: str, package: str) -> ModuleType:
    """The module of an optional package; `MissingExtraError` names the command that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{package} cannot be imported ({error}); pip install 'wmrt[peers]'"
        ) from None


def attempt(name: str, make: Callable[[], Arm]) -> Arm | Missing:
    """The arm, or why there is none. A peer that fails must not take the bench with it."""
    try:
        return make()
    except MissingExtraError as error:
        return Missing(name, str(error))
    except Exception as error:
        text = " ".join(str(error).split())
        return Missing(name, f"{type(error).__name__}: {text:.400}")


def describe(packages: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, settings and affinity of an arm, as JSON."""
    return {
        "versions": {package: _version(package) for package in packages},
        "settings": dict(settings),
        "affinity": affinity(),
        "machine": platform.machine(),
    }


def affinity() -> list[int] | None:
    """Processors this process may use, which all peers inherit; None where that is not known."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def generator(link: Link, salt: int = 0) -> np.random.Generator:
    """Random numbers of one layer, the same on every call."""
    return np.random.default_rng([link.index, link.n, link.k, salt])


def random_codes(link: Link, per_byte: int = 2) -> NDArray[np.uint8]:
    """Packed 4-bit codes uint8[N, K / 2], uniform over all 16."""
    return generator(link).integers(0, 256, (link.n, link.k // per_byte), dtype=np.uint8)


def random_scales(link: Link, group: int) -> NDArray[np.float64]:
    """Scales float64[N, K / group] under which uniform codes -8 to 7 keep the size of a vector.

    Either sign: codes of mean -1/2 under positive scales would multiply the mean of a vector by
    sqrt(K) / 9 in every layer, and 98 layers of that overflow.
    """
    rng = generator(link, salt=1)
    size = (link.n, link.k // group)
    unit = 1.0 / math.sqrt(link.k * 21.5 * 13 / 12)  # E[code^2] = 21.5, E[u^2] = 13/12
    scales: NDArray[np.float64] = rng.uniform(0.5, 1.5, size) * rng.choice((-unit, unit), size)
    return scales


def random_input(size: int) -> NDArray[np.float32]:
    """The step's input float32[1, size], standard normal."""
    return np.random.default_rng(size).standard_normal((1, size), dtype=np.float32)


def whole_groups(links: Sequence[Link], group: int) -> None:
    """Raises `UsageError` unless every K is a multiple of `group`."""
    for link in links:
        if link.k % group:
            raise UsageError(f"layer {link.name!r} has K = {link.k}, no multiple of {group}")
