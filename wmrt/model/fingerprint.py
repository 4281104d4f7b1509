"""The fingerprint of a state: 64 bits that are the same for the same state on every platform.

BLAKE2b with an 8-byte digest, read as a little-endian unsigned integer, over

1. the schema's content hash (the 32 raw bytes of the SHA-256, see `content_hash`);
2. one little-endian int64 per column in schema order: the integer q of a number, the code of a
   category (1 is its first value) or flag (1 false, 2 true), and -2**63 for unknown;
3. an instruction enters at its place in schema order as one such int64, see `instruction_code`.

No float and no text of a float is hashed; floats in the schema enter as their IEEE 754 bits.
"""

from __future__ import annotations

import hashlib
import json
import struct
import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt

from wmrt.model.rounding import UNKNOWN


def content_hash(data: Any) -> str:
    """SHA-256 (hex) of JSON-like data, independent of key order and of how floats print.

    The data is written as JSON with sorted keys, no spaces and ASCII escapes, after every float is
    replaced by the string ``f64:`` and the 16 hex digits of its big-endian IEEE 754 bits.
    """
    text = json.dumps(_canonical(data), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _canonical(data: Any) -> Any:
    if isinstance(data, float):
        return "f64:" + struct.pack(">d", data).hex()
    if isinstance(data, dict):
        return {key: _canonical(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_canonical(value) for value in data]
    return data


def instruction_code(text: str | None) -> int:
    """int64 of an instruction; `UNKNOWN` for None and for the empty text.

    BLAKE2b with an 8-byte digest over the UTF-8 bytes of the text in Unicode normal form NFC, read
    as a little-endian signed integer. The one digest equal to `UNKNOWN` becomes `UNKNOWN` + 1.
    """
    if not text:
        return UNKNOWN
    digest = hashlib.blake2b(unicodedata.normalize("NFC", text).encode("utf-8"), digest_size=8)
    return max(int.from_bytes(digest.digest(), "little", signed=True), UNKNOWN + 1)


class Fingerprinter:
    """Hashes the q of one schema.

    Args:
        schema_hash: hex of `content_hash`.
        instruction_at: number of columns before the instruction, None when there is none.
    """

    def __init__(self, schema_hash: str, instruction_at: int | None) -> None:
        self._start = hashlib.blake2b(bytes.fromhex(schema_hash), digest_size=8)
        self._at = instruction_at

    def __call__(self, q: npt.NDArray[np.int64], instruction: str | None) -> int:
        """Fingerprint of one state's integers int64[F] and instruction text, in [0, 2**64)."""
        data = q.astype("<i8", copy=False).tobytes()
        if self._at is not None:
            code = instruction_code(instruction).to_bytes(8, "little", signed=True)
            data = data[: 8 * self._at] + code + data[8 * self._at :]
        digest = self._start.copy()
        digest.update(data)
        return int.from_bytes(digest.digest(), "little")
