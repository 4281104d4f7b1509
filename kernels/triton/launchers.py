"""How the operators of a step are launched: on CUDA for the variant of a device, and anywhere for a
variant that is named."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from wmrt.kernels.triton.linear import chosen

#: Takes a `Variant` and the arguments of an operator's schema. Kernels are imported in the first
#: call.
Launcher = Callable[..., None]
_known: dict[str, Launcher] = {}
#: By operator, for those whose modules have been imported.
LAUNCHERS: Mapping[str, Launcher] = MappingProxyType(_known)


def on_cuda(name: str, launcher: Launcher) -> Callable[..., None]:
    """What the operator does on CUDA; it is remembered in `LAUNCHERS`."""
    _known[name] = launcher

    def run(first: Tensor, *more: Any) -> None:
        how = chosen(first.device)
        with torch.cuda.device(first.device):
            launcher(how, first, *more)

    return run


def function_of(module: str, name: str) -> Launcher:
    """The launcher that calls function ``name`` of a module of kernels, to which nothing of the
    variant matters but whether launches depend on one another."""

    def launcher(how: Any, *given: Any) -> None:
        kernels = importlib.import_module(f"wmrt.kernels.triton.{module}")
        getattr(kernels, name)(*given, dependent=how.dependent)

    return launcher
