"""A second implementation of the fingerprint, in plain Python and from its description alone.

It imports neither wmrt nor numpy, so that the fingerprint can be had without either:

    python tests/model/test_fingerprint_reference.py     # checks fingerprint_vectors.json

The description: wmrt/model/fingerprint.py (what is hashed) and wmrt/model/rounding.py (what q is).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import subprocess
import sys
import unicodedata
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from pathlib import Path

VECTORS = Path(__file__).with_name("fingerprint_vectors.json")
UNKNOWN = -(2**63)


def float32(value: float) -> float:
    """Nearest float32, as a float; infinite beyond its range."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def shortest(value: float) -> Decimal:
    """The decimal of fewest digits that reads back as the float32 ``value``.

    Of several the nearest one; of two as near the one whose last digit is even.
    """
    exact = Decimal(value)
    for digits in range(1, 10):
        rounded = {
            Context(prec=digits, rounding=mode).plus(exact) for mode in (ROUND_FLOOR, ROUND_CEILING)
        }
        same = [candidate for candidate in rounded if float32(float(candidate)) == value]
        if same:
            nearest = min(abs(candidate - exact) for candidate in same)
            ties = [candidate for candidate in same if abs(candidate - exact) == nearest]
            even = Context(prec=digits, rounding=ROUND_HALF_EVEN).plus(exact)
            return ties[0] if len(ties) == 1 else even
    raise AssertionError(f"nine digits identify every float32, but not {value!r}")


def number(value, low: float, high: float, decimals: int) -> int:
    """q of a number, or UNKNOWN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return UNKNOWN
    try:
        reading = float32(float(value))
    except OverflowError:
        return UNKNOWN
    if not math.isfinite(reading):
        return UNKNOWN
    context = Context(prec=100, rounding=ROUND_HALF_EVEN)
    q = int(shortest(reading).scaleb(decimals, context).to_integral_value(ROUND_HALF_EVEN))
    bounds = [Decimal(repr(float(bound))).scaleb(decimals, context) for bound in (low, high)]
    return max(math.ceil(bounds[0]), min(math.floor(bounds[1]), q))


def codes(field: dict, value) -> list[int]:
    """The int64s of one field."""
    kind = field["kind"]
    if kind == "numeric":
        return [number(value, field["low"], field["high"], field["decimals"])]
    if kind == "vector":
        parts = (
            value if isinstance(value, list) and len(value) == field["n"] else [None] * field["n"]
        )
        return [number(part, field["low"], field["high"], field["decimals"]) for part in parts]
    if kind == "category":
        known = isinstance(value, str) and value in field["values"]
        return [field["values"].index(value) + 1 if known else UNKNOWN]
    if kind == "flag":
        if isinstance(value, str):
            return [{"true": 2, "True": 2, "false": 1, "False": 1}.get(value, UNKNOWN)]
        return [int(value) + 1 if isinstance(value, (int, float)) and value in (0, 1) else UNKNOWN]
    if not isinstance(value, str) or not value:
        return [UNKNOWN]
    text = unicodedata.normalize("NFC", value).encode("utf-8")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return [max(struct.unpack("<q", digest)[0], UNKNOWN + 1)]


def canonical(data):
    """JSON data with every float as its IEEE 754 bits."""
    if isinstance(data, float):
        return "f64:" + struct.pack(">d", data).hex()
    if isinstance(data, dict):
        return {key: canonical(value) for key, value in data.items()}
    return [canonical(value) for value in data] if isinstance(data, list) else data


def schema_hash(schema: dict) -> str:
    """Content hash of a schema in full JSON form."""
    text = json.dumps(canonical(schema), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(schema: dict, state: dict) -> int:
    """Fingerprint of a state of plain Python values under a schema in full JSON form."""
    data = bytes.fromhex(schema_hash(schema))
    for field in schema["fields"]:
        for code in codes(field, state.get(field["name"])):
            data += struct.pack("<q", code)
    return struct.unpack("<Q", hashlib.blake2b(data, digest_size=8).digest())[0]


def restore(value):
    """A state from the vectors: ``{"float": "nan"}`` stands for what JSON cannot write."""
    if isinstance(value, dict) and set(value) == {"float"}:
        return float(value["float"])
    if isinstance(value, dict):
        return {key: restore(part) for key, part in value.items()}
    return [restore(part) for part in value] if isinstance(value, list) else value


def check() -> int:
    """Compare with the recorded vectors; returns how many there were."""
    count = 0
    for group in json.loads(VECTORS.read_text(encoding="utf-8")):
        assert schema_hash(group["schema"]) == group["hash"], group["schema"]["name"]
        for case in group["cases"]:
            got = f"{fingerprint(group['schema'], restore(case['state'])):016x}"
            assert got == case["fingerprint"], (group["schema"]["name"], case, got)
            count += 1
    return count


def test_reference_agrees_with_vectors() -> None:
    assert check() >= 40


def test_reference_needs_no_wmrt() -> None:
    # -I and -S: no site-packages, no current folder, so neither wmrt nor numpy can be imported.
    command = [sys.executable, "-I", "-S", "-W", "error", __file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(check()), "vectors", "agree"]


def test_shortest_of_known_floats() -> None:
    for text in ("0.1", "2.675", "1E-45", "3.4028235E+38", "16777216", "9.094947E-13", "0.3"):
        assert shortest(float32(float(text))) == Decimal(text)


if __name__ == "__main__":
    assert not {"wmrt", "numpy"} & set(sys.modules)
    print(check(), "vectors agree")
