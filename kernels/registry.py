"""Which implementation computes a linear layer: named, picked once, reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from wmrt.core.errors import UnsupportedError, WmrtError

LinearFunction = Callable[[Tensor, Any], Tensor]


@dataclass(frozen=True)
class LinearOp:
    """A linear operator ready to call: ``op(x[..., K], weight) -> float32[..., N]``.

    `weight` is a `QuantizedTensor`, or for the bf16 format a bfloat16 matrix [N, K]. An operator
    whose `layout` is not the canonical one takes a `wmrt.quant.layouts.LaidOut` in it.
    `name` is what a run report prints, such as ``linear_nvfp4_a8.reference``.
    """

    name: str
    format: str
    activation: str
    implementation: str
    function: LinearFunction
    layout: str = "canonical"

    def __call__(self, x: Tensor, weight: Any) -> Tensor:
        return self.function(x, weight)


_OPS: dict[tuple[str, str, str], LinearOp] = {}
_SHORT = {"int8-g32": "a8", "bf16": "a16", "int8-token": "int8", "fp8-token": "fp8"}


def register(
    format: str, activation: str, implementation: str, layout: str = "canonical"
) -> Callable[[LinearFunction], LinearFunction]:
    """Enter the decorated function as `implementation` of the linear for format and activation,
    reading weights in `layout`."""

    def enter(function: LinearFunction) -> LinearFunction:
        kind = format if format == "bf16" else f"{format}_{_SHORT[activation]}"
        name = f"linear_{kind.replace('-', '_')}.{implementation}"
        key = (format, activation, implementation)
        if key in _OPS:
            raise WmrtError(f"{name} is registered twice; one implementation, one function")
        _OPS[key] = LinearOp(name, format, activation, implementation, function, layout)
        return function

    return enter


def linear(format: str, activation: str, implementation: str = "reference") -> LinearOp:
    """The operator asked for, exactly; `UnsupportedError` lists what that implementation has, or
    which implementations there are. Never falls back."""
    op = _OPS.get((format, activation, implementation))
    if op is not None:
        return op
    listed = [f"{f} with {a}" for f, a, i in _OPS if i == implementation]
    if not listed:
        known = ", ".join(dict.fromkeys(i for _, _, i in _OPS))
        raise UnsupportedError(f"no implementation {implementation!r} of linear; there are {known}")
    raise UnsupportedError(
        f"no {implementation} linear for weights {format!r} with activations {activation!r}; "
        f"there are {', '.join(listed)}"
    )


def operators() -> tuple[LinearOp, ...]:
    """Every registered operator."""
    return tuple(_OPS.values())
