"""Operators: a reference and its fast forms, picked once when a model is built."""

if __name__ == "kernels":  # the folder itself was put on sys.path
    raise ImportError("import wmrt.kernels: the bare name kernels belongs to nobody")

from wmrt.kernels import reference as reference  # registers its operators
from wmrt.kernels import reference_w8 as reference_w8
from wmrt.kernels.native import linear as _native  # noqa: F401
from wmrt.kernels.registry import LinearOp, linear, operators
from wmrt.kernels.triton import linear as _linear  # noqa: F401
from wmrt.kernels.triton import linear_bf16 as _linear_bf16  # noqa: F401
from wmrt.kernels.triton import ops as _triton  # noqa: F401
from wmrt.kernels.triton import ops_decode as _ops_decode  # noqa: F401
from wmrt.kernels.triton import ops_fused as _ops_fused  # noqa: F401
from wmrt.kernels.triton import ops_heads as _ops_heads  # noqa: F401
from wmrt.kernels.triton import ops_state as _ops_state  # noqa: F401

__all__ = ["LinearOp", "linear", "operators"]
