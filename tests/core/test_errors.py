from __future__ import annotations

import inspect

from wmrt.core import errors
from wmrt.core.errors import WmrtError


def test_every_error_is_a_wmrt_error_with_a_docstring() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    assert len(classes) > 5
    for cls in classes:
        assert issubclass(cls, WmrtError)
        assert cls.__doc__
