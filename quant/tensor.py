"""`QuantizedTensor`: a weight matrix held as packed codes with their scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.block_scales import blocks_of
from wmrt.quant.elements import E4M3_NAN
from wmrt.quant.formats import (
    ZERO_POINTS,
    BlockFormat,
    block_format,
    decode_codes,
    decode_scales,
    split,
    unpack_nibbles,
)

#: By kind of scale; see `scale_bits`. E8M0 has no zero, and 0xFF is its NaN.
_SCALE_BITS = {
    "e4m3": (torch.uint8, 0x01, E4M3_NAN - 1),
    "e8m0": (torch.uint8, 0x00, 0xFE),
    "fp16": (torch.int16, 0x0001, 0x7BFF),
    "fp32": (torch.int32, 0x00000001, 0x7F7FFFFF),
}


def padded(columns: int, block: int) -> int:
    """Columns rounded up to whole blocks."""
    return -(-columns // block) * block


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A float matrix [N, K] as codes and block scales.

    K is padded with zeros to K', a whole number of blocks; `shape` keeps the true (N, K).

    * `codes`: uint8[N, K'/2], the even element in the low nibble; uint8[N, K] for 8-bit formats
      (E4M3 bit patterns, or INT8 in two's complement)
    * `scales`: [N, K'/block]: uint8 bit patterns (E4M3 for nvfp4, E8M0 for mxfp4), float16 for
      int4, float32 for fp8 and int8 ([N, 1]; [1, 1] for fp8-tensor)
    * `global_scale`: the multiplier g of nvfp4 (a float32 value); 1.0 for the other formats
    * `zeroed_blocks`: blocks that were not zero and are now, mostly by a scale that underflowed
    * `zero_points`: uint8[N, K'/block], for int4 -zp formats: the code (0..15) that means zero

    An element is ``(value(code) - value(zero point)) * scale * global_scale``.
    """

    format: str
    shape: tuple[int, int]
    codes: Tensor
    scales: Tensor
    global_scale: float = 1.0
    zeroed_blocks: int = 0
    zero_points: Tensor | None = None

    @property
    def spec(self) -> BlockFormat:
        """The format's record."""
        return block_format(self.format)

    @property
    def nbytes(self) -> int:
        """Bytes of everything `tensors` returns."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """What a file stores: codes, scales, for nvfp4 global_scale (float32, 0-d), zero_points."""
        stored = {"codes": self.codes, "scales": self.scales}
        if self.spec.has_global:
            device = self.codes.device
            stored["global_scale"] = torch.tensor(self.global_scale, device=device)
        if self.zero_points is not None:
            stored["zero_points"] = self.zero_points
        return stored

    def dequantize(self) -> Tensor:
        """float32[N, K]. Level times block scale is exact in 4-bit formats and rounds once in 8-bit
        ones; the global factor rounds once."""
        spec = self.spec
        blocks = split(decode_codes(self.codes, spec), spec.block_of(self.shape[1]))
        if self.zero_points is not None:
            blocks = blocks - (self.zero_points.float().unsqueeze(-1) - spec.zero_code)
        blocks = blocks * decode_scales(self.scales, spec).unsqueeze(-1)
        wide: Tensor = (blocks * self.global_scale).flatten(-2)
        return wide[:, : self.shape[1]].contiguous()

    def lost_blocks(self, weight: Tensor) -> int:
        """How many blocks of the original `weight` [N, K] hold something and are zeros here."""
        kept, held = ((blocks_of(w, self.spec) != 0).any(-1) for w in (self.dequantize(), weight))
        return int((held & ~kept).sum())

    @classmethod
    def from_tensors(
        cls, format: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]
    ) -> QuantizedTensor:
        """Rebuild from stored tensors (the keys of `tensors`), refusing anything inconsistent.

        Raises `QuantizationError` for a missing or unexpected name, a wrong shape or dtype, a scale
        that is NaN, infinite or negative (float16 scales of symmetric int4 may be negative: see
        `Rules.int4_scale`), a zero scale over codes that are not zero, a zero point over 15, an
        E4M3 code that is NaN, and padding that is not zero.
        """
        spec = block_format(format)
        expected = layout(spec, shape)
        _check_names(spec, expected, tensors)
        for name, (want_shape, want_dtype) in expected.items():
            got = tensors[name]
            if tuple(got.shape) != want_shape or got.dtype != want_dtype:
                raise QuantizationError(
                    f"{format} {name} for a weight {list(shape)} must be {want_dtype} "
                    f"{list(want_shape)}, got {got.dtype} {list(got.shape)}"
                )
        factor = global_factor(spec, tensors)
        codes, scales, zero_points = (tensors.get(k) for k in ("codes", "scales", "zero_points"))
        assert codes is not None and scales is not None  # `_check_names`
        plain = ordinary(spec, scales)
        if not plain:
            check_scales(spec, scales)
        if zero_points is not None:
            check_zero_points(spec, zero_points)
        _check_codes(spec, shape[1], codes, scales, zero_points, not plain)
        size = (shape[0], shape[1])
        return cls(format, size, codes, scales, factor, zero_points=zero_points)


def layout(
    spec: BlockFormat, shape: tuple[int, int]
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of every stored tensor of a weight [N, K] in format `spec`."""
    rows, columns = shape
    if rows < 1 or columns < 1:
        raise QuantizationError(f"a weight needs at least one row and column, got {list(shape)}")
    scales = spec.scale_shape(shape)
    stored: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "codes": ((rows, spec.code_bytes(spec.width(columns))), torch.uint8),
        "scales": (scales, spec.scale_dtype),
    }
    if spec.has_global:
        stored["global_scale"] = ((), torch.float32)
    if spec.has_zero_points:
        stored["zero_points"] = (scales, torch.uint8)
    return stored


def _check_names(
    spec: BlockFormat, expected: Mapping[str, object], tensors: Mapping[str, Tensor]
) -> None:
    missing = sorted(set(expected) - set(tensors))
    extra = sorted(set(tensors) - set(expected))
    if missing or extra:
        raise QuantizationError(
            f"{spec.name} is stored as {', '.join(expected)}; "
            f"missing: {', '.join(missing) or 'none'}, unexpected: {', '.join(extra) or 'none'}"
        )


def global_factor(spec: BlockFormat, tensors: Mapping[str, Tensor]) -> float:
    """The stored global scale, 1.0 where the format has none; refused if it is no scale."""
    factor = float(tensors["global_scale"]) if spec.has_global else 1.0
    if not 0.0 < factor < float("inf"):
        raise QuantizationError(
            f"{spec.name} global_scale must be positive and finite, got {factor}"
        )
    return factor


def scale_bits(spec: BlockFormat) -> tuple[torch.dtype, int, int]:
    """Positive and finite stored scales are those whose bits, read as this integer type, lie in
    this range, both ends included."""
    return _SCALE_BITS[spec.scale]


def ordinary(spec: BlockFormat, scales: Tensor) -> bool:
    """Whether all stored scales, of any shape, are positive and finite, judged by their bits.

    By numpy, which takes no threads: torch waits for all of its own in each of a model's weights,
    16 ms a weight where a processor is busy, 0.6 ms alone.
    """
    dtype, low, high = scale_bits(spec)
    bits = scales.detach().cpu().contiguous().view(dtype).numpy()
    return low <= int(bits.min()) and int(bits.max()) <= high


def _first(bad: Tensor) -> str:
    row, block = (int(i) for i in bad.nonzero()[0])
    return f"the first at row {row}, block {block}"


def check_scales(spec: BlockFormat, scales: Tensor) -> None:
    """Refuse stored scales [N, K'/block] that are NaN, infinite, or negative where none may be."""
    values = decode_scales(scales, spec)
    bad = ~torch.isfinite(values)
    if spec.element != "int4" or spec.has_zero_points:
        bad |= values < 0
    if bool(bad.any()):
        row, block = (int(i) for i in bad.nonzero()[0])
        raise QuantizationError(
            f"{spec.name} scales must be finite and not negative; {int(bad.sum())} are not, "
            f"{_first(bad)}: {float(values[row, block])}"
        )


def check_zero_points(spec: BlockFormat, zero_points: Tensor) -> None:
    """Refuse zero points uint8[N, K'/block] that are no 4-bit code."""
    bad = zero_points >= ZERO_POINTS
    if bool(bad.any()):
        raise QuantizationError(
            f"{spec.name} zero points are codes 0 to 15; {int(bad.sum())} are not, {_first(bad)}"
        )


def _check_codes(
    spec: BlockFormat,
    columns: int,
    codes: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    zeros: bool,
) -> None:
    """``zeros``: whether some scales may be zero."""
    if spec.element == "e4m3" and bool(((codes & E4M3_NAN) == E4M3_NAN).any()):
        row, column = (int(i) for i in ((codes & E4M3_NAN) == E4M3_NAN).nonzero()[0])
        raise QuantizationError(
            f"{spec.name} codes hold NaN, the first at [{row}, {column}]; the file is damaged"
        )
    padding = spec.width(columns) - columns
    if not padding and not zeros:
        return
    zero = decode_scales(scales, spec) == 0
    if not padding and not bool(zero.any()):
        return
    single = split(unpack_nibbles(codes) if spec.bits == 4 else codes, spec.block_of(columns))
    # -0 is a harmless zero other writers produce: mask the sign.
    sign = {"e2m1": 0x8, "e4m3": 0x80}.get(spec.element, 0)
    means_zero = spec.zero_code if zero_points is None else zero_points.unsqueeze(-1)
    used = (single & (0xFF ^ sign)) != means_zero
    lost = zero & used.any(-1)
    if bool(lost.any()):
        raise QuantizationError(
            f"{spec.name} has {int(lost.sum())} zero scales over codes that are not zero, "
            f"{_first(lost)}; the file is damaged or not {spec.name}"
        )
    if padding and bool(used.flatten(-2)[:, columns:].any()):
        raise QuantizationError(
            f"{spec.name} rows of {columns} columns are padded by {padding} with zero; these hold "
            f"something there, so the file is damaged or of another width"
        )
