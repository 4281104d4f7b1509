"""The oracle's own numbers against another library's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.oracle import values


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("e2m1", ml_dtypes.float4_e2m1fn),
        ("e4m3", ml_dtypes.float8_e4m3fn),
        ("e8m0", ml_dtypes.float8_e8m0fnu),
    ],
)
def test_every_code(kind: str, dtype: type) -> None:
    found = values(kind)
    codes = np.arange(len(found), dtype=np.uint8)
    np.testing.assert_array_equal(found, codes.view(dtype).astype(np.float64))
    assert len(found) == (16 if kind == "e2m1" else 256)
