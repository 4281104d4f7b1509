"""Calibration of the prediction monitor: what ``monitor.json`` beside a model holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wmrt.control.surprise import KINDS, ColumnLimits
from wmrt.core.errors import CheckpointError
from wmrt.core.files import read_json, replacing
from wmrt.model.locate import MONITOR_FILE, resolve_checkpoint

FORMAT_VERSION = 1
_KEYS = ("format_version", "model_sha256", "schema_hash", "period", "data", "recipes")
_RECIPE_KEYS = ("columns", "false_alarms")


@dataclass(frozen=True)
class Calibration:
    """How well one model under one recipe foresees its own drives.

    Attributes:
        model_sha256: tree hash of the weight file.
        schema_hash: of the schema that names the columns.
        recipe: name.
        period: seconds between two states.
        columns: limits by name of a numeric column.
        false_alarms: the rate that the limits stand for and what it rests on, for people.
        data: the recording, for people.
    """

    model_sha256: str
    schema_hash: str
    recipe: str
    period: float
    columns: Mapping[str, ColumnLimits]
    false_alarms: Mapping[str, Any]
    data: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain data of this recipe alone; `from_json` reads it back."""
        return document([self])

    @classmethod
    def from_json(cls, data: Mapping[str, Any], recipe: str, where: str = "") -> Calibration:
        """The calibration of ``recipe``.

        Raises:
            CheckpointError: keys, types or numbers that cannot be, or none for this recipe; names
                ``where``.
        """
        where = where or "calibration of the monitor"
        _require(isinstance(data, Mapping) and sorted(data) == sorted(_KEYS), where, _KEYS)
        if data["format_version"] != FORMAT_VERSION:
            raise CheckpointError(
                f"{where}: format_version is {data['format_version']!r}, this wmrt reads "
                f"{FORMAT_VERSION}; run wmrt calibrate again"
            )
        recipes = data["recipes"]
        _require(isinstance(recipes, Mapping), where, "recipes as an object")
        if recipe not in recipes:
            raise CheckpointError(
                f"{where}: no calibration for recipe {recipe!r}, only for "
                f"{', '.join(map(repr, recipes)) or 'none'}; run wmrt calibrate --recipe {recipe}"
            )
        entry = recipes[recipe]
        right = isinstance(entry, Mapping) and sorted(entry) == sorted(_RECIPE_KEYS)
        _require(right and isinstance(entry["columns"], Mapping), where, _RECIPE_KEYS)
        return cls(
            str(data["model_sha256"]),
            str(data["schema_hash"]),
            recipe,
            _number(where, "period", data["period"]),
            {name: _limits(f"{where}: {name}", row) for name, row in entry["columns"].items()},
            entry["false_alarms"],
            data["data"],
        )

    @classmethod
    def load(cls, name_or_path: str | Path, recipe: str) -> Calibration:
        """Of a packaged name, a folder, a hub repository, or a ``monitor.json`` file.

        Raises:
            CheckpointError: no such model, no calibration beside it, or see `from_json`.
        """
        given = Path(name_or_path)
        path = given if given.is_file() else resolve_checkpoint(name_or_path) / MONITOR_FILE
        if not path.is_file():
            raise CheckpointError(
                f"{name_or_path}: no {MONITOR_FILE}; run: wmrt calibrate {name_or_path}"
            )
        return cls.from_json(read_json(path), recipe, str(path))


def document(calibrations: list[Calibration]) -> dict[str, Any]:
    """What ``monitor.json`` holds of one model under several recipes."""
    first = calibrations[0]
    return {
        "format_version": FORMAT_VERSION,
        "model_sha256": first.model_sha256,
        "schema_hash": first.schema_hash,
        "period": first.period,
        "data": dict(first.data),
        "recipes": {
            c.recipe: {
                "false_alarms": dict(c.false_alarms),
                "columns": {name: asdict(limits) for name, limits in c.columns.items()},
            }
            for c in calibrations
        },
    }


def save(path: Path, calibrations: list[Calibration]) -> None:
    """Write ``path``, whole or not at all; `UsageError` if it cannot be written."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document(calibrations), indent=1) + "\n")


def _require(ok: bool, where: str, expected: Any) -> None:
    if not ok:
        wanted = expected if isinstance(expected, str) else f"exactly {', '.join(expected)}"
        raise CheckpointError(f"{where}: expected {wanted}; run wmrt calibrate again")


def _number(where: str, name: str, value: Any) -> float:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool)
    _require(ok and 0 < value < math.inf, where, f"{name} as a finite number above 0")
    return float(value)


def _limits(where: str, row: Any) -> ColumnLimits:
    keys = ("scale", *KINDS)
    _require(isinstance(row, Mapping) and sorted(row) == sorted(keys), where, keys)
    return ColumnLimits(**{key: _number(where, key, row[key]) for key in keys})
