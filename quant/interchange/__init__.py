"""Packed weights in the files other tools read and write.

`read_compressed_tensors` and `write_compressed_tensors` speak the three compressed-tensors formats
of 4-bit weights, `read_modelopt` reads NVFP4 of ModelOpt, and `fuse` joins matrices that were
quantized apart. Codes and scales cross bit for bit, both ways.
"""

from wmrt.quant.interchange.folder import (
    Interchanged,
    read_compressed_tensors,
    write_compressed_tensors,
)
from wmrt.quant.interchange.fuse import fuse
from wmrt.quant.interchange.modelopt import read_modelopt
from wmrt.quant.interchange.weights import Origin, divisor_of, multiplier_of

__all__ = [
    "Interchanged",
    "Origin",
    "divisor_of",
    "fuse",
    "multiplier_of",
    "read_compressed_tensors",
    "read_modelopt",
    "write_compressed_tensors",
]
