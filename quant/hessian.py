"""What a linear's inputs look like on calibration data: second moments and magnitudes a column."""

from __future__ import annotations

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError


class Hessian:
    """Running statistics of inputs x [..., K]; what a layer's squared output error is made of.

    The output error of a changed weight W + D is the mean of |D x|^2 = sum over rows of d H d^T
    with H = mean of x x^T (half the Hessian of that error, GPTQ, Frantar et al. 2023, section 3.1).

    One [K, K] matrix is held, 191 MB in float32 for K = 6912. Float32 sums of n batches are within
    n 2^-24 of float64 (relative, Frobenius), far below the 1% that `Gptq.damp` adds to the
    diagonal, so float64, at twice the memory and time, is for checking.
    """

    def __init__(self, columns: int, *, dtype: torch.dtype = torch.float32) -> None:
        if columns < 1 or dtype not in (torch.float32, torch.float64):
            raise QuantizationError(
                "a Hessian needs at least one column and float32 or float64, "
                f"got {columns} and {dtype}"
            )
        self.columns, self.count = columns, 0
        self._products = torch.zeros(columns, columns, dtype=dtype)
        self._sizes = torch.zeros(columns, dtype=torch.float64)
        self._largest = torch.zeros(columns)

    def add(self, x: Tensor) -> None:
        """Count inputs float[..., K]. Raises `QuantizationError` for another K, NaN or infinity."""
        if x.ndim < 1 or x.shape[-1] != self.columns or not x.is_floating_point():
            raise QuantizationError(
                f"inputs must be float [..., {self.columns}], got {x.dtype} {list(x.shape)}"
            )
        rows = x.detach().reshape(-1, self.columns).to(self._products.dtype)
        if not len(rows):
            return
        sizes = rows.abs()
        largest = sizes.amax(0).float()
        if not bool(torch.isfinite(largest).all()):
            column = int((~torch.isfinite(largest)).nonzero()[0])
            raise QuantizationError(
                f"inputs hold NaN or infinity, the first in column {column}; "
                "the model or the recording is broken"
            )
        self._products.addmm_(rows.T, rows)
        self._sizes += sizes.sum(0, dtype=torch.float64)
        self._largest = torch.maximum(self._largest, largest)
        self.count += len(rows)

    def matrix(self) -> Tensor:
        """H = mean of x x^T, [K, K]."""
        return self._products / self._seen()

    def mean_square(self) -> Tensor:
        """float32[K]: mean of x^2, the diagonal of H."""
        return (self._products.diagonal() / self._seen()).float()

    def mean_abs(self) -> Tensor:
        """float32[K]: mean of |x|."""
        return (self._sizes / self._seen()).float()

    def amax(self) -> Tensor:
        """float32[K]: largest |x|."""
        self._seen()
        return self._largest.clone()

    def _seen(self) -> int:
        if not self.count:
            raise QuantizationError("no inputs were counted; give calibration data")
        return self.count
