"""Shared by the tests of the fused matrix operators: matrices, and what RMSNorm may become."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch

from tests.kernels import oracle
from tests.kernels.oracle import UNIT, Array
from wmrt.kernels.triton.fused_checks import Matrix
from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.variants import Variant
from wmrt.quant.layouts import to_layout
from wmrt.quant.tensor import QuantizedTensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-5
HOW = Variant("prmt", "prmt", 4096)
#: The same in dependent launches, where there are such; the interpreter passes over what they add.
DEPENDENT = replace(HOW, dependent=DEVICE == "cpu" or torch.cuda.get_device_capability() >= (9, 0))
#: The same, with the next launch's weights asked for.
AHEAD = replace(HOW, ahead_kib=1)
#: What torch checks of an operator whose sizes are those of one model, never symbols.
FIXED = ("test_schema", "test_autograd_registration", "test_faketensor")


def running() -> AbstractContextManager[None]:
    """On a GPU nothing, elsewhere the interpreter."""
    return nullcontext() if DEVICE == "cuda" else repaired()


def draw(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(DEVICE)


def random(
    format: str, shape: tuple[int, int], rng: np.random.Generator
) -> tuple[QuantizedTensor, Matrix]:
    weight = oracle.random_weight(format, shape, rng)
    assert isinstance(weight, QuantizedTensor)
    laid = to_layout(weight, "gpu_gemv")
    words, scales = (laid[name].to(DEVICE) for name in ("words", "lane_scales"))
    return weight, Matrix(words, scales, format, weight.global_scale)


def split(work: torch.Tensor, batch: int, columns: int) -> tuple[Array, Array]:
    """Codes [B, W] and factors [B, W / 32] at the beginning of scratch."""
    raw = work.cpu()
    codes = raw[: batch * columns].view(batch, columns)
    factors = raw[batch * columns : batch * columns * 9 // 8].view(torch.float32)
    return codes.numpy(), factors.view(batch, columns // 32).numpy()


def check_normed(codes: Array, factors: Array, x: torch.Tensor, norm: torch.Tensor) -> None:
    """Codes times factors are RMSNorm(x), within half a code and the roundings of float32."""
    wide = x.cpu().double().numpy()
    root = np.sqrt((wide**2).mean(-1, keepdims=True) + EPS)
    exact = np.zeros(codes.shape)
    exact[:, : wide.shape[1]] = wide / root * norm.cpu().double().numpy()
    steps = np.repeat(factors.astype(np.float64), 32, 1)
    # Half a code; x * weight, the scale and its product with the row's scale, which is a sum in a
    # tree or in eights (numpy), halved by the root, and three roundings more: of 127 codes each.
    roundings = 8 + (8 + np.log2(wide.shape[1]) + 16) / 2
    bound = steps * (0.5 + 128 * roundings * UNIT)
    assert (np.abs(codes * steps - exact) <= bound).all()
    largest = np.abs(codes.reshape(len(codes), -1, 32)).max(-1)
    assert ((largest == 127) | ((factors == 0) & (largest == 0))).all()
