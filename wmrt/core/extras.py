"""Optional dependencies: import one, or fail with the command that installs it."""

from __future__ import annotations

import importlib
from types import ModuleType

from wmrt.core.errors import MissingExtraError


def require(module: str, extra: str) -> ModuleType:
    """Import ``module``; if absent raise `MissingExtraError` naming the extra that holds it.

    A module that is there and fails to import something of its own raises that error unchanged.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{module} is not installed; run: pip install 'wmrt[{extra}]'"
        ) from None
