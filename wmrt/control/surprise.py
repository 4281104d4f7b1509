"""How much a reading differs from what was expected of it, added up over steps; one column.

Three sums, in units of the column's usual error ``scale``, each against a limit of its own:

- ``rise`` and ``fall``: CUSUM (Page, "Continuous inspection schemes", Biometrika 41, 1954) of the
  difference, clipped, less an allowance a step. A sensor that drifts keeps one sign; another
  vehicle in front is one large step, and is clipped.
- ``frozen``: differences of steps on which the reading is exactly the one before, although another
  was expected; any change of the reading empties it. A reading at an end of its range does not
  count: that is where "nobody there" and "no lane there" stay for good reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: A difference counts up to so many scales.
CLIP = 4.0
#: So many scales a step are usual.
ALLOWANCE = 1.0
#: A sum over its limit is below it again after so many usual steps at most.
LINGER = 10.0
KINDS = ("rise", "fall", "frozen")


@dataclass(frozen=True)
class ColumnLimits:
    """Calibration of one numeric column.

    Attributes:
        scale: usual size of the difference, in the column's unit, above 0.
        rise, fall, frozen: what the sums may reach, in scales; above 0.
    """

    scale: float
    rise: float = math.inf
    fall: float = math.inf
    frozen: float = math.inf


class ColumnSums:
    """The three sums of one column.

    Written out, with comparisons for `min` and `max`: it runs once per column and step, and takes a
    third of the time.

    Args:
        low, high, decimals: of the column. Readings are rounded and brought into the range, as the
            model sees them.
    """

    __slots__ = ("_decimals", "_high", "_last", "_low", "_tops", "fall", "frozen", "limits", "rise")

    def __init__(self, limits: ColumnLimits, low: float, high: float, decimals: int) -> None:
        self.limits = limits
        self._low, self._high, self._decimals = low, high, decimals
        most = LINGER * ALLOWANCE
        self._tops = (limits.rise + most, limits.fall + most, limits.frozen + most)
        self.reset()

    def reset(self) -> None:
        """Nothing is known of the column."""
        self.rise = self.fall = self.frozen = 0.0
        self._last: float | None = None

    def see(self, value: float, expected: float) -> bool:
        """A reading, and what was expected of it; both finite. True if a sum is beyond its limit
        now."""
        limits, low, high = self.limits, self._low, self._high
        value = round(value, self._decimals)
        value = low if value < low else high if value > high else value
        error = (value - expected) / limits.scale
        error = -CLIP if error < -CLIP else CLIP if error > CLIP else error
        top_rise, top_fall, top_frozen = self._tops
        rise, fall = self.rise + error - ALLOWANCE, self.fall - error - ALLOWANCE
        self.rise = rise = 0.0 if rise < 0.0 else top_rise if rise > top_rise else rise
        self.fall = fall = 0.0 if fall < 0.0 else top_fall if fall > top_fall else fall
        if value == self._last and low < value < high:
            frozen = self.frozen + (error if error > 0.0 else -error)
            self.frozen = frozen = top_frozen if frozen > top_frozen else frozen
        else:
            self.frozen = frozen = 0.0
        self._last = value
        return rise > limits.rise or fall > limits.fall or frozen > limits.frozen

    def worst(self) -> tuple[float, str]:
        """The sum that is largest in terms of its limit: that ratio, over 1 when it is too large,
        and the sum's name."""
        limits = self.limits
        ratios = (self.rise / limits.rise, self.fall / limits.fall, self.frozen / limits.frozen)
        most = max(ratios)
        return most, KINDS[ratios.index(most)]
