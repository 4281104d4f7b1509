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

    Args:
        low, high, decimals: of the column. Readings are rounded and brought into the range, as the
            model sees them.
    """

    def __init__(self, limits: ColumnLimits, low: float, high: float, decimals: int) -> None:
        self.limits = limits
        self._low, self._high, self._decimals = low, high, decimals
        self._tops = tuple(getattr(limits, kind) + LINGER * ALLOWANCE for kind in KINDS)
        self.reset()

    def reset(self) -> None:
        """Nothing is known of the column."""
        self.rise = self.fall = self.frozen = 0.0
        self._last: float | None = None

    def see(self, value: float, expected: float) -> None:
        """A reading, and what was expected of it; both finite."""
        value = min(max(round(value, self._decimals), self._low), self._high)
        error = (value - expected) / self.limits.scale
        error = min(max(error, -CLIP), CLIP)
        rise, fall, frozen = self._tops
        self.rise = min(max(self.rise + error - ALLOWANCE, 0.0), rise)
        self.fall = min(max(self.fall - error - ALLOWANCE, 0.0), fall)
        stays = value == self._last and self._low < value < self._high
        self.frozen = min(self.frozen + abs(error), frozen) if stays else 0.0
        self._last = value

    def worst(self) -> tuple[float, str]:
        """The sum that is largest in terms of its limit: that ratio, over 1 when it is too large,
        and the sum's name."""
        limits = self.limits
        ratios = (self.rise / limits.rise, self.fall / limits.fall, self.frozen / limits.frozen)
        most = max(ratios)
        return most, KINDS[ratios.index(most)]
