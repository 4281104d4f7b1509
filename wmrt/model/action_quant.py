"""ActionQuant: an action chunk in 4 bits, and a small network that undoes part of the rounding.

The H x A chunk is laid out dimension by dimension and quantized in groups of 16: symmetric INT4
codes
(-7 to 7) and one float16 scale per group, amax / 7. A chunk of 8 x 2 actions travels as 10 bytes
instead of 64. The compensation network sees the decoded group and its scale, and adds a correction
of
at most half a quantization step, so a decoded value never leaves its rounding interval.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

GROUP = 16
LEVELS = 7
#: Packed bytes per group: 16 codes of 4 bits, one float16 scale.
GROUP_BYTES = GROUP // 2 + 2


class ActionQuant(nn.Module):
    """4-bit codec of action chunks, float32[..., H, A] in [-1, 1]."""

    def __init__(self, chunk: int, dims: int, hidden: int = 64) -> None:
        super().__init__()
        self.chunk, self.dims = chunk, dims
        self.groups = -(-chunk * dims // GROUP)
        self.correct = nn.Sequential(
            nn.Linear(GROUP + 1, hidden), nn.GELU(), nn.Linear(hidden, GROUP), nn.Tanh()
        )

    def _group(self, chunk: Tensor) -> Tensor:
        flat = chunk.transpose(-1, -2).flatten(-2)
        pad = self.groups * GROUP - flat.shape[-1]
        padded = nn.functional.pad(flat, (0, pad))
        return padded.reshape(*padded.shape[:-1], self.groups, GROUP)

    def _ungroup(self, grouped: Tensor) -> Tensor:
        flat = grouped.flatten(-2)[..., : self.chunk * self.dims]
        return flat.reshape(*flat.shape[:-1], self.dims, self.chunk).transpose(-1, -2)

    def quantize(self, chunk: Tensor) -> tuple[Tensor, Tensor]:
        """Codes int8[..., G, 16] in -7 to 7 and scales float16[..., G]; an all-zero group has
        scale 0."""
        grouped = self._group(chunk)
        scale = (grouped.abs().amax(dim=-1) / LEVELS).half()
        safe = torch.where(scale > 0, scale.float(), torch.ones_like(scale, dtype=torch.float32))
        codes = (grouped / safe.unsqueeze(-1)).round().clamp(-LEVELS, LEVELS)
        return codes.to(torch.int8), scale

    def dequantize(self, codes: Tensor, scale: Tensor, *, compensate: bool = True) -> Tensor:
        """Chunk float32[..., H, A] in [-1, 1]; ``compensate=False`` is the plain decoding."""
        step = scale.float().unsqueeze(-1)
        value = codes.float() * step
        if compensate:
            # The network works in units of one step: codes and the step itself describe the group.
            features = torch.cat([codes.float() / LEVELS, step], dim=-1)
            value = value + 0.5 * step * self.correct(features)
        return self._ungroup(value).clamp(-1.0, 1.0)

    def forward(self, chunk: Tensor) -> Tensor:
        """What the receiver of ``chunk`` decodes."""
        return self.dequantize(*self.quantize(chunk))

    def pack(self, chunk: Tensor) -> bytes:
        """One chunk float32[H, A] -> G x (8 code bytes, even element low nibble; float16 scale,
        LE). The codes and scales of `quantize`, by numpy: as long again as a whole native step of
        the small model if torch computes them (144 us against 53)."""
        flat = chunk.detach().cpu().numpy().astype(np.float32, copy=False).T.reshape(-1)
        grouped = np.zeros((self.groups, GROUP), np.float32)
        grouped.reshape(-1)[: flat.size] = flat
        with np.errstate(over="ignore", invalid="ignore"):
            scale = (np.abs(grouped).max(1) / np.float32(LEVELS)).astype("<f2")
            safe = np.where(scale > 0, scale, 1).astype(np.float32)
            codes = np.rint(grouped / safe[:, None])
        codes[np.isnan(codes)] = 0
        nibbles = codes.clip(-LEVELS, LEVELS).astype(np.int8).view(np.uint8) & 0xF
        packed = np.empty((self.groups, GROUP_BYTES), np.uint8)
        packed[:, : GROUP // 2] = nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)
        packed[:, GROUP // 2 :] = scale[:, None].view(np.uint8)
        return packed.tobytes()

    @torch.no_grad()
    def unpack(self, data: bytes) -> Tensor:
        """Inverse of `pack`, compensated. Raises ValueError on a wrong length or a non-finite
        scale."""
        expected = self.groups * GROUP_BYTES
        if len(data) != expected:
            raise ValueError(f"packed chunk of {len(data)} bytes; expected {expected}")
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(self.groups, GROUP_BYTES)
        packed, scale = raw[:, : GROUP // 2], raw[:, GROUP // 2 :].contiguous().view(torch.float16)
        scale = scale.squeeze(-1)
        if not bool(torch.isfinite(scale).all()) or bool((scale < 0).any()):
            raise ValueError("packed chunk carries a negative or non-finite scale")
        nibbles = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2).to(torch.int8)
        codes = torch.where(nibbles > 7, nibbles - 16, nibbles)
        return self.dequantize(codes, scale)
