"""Counts of equal bytes per oracle and format, written as JSON by `make test-oracles`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np

from wmrt.core import machine

_COUNTS: dict[tuple[str, str, str], Counter[str]] = {}
THEIRS, OURS = "theirs", "ours"


def record(
    oracle: str,
    format: str,
    rules: str,
    *,
    scales: tuple[np.ndarray, np.ndarray] | None = None,
    codes: tuple[np.ndarray, np.ndarray] | None = None,
    sign: int = 0,
) -> None:
    """Add one comparison of ours with theirs, under `rules` THEIRS or OURS.

    Args:
        codes: one element each. Where `sign` is its sign bit, two zeros that differ in it alone
            count as equal, and once more as zero_sign_only.
    """
    counts = _COUNTS.setdefault((oracle, format, rules), Counter())
    if scales is not None:
        counts["scales_compared"] += scales[0].size
        counts["scales_equal"] += int((scales[0] == scales[1]).sum())
    if codes is not None:
        mine, theirs = codes
        same, zeros = mine == theirs, np.zeros(mine.shape, bool)
        if sign:
            magnitude = np.uint8(0xFF ^ sign)
            zeros = ~same & ((mine | theirs) & magnitude == 0)
        counts["codes_compared"] += mine.size
        counts["codes_equal"] += int((same | zeros).sum())
        counts["zero_sign_only"] += int(zeros.sum())
    counts["comparisons"] += 1


def rows() -> list[dict[str, str | int]]:
    """One row per oracle, format and rules."""
    names = ("comparisons", "scales_compared", "scales_equal", "codes_compared", "codes_equal",
             "zero_sign_only")  # fmt: skip
    return [
        {
            "oracle": oracle,
            "format": format,
            "rules": rules,
            **{name: counts[name] for name in names},
        }
        for (oracle, format, rules), counts in sorted(_COUNTS.items())
    ]


def write(path: Path, seed: str) -> None:
    """All rows of this process as JSON, with the commit that they are of."""
    document = {"commit": machine.source_commit(), "seed": seed, "agreement": rows()}
    text = json.dumps(document, indent=1)
    path.write_text(text + "\n", "utf-8")
