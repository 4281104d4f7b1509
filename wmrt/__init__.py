"""wmrt: a quantized world model inside a robot's control loop.

The names below load on first use, so that ``import wmrt`` costs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wmrt.control import Controller
    from wmrt.model.schema import StateSchema
    from wmrt.runtime import WorldModel

__version__ = "0.1.0"
__all__ = ["Controller", "StateSchema", "WorldModel", "__version__"]

_HOME = {
    "Controller": "wmrt.control",
    "StateSchema": "wmrt.model.schema",
    "WorldModel": "wmrt.runtime",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'wmrt' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
