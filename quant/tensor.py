"""`QuantizedTensor`: a weight matrix held as packed 4-bit codes with their scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.formats import BlockFormat, block_format, decode_scales, level_pairs, split


def padded(columns: int, block: int) -> int:
    """Columns rounded up to whole blocks."""
    return -(-columns // block) * block


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """A float matrix [N, K] as 4-bit codes and block scales.

    K is padded with zeros to K', a whole number of blocks; `shape` keeps the true (N, K).

    * `codes`: uint8[N, K'/2], the even element in the low nibble
    * `scales`: [N, K'/block]: uint8 bit patterns (E4M3 for nvfp4, E8M0 for mxfp4), float16 for int4
    * `global_scale`: the multiplier g of nvfp4 (a float32 value); 1.0 for the other formats
    * `zeroed_blocks`: blocks that were not zero but whose scale underflowed, so that they are now

    An element is ``level(code) * scale * global_scale``.
    """

    format: str
    shape: tuple[int, int]
    codes: Tensor
    scales: Tensor
    global_scale: float = 1.0
    zeroed_blocks: int = 0

    @property
    def spec(self) -> BlockFormat:
        """The format's record."""
        return block_format(self.format)

    @property
    def nbytes(self) -> int:
        """Bytes of everything `tensors` returns."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """What a file stores: codes, scales, and for nvfp4 global_scale (float32, 0-d)."""
        stored = {"codes": self.codes, "scales": self.scales}
        if self.spec.has_global:
            device = self.codes.device
            stored["global_scale"] = torch.tensor(self.global_scale, device=device)
        return stored

    def dequantize(self) -> Tensor:
        """float32[N, K]; level times block scale is exact, the global factor rounds once."""
        spec = self.spec
        pairs = level_pairs(spec.levels, self.codes.device)[self.codes.long()]
        blocks = split(pairs.view(torch.float32), spec.block)
        blocks = blocks * decode_scales(self.scales, spec).unsqueeze(-1)
        wide: Tensor = (blocks * self.global_scale).flatten(-2)
        return wide[:, : self.shape[1]].contiguous()

    @classmethod
    def from_tensors(
        cls, format: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]
    ) -> QuantizedTensor:
        """Rebuild from stored tensors (the keys of `tensors`), refusing anything inconsistent.

        Raises `QuantizationError` for a missing or unexpected name, a wrong shape or dtype, a scale
        that is NaN, infinite or negative, and a zero scale over codes that are not zero.
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
        codes, scales = tensors["codes"], tensors["scales"]
        factor = float(tensors["global_scale"]) if spec.has_global else 1.0
        if not 0.0 < factor < float("inf"):
            raise QuantizationError(
                f"{format} global_scale must be positive and finite, got {factor}"
            )
        _check_scales(spec, codes, scales)
        return cls(format, (shape[0], shape[1]), codes, scales, factor)


def layout(
    spec: BlockFormat, shape: tuple[int, int]
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of every stored tensor of a weight [N, K] in format `spec`."""
    rows, columns = shape
    if rows < 1 or columns < 1:
        raise QuantizationError(f"a weight needs at least one row and column, got {list(shape)}")
    width = padded(columns, spec.block)
    stored: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "codes": ((rows, width // 2), torch.uint8),
        "scales": ((rows, width // spec.block), spec.scale_dtype),
    }
    if spec.has_global:
        stored["global_scale"] = ((), torch.float32)
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


def _check_scales(spec: BlockFormat, codes: Tensor, scales: Tensor) -> None:
    values = decode_scales(scales, spec)
    bad = ~torch.isfinite(values) | (values < 0)
    if bool(bad.any()):
        row, block = (int(i) for i in bad.nonzero()[0])
        raise QuantizationError(
            f"{spec.name} scales must be finite and not negative; {int(bad.sum())} are not, "
            f"the first at row {row}, block {block}: {float(values[row, block])}"
        )
    # -0 (E2M1 code 8) under a zero scale is a harmless zero other writers produce: mask the sign.
    zero = spec.zero_code * 0x11
    used = (codes & 0x77) if spec.zero_code == 0 else (codes ^ zero)
    lost = (values == 0) & (split(used, spec.block // 2) != 0).any(-1)
    if bool(lost.any()):
        row, block = (int(i) for i in lost.nonzero()[0])
        raise QuantizationError(
            f"{spec.name} has {int(lost.sum())} zero scales over codes that are not zero, "
            f"the first at row {row}, block {block}; the file is damaged or not {spec.name}"
        )
