"""monitor.json: read back as written, and refused when it is not right."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.control.test_monitor import calibration
from wmrt.control import Calibration
from wmrt.control.calibration import document, save
from wmrt.core.errors import CheckpointError


def two() -> list[Calibration]:
    return [calibration(), calibration(recipe="other", false_alarms={"per_drive": 0.2})]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    save(path, two())
    for one in two():
        assert Calibration.load(path, one.recipe) == one
        (tmp_path / "config.json").touch()
        assert Calibration.load(tmp_path, one.recipe) == one
        assert Calibration.from_json(one.to_json(), one.recipe) == one


def changed(*path: str, to: Any) -> dict[str, Any]:
    data = copy.deepcopy(document(two()))
    part = data
    for key in path[:-1]:
        part = part[key]
    if to is None:
        del part[path[-1]]
    else:
        part[path[-1]] = to
    return data


LIMITS = ("recipes", "toy", "columns", "speed")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed("format_version", to=2), "format_version is 2, this wmrt reads 1"),
        (changed("period", to=None), "expected exactly format_version"),
        (changed("extra", to=1), "expected exactly format_version"),
        (changed("period", to="0.1"), "period as a finite number above 0"),
        (changed("period", to=True), "period as a finite number above 0"),
        (changed("recipes", to=[]), "recipes as an object"),
        (changed("recipes", "toy", to=None), "no calibration for recipe 'toy', only for 'other'"),
        (changed("recipes", "toy", to=[]), "expected exactly columns, false_alarms"),
        (changed("recipes", "toy", "columns", to=3), "expected exactly columns, false_alarms"),
        (changed(*LIMITS, to=0.5), "speed: expected exactly scale, rise, fall, frozen"),
        (changed(*LIMITS, "scale", to=0.0), "speed: expected scale as a finite number above 0"),
        (changed(*LIMITS, "frozen", to=float("inf")), "frozen as a finite number above 0"),
        (changed(*LIMITS, "rise", to=float("nan")), "rise as a finite number above 0"),
        (changed(*LIMITS, "fall", to=-1), "fall as a finite number above 0"),
        ([], "expected an object"),
    ],
)
def test_what_cannot_be_is_refused(data: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=message) as caught:
        Calibration.load(path, "toy")
    assert str(path) in str(caught.value)
