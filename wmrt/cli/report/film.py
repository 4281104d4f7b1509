"""A GIF of one episode, with a caption line under every frame."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.core.extras import require
from wmrt.core.files import replacing

CAPTION = 26  # pixels
#: Colours of the palette, found on `SAMPLE` frames spread over the film and on the last one: a
#: collision paints the car in a colour that no earlier frame has.
COLOURS, SAMPLE = 128, 16
_INK, _PAPER = (236, 239, 244), (24, 27, 33)

Frame = NDArray[np.uint8]


class Film:
    """Collects frames, packed: a 30 s film at 10 frames a second takes a few MB meanwhile."""

    def __init__(self, period: float) -> None:
        self._image = require("PIL.Image", "drive")
        self._draw = require("PIL.ImageDraw", "drive")
        self._font = require("PIL.ImageFont", "drive").load_default(15)
        self._period = period
        self._size = (0, 0)
        self._frames: list[bytes] = []

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: Frame, caption: str) -> None:
        """One frame, uint8[height, width, 3], and the words under it."""
        height, width = frame.shape[:2]
        image = self._image.new("RGB", (width, height + CAPTION), _PAPER)
        image.paste(self._image.fromarray(np.ascontiguousarray(frame)), (0, 0))
        draw = self._draw.Draw(image)
        draw.text((8, height + CAPTION // 2), caption, fill=_INK, font=self._font, anchor="lm")
        self._size = image.size
        self._frames.append(zlib.compress(image.tobytes(), 1))

    def save(self, path: Path) -> int:
        """Write the film, endlessly repeating; returns its size in bytes. `UsageError` if it cannot
        be written."""
        if not self._frames:
            raise ValueError("a film needs at least one frame")
        palette = self._palette()
        frames = (
            self._open(frame).quantize(palette=palette, dither=self._image.Dither.NONE)
            for frame in self._frames
        )
        with replacing(path) as temporary:
            next(frames).save(
                temporary,
                format="GIF",
                save_all=True,
                append_images=frames,
                duration=round(self._period * 1000),
                loop=0,
                optimize=True,
            )
        return path.stat().st_size

    def _open(self, packed: bytes) -> Any:
        return self._image.frombytes("RGB", self._size, zlib.decompress(packed))

    def _palette(self) -> Any:
        step = max(len(self._frames) // SAMPLE, 1)
        sample = [*self._frames[::step], self._frames[-1]]
        width, height = self._size
        sheet = self._image.new("RGB", (width, height * len(sample)))
        for index, packed in enumerate(sample):
            sheet.paste(self._open(packed), (0, index * height))
        return sheet.quantize(COLOURS, dither=self._image.Dither.NONE)
