"""Linear layers in float64 numpy, from packed bytes, sharing no code with the operators."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from wmrt.kernels import LinearOp
from wmrt.quant import QuantizedTensor, quantize
from wmrt.quant.layouts import LaidOut, to_layout

Array = NDArray[np.float64]
UNIT = 2.0**-24  # half an ulp of float32, relative


@dataclass(frozen=True)
class Answer:
    """The exact result, and how far float32 sums in any order may lie from it."""

    exact: Array
    bound: Array

    def check(self, got: torch.Tensor) -> None:
        assert got.dtype == torch.float32
        error = np.abs(got.numpy().astype(np.float64) - self.exact)
        worst = (error / np.maximum(self.bound, 1e-300)).max() if error.size else 0.0
        assert (error <= self.bound).all(), f"{worst:.2f} times the bound"


def random_weight(
    format: str, shape: tuple[int, int], rng: np.random.Generator
) -> torch.Tensor | QuantizedTensor:
    w = torch.from_numpy((rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32))
    return w.to(torch.bfloat16) if format == "bf16" else quantize(w, format)


def reading_canonical(op: LinearOp) -> LinearOp:
    """The operator, taking canonical weights: each is put in its layout first."""
    if op.layout == "canonical":
        return op

    def read(x: torch.Tensor, weight: QuantizedTensor) -> torch.Tensor:
        return op(x, laid_out(weight, op.layout))

    return replace(op, function=read, layout="canonical")


def laid_out(weight: QuantizedTensor, layout: str) -> LaidOut:
    tensors = to_layout(weight, layout)
    return LaidOut(weight.format, weight.shape, layout, tensors, weight.global_scale)


def on_cuda(x: torch.Tensor, weight: LaidOut) -> tuple[torch.Tensor, LaidOut]:
    tensors = {name: tensor.cuda() for name, tensor in weight.tensors.items()}
    return x.cuda(), replace(weight, tensors=tensors)


def values(kind: str) -> Array:
    """The number behind each code of e2m1, e4m3 or e8m0, from their bits; NaN where it is none.

    OCP Microscaling Formats v1.0, section 5.3. Written out, so that this runs without ml_dtypes.
    """
    if kind == "e8m0":
        return np.append(2.0 ** np.arange(-127.0, 128.0), np.nan)
    mantissa, bias, codes = (1, 1, 8) if kind == "e2m1" else (3, 7, 128)
    exponent, fraction = np.divmod(np.arange(codes), 2**mantissa)
    normal = np.where(exponent > 0, 1.0, 0.0) + fraction / 2**mantissa
    half = normal * 2.0 ** (np.maximum(exponent, 1) - bias)
    if kind == "e4m3":
        half[-1] = np.nan
    return np.concatenate([half, -half])


def weight_parts(q: QuantizedTensor) -> tuple[Array, Array]:
    """Levels [N, K'], zero points taken off, and the scale of each, without the global scale."""
    codes, scales = q.codes.numpy(), q.scales.numpy()
    if q.spec.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
    levels = codes.astype(np.float64) - 8
    if q.spec.element in ("e2m1", "e4m3"):
        levels = values(q.spec.element)[codes]
    elif q.spec.element == "int8":
        levels = codes.view(np.int8).astype(np.float64)
    if q.format in ("nvfp4", "mxfp4"):
        scales = values("e4m3" if q.format == "nvfp4" else "e8m0")[scales.view(np.uint8)]
    block = codes.shape[1] // scales.shape[1]
    if q.zero_points is not None:
        levels -= np.repeat(q.zero_points.numpy().astype(np.float64) - 8, block, 1)
    steps = np.repeat(scales.astype(np.float64), block, 1)
    return levels, np.broadcast_to(steps, levels.shape)


def a8(x: torch.Tensor, q: QuantizedTensor) -> Answer:
    """Int8 activations: integer dots per block, each scaled twice, then summed."""
    width = -(-weight_parts(q)[0].shape[1] // 32) * 32
    flat = x.reshape(-1, q.shape[1]).float().numpy()
    groups = np.pad(flat, ((0, 0), (0, width - flat.shape[1]))).reshape(len(flat), width // 32, 32)
    amax = np.abs(groups).max(-1, keepdims=True)
    scale = (amax / np.float32(127)).astype(np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        codes = np.where(scale > 0, np.rint(groups / scale), 0).astype(np.float64)
    answer = of_codes(codes.reshape(len(flat), width), scale[..., 0], q)
    shape = (*x.shape[:-1], q.shape[0])
    return Answer(answer.exact.reshape(shape), answer.bound.reshape(shape))


def of_codes(codes: Array, factors: Array, q: QuantizedTensor) -> Answer:
    """Int8 activations [B, W] that are codes already, and the factors [B, W / 32] of their groups;
    W is the weight's columns or more."""
    levels, steps = weight_parts(q)
    scale = np.repeat(factors.astype(np.float64), 32, 1)
    real = (codes.astype(np.float64) * scale)[:, : levels.shape[1]]
    step = 16 if q.format == "nvfp4" else 32
    weight = levels * steps
    # One term per dot product: [B, N, terms]. Each is scaled in two products, all are added, and
    # the global scale multiplies once.
    products = real[:, None, :] * weight[None]
    terms = products.reshape(*products.shape[:2], products.shape[2] // step, step).sum(-1)
    return _answer(torch.from_numpy(codes), q, terms)


def token(x: torch.Tensor, q: QuantizedTensor, activation: str) -> Answer:
    """8-bit codes on both sides: one exact dot product a row, rounded once, scaled twice."""
    levels, steps = weight_parts(q)
    flat = x.reshape(-1, q.shape[1]).float().numpy()
    amax = np.abs(flat).max(-1, keepdims=True, initial=0.0)
    largest = 127 if activation == "int8-token" else 448
    scale = (amax / np.float32(largest)).astype(np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient = np.where(scale > 0, flat / scale, 0)
    codes = np.rint(quotient)
    if activation == "fp8-token":
        import ml_dtypes

        codes = np.clip(quotient, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    # Of codes alone the dot product is exact in float64: one that is 0 comes out as 0.
    dots = codes.astype(np.float64) @ levels.T
    return _answer(x, q, (dots * scale * steps[:, 0])[..., None])


def a16(x: torch.Tensor, weight: QuantizedTensor | torch.Tensor) -> Answer:
    """Bfloat16 activations: exact products (their bits fit float32), summed."""
    if isinstance(weight, QuantizedTensor):
        levels, steps = weight_parts(weight)
        matrix = (levels * steps)[:, : weight.shape[1]]
    else:
        matrix = weight.double().numpy()
    flat = x.reshape(-1, matrix.shape[1]).to(torch.bfloat16).double().numpy()
    return _answer(x, weight, flat[:, None, :] * matrix[None])


def _answer(x: torch.Tensor, weight: QuantizedTensor | torch.Tensor, terms: Array) -> Answer:
    factor = weight.global_scale if isinstance(weight, QuantizedTensor) else 1.0
    shape = (*x.shape[:-1], terms.shape[1])
    roundings = terms.shape[2] + 3
    bound = np.abs(terms).sum(-1) * factor * roundings * UNIT * 1.01 + 1e-44
    return Answer((terms.sum(-1) * factor).reshape(shape), bound.reshape(shape))


def answer(activation: str, x: torch.Tensor, weight: QuantizedTensor | torch.Tensor) -> Answer:
    if activation == "int8-g32":
        assert isinstance(weight, QuantizedTensor)
        return a8(x, weight)
    if activation.endswith("-token"):
        assert isinstance(weight, QuantizedTensor)
        return token(x, weight, activation)
    return a16(x, weight)
