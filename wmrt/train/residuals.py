"""Calibrates the prediction monitor on recorded drives.

Scales come from a third of the drives: 90% of all differences between a state and the one foreseen
are within one. On those drives each of the three sums of `wmrt.control.surprise` has a usual peak,
that 90% of them stay under. The rest of the drives give the threshold, a multiple of those peaks,
by split conformal prediction (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World",
2005; Angelopoulos and Bates, arXiv:2107.07511): a drive's score is its largest sum in terms of the
usual peak, and of n drives and another one like them, that one's score is above the
ceil((n + 1)(1 - a))-th smallest with a chance of at most a. Steps of one drive depend on each
other; drives from different seeds do not, so the rate is promised per drive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.control.calibration import Calibration
from wmrt.control.surprise import KINDS, ColumnLimits, ColumnSums
from wmrt.core.errors import UsageError
from wmrt.model.fields import Column
from wmrt.model.schema import UNKNOWN
from wmrt.runtime import WorldModel
from wmrt.train.dataset import Episode, Meta

#: Part of the differences within one scale, and of the drives within the usual peak.
USUAL = 0.9
#: Every third drive fits scales and peaks.
THIRD = 3
#: A drive that just reaches a limit is within it, whatever the last digit of a quotient.
EDGE = 1.0 + 1e-9

#: A drive as the monitor sees it: numeric columns observed and foreseen, float64[T, N]; NaN for
#: unknown.
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


def calibrate(
    model: WorldModel, episodes: Sequence[Episode], meta: Meta, false_alarms: float
) -> Calibration:
    """The calibration of ``model`` on drives like those it is to watch.

    Args:
        false_alarms: chance that a clean drive has an alarm at all, in (0, 1).

    Raises:
        UsageError: a recording of other states, or too few drives for this rate.
    """
    if model.schema.input_hash != meta.schema.input_hash:
        raise UsageError(
            "the recording holds other states than the model reads: "
            + "; ".join(model.schema.differences(meta.schema))
        )
    columns = [column for column in model.schema.columns if column.numeric]
    pairs = [foreseen(model, episode) for episode in episodes]
    fit, rest = pairs[::THIRD], [pair for n, pair in enumerate(pairs) if n % THIRD]
    rank = _rank(len(rest), false_alarms)
    scales = _scales(columns, fit)
    usual = _peaks(columns, scales, fit, USUAL)
    scores = [float((_sums(columns, scales, pair) / usual).max()) for pair in rest]
    threshold = sorted(scores)[rank - 1]
    steps = sum(len(observed) for observed, _ in rest)
    limits = {
        column.name: ColumnLimits(scale, *(float(peak) * threshold * EDGE for peak in peaks))
        for column, scale, peaks in zip(columns, scales, usual.T, strict=True)
    }
    return Calibration(
        model.weights_sha256,
        model.schema.hash,
        model.recipe.name,
        meta.period,
        limits,
        {
            "per_drive": false_alarms,
            "per_step": _tidy(false_alarms * len(rest) / steps),
            "drives_for_scales": len(fit),
            "drives_for_threshold": len(rest),
            "steps_for_threshold": steps,
            "threshold": _tidy(threshold),
        },
        {
            "env": meta.env,
            "drivers": list(meta.drivers),
            "first_seed": min(e.seed for e in episodes),
            "last_seed": max(e.seed for e in episodes),
        },
    )


def foreseen(model: WorldModel, episode: Episode) -> Pair:
    """The states of a recorded drive from its second one, and what the model foresaw of each.

    It sees the recorded states and is told the recorded actions. What follows the step that ended a
    drive, a crash, is left out.
    """
    schema = model.schema
    columns = [i for i, column in enumerate(schema.columns) if column.numeric]
    model.reset()
    before: Any = np.array(schema.neutral, np.float32)
    expected = []
    count = len(episode) - int(episode.terminated)
    for t in range(count):
        model.step(schema.decode(episode.q[t]), before)
        before = episode.action[t]
        expected.append(schema.quantize(model.foresee(before))[0])
    units = np.array([10.0 ** -schema.columns[i].decimals for i in columns])
    q = np.stack(expected) if expected else np.zeros((0, len(schema.columns)), np.int64)
    seen = episode.q[1 : count + 1]
    observed, guess = (
        np.where(part[:, columns] == UNKNOWN, np.nan, part[:, columns] * units)
        for part in (seen, q)
    )
    return observed, guess


def _scales(columns: Sequence[Column], pairs: Sequence[Pair]) -> list[float]:
    """The usual difference of each column, at least one unit of its last decimal place."""
    differences = np.concatenate([np.abs(observed - guess) for observed, guess in pairs])
    scales = []
    for i, column in enumerate(columns):
        known = differences[:, i][~np.isnan(differences[:, i])]
        usual = float(np.quantile(known, USUAL)) if len(known) else 0.0
        scales.append(_tidy(max(usual, 10.0**-column.decimals)))
    return scales


def _sums(columns: Sequence[Column], scales: Sequence[float], pair: Pair) -> NDArray[np.float64]:
    """The peak of every sum in a drive, float64[3, N]."""
    made = [
        ColumnSums(ColumnLimits(scale), column.low, column.high, column.decimals)
        for column, scale in zip(columns, scales, strict=True)
    ]
    peaks = np.zeros((len(KINDS), len(columns)))
    for values, guesses in zip(*(part.tolist() for part in pair), strict=True):
        for i, (sums, value, guess) in enumerate(zip(made, values, guesses, strict=True)):
            if math.isnan(value) or math.isnan(guess):
                sums.reset()
                continue
            sums.see(value, guess)
            peaks[:, i] = np.maximum(peaks[:, i], (sums.rise, sums.fall, sums.frozen))
    return peaks


def _peaks(
    columns: Sequence[Column], scales: Sequence[float], pairs: Sequence[Pair], part: float
) -> NDArray[np.float64]:
    """The usual peaks, float64[3, N], at least one scale."""
    found = np.stack([_sums(columns, scales, pair) for pair in pairs])
    return np.maximum(np.quantile(found, part, axis=0), 1.0)


def _rank(drives: int, false_alarms: float) -> int:
    """Which of the ``drives`` scores is the threshold, from 1; see above."""
    if not 0 < false_alarms < 1:
        raise UsageError(f"false alarms per drive must be between 0 and 1, got {false_alarms:g}")
    rank = math.ceil((drives + 1) * (1 - false_alarms) - 1e-9)
    if rank > drives or drives < 1:
        need = math.ceil(1 / false_alarms - 1e-9) - 1
        raise UsageError(
            f"{drives} drives for the threshold cannot promise {false_alarms:g} false alarms per "
            f"drive; that takes {need}, so record {need + math.ceil(need / 2)} in all"
        )
    return rank


def _tidy(value: float) -> float:
    return float(f"{value:.6g}")
