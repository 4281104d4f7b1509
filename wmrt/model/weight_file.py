"""What ``model.safetensors`` holds beside the tensors: its header, counted before and after.

Layout of the file (safetensors 0.5 to 0.8): 8 bytes with the header's length, the header as JSON
padded with spaces to a multiple of 8, then the tensors without gaps.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from wmrt.core.errors import CheckpointError
from wmrt.model.checkpoint_config import TensorSpecs

PREFIX = 8
#: The metadata every checkpoint is saved with.
METADATA = {"format": "pt"}
#: Names of the dtypes in the header, widest first: the order in which tensors are written.
_NAMES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def expected_overhead(tensors: TensorSpecs) -> int:
    """Bytes that a weight file of tensors of these shapes and dtypes holds beside them.

    Raises `CheckpointError` for a dtype that no checkpoint is stored in.
    """
    order = list(_NAMES)
    for name, (_, dtype) in tensors.items():
        if dtype not in _NAMES:
            raise CheckpointError(f"{name}: {dtype} is not stored; dtypes are {_NAMES.values()}")
    header: dict[str, object] = {"__metadata__": METADATA}
    offset = 0
    for name in sorted(tensors, key=lambda name: (order.index(tensors[name][1]), name)):
        shape, dtype = tensors[name]
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    return PREFIX + -(-len(text) // 8) * 8


def measured_overhead(path: Path) -> int:
    """Bytes of the prefix and header of a weight file; `CheckpointError` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            prefix = file.read(PREFIX)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(prefix) < PREFIX:
        raise CheckpointError(f"{path}: truncated: {len(prefix)} bytes; copy it again")
    return PREFIX + int.from_bytes(prefix, "little")
