"""The names others rely on: exactly these, each of them real."""

from __future__ import annotations

import importlib.metadata
import inspect

import pytest

import wmrt


def test_public_names() -> None:
    assert wmrt.__all__ == ["Controller", "StateSchema", "WorldModel", "__version__"]
    assert set(wmrt.__all__) <= set(dir(wmrt))


@pytest.mark.parametrize("name", ["Controller", "StateSchema", "WorldModel"])
def test_a_public_name_is_a_documented_class(name: str) -> None:
    value = getattr(wmrt, name)
    assert inspect.isclass(value)
    assert value.__name__ == name
    assert value.__doc__
    assert getattr(wmrt, name) is value


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Worldmodel'"):
        wmrt.Worldmodel  # noqa: B018


def test_version_is_the_installed_one() -> None:
    assert wmrt.__version__ == importlib.metadata.version("wmrt")
