"""Quantized matrix times vectors: every variant against float64, on a GPU or in the interpreter."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from tests.conftest import FULL
from tests.kernels import oracle
from wmrt.core.errors import QuantizationError, UnsupportedError
from wmrt.kernels import LinearOp, linear, operators
from wmrt.kernels.triton import activations, gemv, library
from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.variants import Variant
from wmrt.quant.activations import quantize_groups
from wmrt.quant.formats import block_format
from wmrt.quant.layouts import to_layout
from wmrt.quant.tensor import QuantizedTensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FORMATS = ["nvfp4", "mxfp4", "int4-g128"]
A8 = [(f, d) for f in FORMATS for d in ("prmt", "plain")]
A16 = [(f, d) for f in ("nvfp4", "mxfp4") for d in ("prmt", "cvt", "plain")]
# Two steps, the last one of 44 columns; a run and a step; two runs, a step and a second program.
SHAPES = [(5, 300), (9, 1100), (17, 2100)]
SMALL = (5, 200)
STEPS = [("nvfp4", steps) for steps in (1, 2, 3, 4, 7, 12, 17)]
STEPS += [(f, s) for f in ("mxfp4", "int4-g128") for s in (3, 9)] + [
    ("int4-g64", 7),
    ("int4-g32", 6),
]


@pytest.fixture(autouse=True)
def runs() -> object:
    with nullcontext() if DEVICE == "cuda" else repaired():
        yield


def chosen(decode: str, two_rows_from: int = 16) -> Variant:
    if decode == "cvt" and DEVICE == "cuda" and library.capability() < 100:
        pytest.skip("this GPU has no conversion from E2M1")
    return Variant(decode, decode, two_rows_from)


def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 2, (*shape[:-1], 1))
    return torch.from_numpy(x.astype(np.float32))


def run(x: torch.Tensor, weight: QuantizedTensor, how: Variant, a16: bool = False) -> torch.Tensor:
    laid = {name: t.to(DEVICE) for name, t in to_layout(weight, "gpu_gemv").items()}
    words, scales, x = laid["words"], laid["lane_scales"], x.to(DEVICE)
    width = words.shape[1] * 8
    factors = None
    if a16:
        given = activations.lane_floats(x, width)
    else:
        given, factors = activations.int8_codes(x, width)
    return gemv.multiply(
        given, factors, words, scales, weight.format, weight.global_scale, how
    ).cpu()


@pytest.mark.parametrize("batch", [1, 2, 3, 16])
@pytest.mark.parametrize(("format", "decode"), A8)
def test_int8_activations(format: str, decode: str, batch: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    slow = decode == "plain" or batch > 3
    for shape in (SMALL,) if slow else SHAPES[: 4 - batch]:
        weight = oracle.random_weight(format, shape, rng)
        x = draw(rng, (batch, shape[1]))
        oracle.a8(x, weight).check(run(x, weight, chosen(decode)))


@pytest.mark.parametrize("batch", [1, 2, 3, 16])
@pytest.mark.parametrize(("format", "decode"), A16)
def test_bfloat16_activations(format: str, decode: str, batch: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (7, 600) if decode != "plain" and batch < 3 else SMALL
    weight = oracle.random_weight(format, shape, rng)
    x = draw(rng, (batch, shape[1]))
    oracle.a16(x, weight).check(run(x, weight, chosen(decode), a16=True))


def single(format: str, steps: int, rng: np.random.Generator) -> tuple[QuantizedTensor, np.ndarray]:
    """A weight of random codes [R, 256 steps], one block of each row scaled by 1, the others by 0;
    and its values. Rows take the first and last blocks of every step, then random ones."""
    spec, width = block_format(format), steps * 256
    blocks = width // spec.block
    edges = [s * 256 // spec.block + e for s in range(steps) for e in (0, 256 // spec.block - 1)]
    where = np.array([*edges, *rng.integers(0, blocks, 3)])
    one = {"nvfp4": 0x38, "mxfp4": 127}.get(format, 1.0)
    codes = rng.integers(0, 256, (len(where), width // 2), dtype=np.uint8)
    scales = torch.zeros(len(where), blocks, dtype=spec.scale_dtype)
    scales[torch.arange(len(where)), torch.from_numpy(where)] = one
    weight = QuantizedTensor(format, (len(where), width), torch.from_numpy(codes), scales)
    levels = oracle.weight_parts(weight)[0].reshape(len(where), blocks, spec.block)
    values = np.zeros_like(levels)
    values[np.arange(len(where)), where] = levels[np.arange(len(where)), where]
    return weight, values.reshape(len(where), width)


@pytest.mark.parametrize(("format", "steps"), STEPS)
def test_every_block_is_read_once_and_exactly(format: str, steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight, values = single(format, steps, rng)
    batch = int(rng.integers(1, 3))
    codes = torch.from_numpy(rng.integers(-127, 128, (batch, steps * 256)).astype(np.int8))
    factors = torch.ones(batch, steps * 8)
    laid = {name: t.to(DEVICE) for name, t in to_layout(weight, "gpu_gemv").items()}
    words, scales = laid["words"], laid["lane_scales"]
    got = gemv.multiply(
        codes.to(DEVICE), factors.to(DEVICE), words, scales, format, 1.0, chosen("prmt", 1)
    )
    got[got.abs() < 1e-30] = 0.0  # the smallest scale of mxfp4 is no 0 but 2^-127
    assert np.array_equal(got.cpu().numpy(), codes.double().numpy() @ values.T)


@pytest.mark.parametrize("decode", ["prmt", "plain"])
@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
def test_every_scale_is_exact(format: str, decode: str) -> None:
    count = 127 if format == "nvfp4" else 245  # 2 * 127 times more is beyond float32
    rows = torch.arange(count, dtype=torch.uint8)
    codes = torch.zeros(count, 128, dtype=torch.uint8)
    codes[:, 0] = 0x02  # 1.0, then zeros
    scales = torch.zeros(count, 256 // block_format(format).block, dtype=torch.uint8)
    scales[:, 0] = rows
    weight = QuantizedTensor(format, (count, 256), codes, scales)
    x = torch.zeros(1, 256)
    x[0, 0] = 127.0
    got = run(x, weight, chosen(decode))[0].double().numpy()
    assert np.array_equal(got, oracle.weight_parts(weight)[1][:, 0] * 127.0)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_row(format: str, bad: float, seed: int) -> None:
    rng, decode = np.random.default_rng(seed), "prmt"
    weight = oracle.random_weight(format, (5, 100), rng)
    clean = draw(rng, (2, 100))
    dirty = clean.clone()
    dirty[1, 37] = bad
    before, after = (run(x, weight, chosen(decode)) for x in (clean, dirty))
    assert after[1].isnan().all() and torch.equal(after[0], before[0])


@pytest.mark.parametrize(("format", "decode"), A16)
def test_what_is_not_finite_is_seen_with_bfloat16(format: str, decode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(format, (5, 100), rng)
    clean = draw(rng, (2, 100))
    dirty = clean.clone()
    dirty[1, 37] = rng.choice([np.nan, np.inf, -np.inf])
    before, after = (run(x, weight, chosen(decode), a16=True) for x in (clean, dirty))
    assert not after[1].isfinite().any() and torch.equal(after[0], before[0])


@pytest.mark.parametrize("format", FORMATS)
def test_zeros(format: str, seed: int) -> None:
    # A block of zero weights keeps NaN visible; rows and vectors of zeros give zero.
    rng = np.random.default_rng(seed)
    w = draw(rng, (4, 512))
    w[0], w[:, 128:256] = 0.0, 0.0
    weight = oracle.quantize(w, format)
    x = draw(rng, (3, 512))
    x[0], x[1, 64:96] = 0.0, 0.0
    got = run(x, weight, chosen("prmt"))
    oracle.a8(x, weight).check(got)
    assert not got[0].any() and not got[:, 0].any()
    x[2, 200] = torch.nan
    assert run(x, weight, chosen("prmt"))[2].isnan().all()


@pytest.mark.parametrize(
    ("format", "a16"), [("nvfp4", False), ("int4-g128", False), ("mxfp4", True)]
)
def test_bits_depend_on_neither_run_nor_batch_nor_rows(format: str, a16: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(format, (18, 300), rng)
    x = draw(rng, (2, 300))
    whole = run(x, weight, chosen("prmt"), a16)
    assert torch.equal(run(x, weight, chosen("prmt"), a16), whole)
    for rows in (1, 10**6):
        alone = run(x[1:], weight, chosen("prmt", rows), a16)
        assert torch.equal(alone, whole[1:])


def test_more_vectors_than_a_launch_takes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight("mxfp4", (3, 90), rng)
    x = draw(rng, (18, 90))
    oracle.a8(x, weight).check(run(x, weight, chosen("prmt")))
    assert run(x[:0], weight, chosen("prmt")).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_quantized_activations(dtype: torch.dtype, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = draw(rng, (97, 5)).clamp(-6e4, 6e4).to(dtype).t()  # not contiguous
    x[1, 32:64], x[2, :32] = 0.0, 1e-3
    x[3, 40], x[4, 90], x[4, 5] = torch.nan, torch.inf, -torch.inf
    got, factors = (t.cpu() for t in activations.int8_codes(x.to(DEVICE), 256))
    codes, scales = quantize_groups(x.float(), padded_to=256)
    assert torch.equal(got, codes.to(torch.int8))
    assert np.array_equal(factors.numpy(), scales.numpy(), equal_nan=True)
    halves = activations.lane_floats(x.to(DEVICE), 256).cpu().view(5, 8, 8, 4).transpose(2, 3)
    wide = torch.nn.functional.pad(x.to(torch.bfloat16).float(), (0, 256 - 97))
    assert np.array_equal(halves.reshape(5, 256).numpy(), wide.numpy(), equal_nan=True)


def test_halves_round_to_even() -> None:
    x = torch.arange(-127, 128).float()[None] / 2
    x = torch.cat([x.view(1, -1), torch.zeros(1, 1)], 1).reshape(8, 32)
    x[:, 31] = 127.0  # the scale is 1 exactly
    got, factors = activations.int8_codes(x.to(DEVICE), 256)
    assert torch.equal(got.cpu()[:, :32].float(), torch.round(x)) and (factors[:, 0] == 1).all()


def test_tensors_that_do_not_fit_are_refused(seed: int) -> None:
    weight = oracle.random_weight("nvfp4", (3, 300), np.random.default_rng(seed))
    laid = to_layout(weight, "gpu_gemv")
    words, scales = laid["words"], laid["lane_scales"]
    codes, factors = torch.zeros(2, 512, dtype=torch.int8), torch.zeros(2, 16)
    how = chosen("prmt")

    def multiply(*given: torch.Tensor | None) -> None:
        x, f, w, s = given
        assert x is not None and w is not None and s is not None
        gemv.multiply(x, f, w, s, "nvfp4", 1.0, how)

    with pytest.raises(QuantizationError, match=r"int8 \[B, 512\], got torch.int8 \[2, 256\]"):
        multiply(codes[:, :256], factors, words, scales)
    with pytest.raises(QuantizationError, match=r"\[2, 16\], got torch.float32 \[2, 8\]"):
        multiply(codes, factors[:, :8], words, scales)
    with pytest.raises(
        QuantizationError, match=r"must be float \[B, 257\] to \[B, 512\], got torch.int8"
    ):
        multiply(codes, None, words, scales)
    with pytest.raises(QuantizationError, match="words and lane_scales must be contiguous"):
        multiply(codes, factors, words.t().contiguous().t(), scales)


@pytest.mark.skipif(DEVICE == "cpu", reason="the operators themselves need a GPU")
@pytest.mark.parametrize("op", [op for op in operators() if op.implementation == "triton"])
def test_operators_on_a_gpu(op: LinearOp, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(op.format, (37, 300), rng)
    for batch in ((), (3,), (2, 9)):
        x = draw(rng, (*batch, 300))
        got = op(*oracle.on_cuda(x, oracle.laid_out(weight, op.layout)))
        oracle.answer(op.activation, x, weight).check(got.cpu())


@pytest.mark.skipif(DEVICE == "cuda", reason="says what happens where CUDA is missing")
def test_without_a_gpu_the_operators_are_listed_and_say_what_to_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    listed = [op for op in operators() if op.implementation == "triton"]
    packed = [op for op in listed if op.format != "bf16"]
    assert {op.layout for op in packed} == {"gpu_gemv"} and (len(listed), len(packed)) == (8, 7)
    (plain,) = set(listed) - set(packed)
    with pytest.raises(UnsupportedError, match="CUDA"):
        plain(torch.zeros(1, 64), torch.zeros(4, 64, dtype=torch.bfloat16))
    for op in packed:
        weight = oracle.random_weight(op.format, (4, 64), rng)
        with pytest.raises(UnsupportedError, match="CUDA"):
            op(torch.zeros(1, 64), oracle.laid_out(weight, op.layout))
        with pytest.raises(QuantizationError, match="layout gpu_gemv, got canonical"):
            op(torch.zeros(1, 64), oracle.laid_out(weight, "canonical"))


@pytest.mark.parametrize(
    ("format", "activation"),
    [(f, "int8-g32") for f in ("nvfp4", "mxfp4", "int4-g128", "int4-g32")]
    + [("nvfp4", "bf16"), ("mxfp4", "bf16")],
)
def test_torch_operators_on_the_cpu_are_the_reference(
    format: str, activation: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(format, (9, 300), rng)
    laid = to_layout(weight, "gpu_gemv")
    x, ops = draw(rng, (2, 300)), torch.ops.wmrt
    given = [x] if activation == "bf16" else list(ops.quantize_int8_g32(x, 512))
    given += [laid["words"], laid["lane_scales"]]
    name = "gemv_w4a8" if format.startswith("int4") else f"gemv_{format}"
    more = [weight.global_scale] if format == "nvfp4" else []
    more += [weight.spec.block] if format.startswith("int4") else []
    op = getattr(ops, name + ("_a16" if activation == "bf16" else "")).default
    got = op(*given, *more)
    expected = linear(format, activation)(x, weight)
    if activation == "bf16":
        oracle.a16(x, weight).check(got)
    else:
        oracle.a8(x, weight).check(got)
    assert got.shape == expected.shape
    if FULL:  # it imports for 2 s
        torch.library.opcheck(op, (*given, *more))
    on_meta = op(*(t.to("meta") for t in given), *more)
    assert on_meta.device.type == "meta" and on_meta.shape == got.shape
