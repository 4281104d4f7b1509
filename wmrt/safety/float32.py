"""float32 arithmetic without numpy: actions leave as float32, so limits must hold for those values.

Rounding a bound or a clamped value to the nearest float32 may carry it up to half an ulp over the
limit; here it is rounded towards a value known to be allowed.
"""

from __future__ import annotations

import struct

_FLOAT = struct.Struct("<f")
_BITS = struct.Struct("<i")


def to_float32(value: float) -> float:
    """The nearest float32 as a Python float. Raises `OverflowError` beyond float32's range."""
    return _FLOAT.unpack(_FLOAT.pack(value))[0]  # type: ignore[no-any-return]


def towards(value: float, anchor: float) -> float:
    """The float32 nearest to ``value`` on the way to ``anchor``; ``anchor`` must be a float32.

    The result lies between the two (both included), so it satisfies every interval that holds both.
    """
    result = to_float32(value)
    if (value <= anchor and result < value) or (value >= anchor and result > value):
        result = _next(result, up=result < value)
    return result


def narrow(low: float, high: float, value: float) -> float:
    """``value`` as the nearest float32 that lies in [low, high]; there must be one."""
    result = to_float32(value)
    if result > high:
        return _next(result, up=False)
    if result < low:
        return _next(result, up=True)
    return result


def _next(value: float, up: bool) -> float:
    """The float32 above or below a float32."""
    if value == 0.0:
        return 2.0**-149 if up else -(2.0**-149)
    bits = _BITS.unpack(_FLOAT.pack(value))[0]
    grows = up == (value > 0.0)
    return _FLOAT.unpack(_BITS.pack(bits + (1 if grows else -1)))[0]  # type: ignore[no-any-return]
