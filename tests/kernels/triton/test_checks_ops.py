"""Operators of `torch.ops.wmrt` that return tensors refuse what their kernels cannot read, in the
same words on the CPU and on Meta, where a wrong size would otherwise be a wrong result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels import fused
from wmrt.core.errors import QuantizationError, UnsupportedError, UsageError, WmrtError
from wmrt.kernels.triton import checks_ops, linear, norm, ops
from wmrt.kernels.triton.action_quant import action_pack

assert linear  # registers operators
OPS = torch.ops.wmrt
DEVICES = ["cpu", "meta"]
ONES = torch.ones(8)


def refuses(name: str, given: tuple[Any, ...], kind: type[WmrtError], says: str) -> None:
    """On both devices."""
    for device in DEVICES:
        moved = [a.to(device) if isinstance(a, torch.Tensor) else a for a in given]
        with pytest.raises(kind, match=says):
            getattr(OPS, name)(*moved)


@pytest.mark.parametrize(
    ("x", "weight", "says"),
    [
        (torch.zeros(()), ONES, r"x is torch.float32 \[\]"),
        (torch.zeros(2, 0), torch.ones(0), "K up to 16384"),
        (torch.zeros(2, 8).int(), ONES, "contiguous floats"),
        (torch.zeros(8, 2).t(), ONES[:2], "contiguous floats"),
        (torch.zeros(1, 16385), torch.ones(16385), "K up to 16384"),
        (torch.zeros(2, 8), torch.ones(1), r"float32 \[1\]; it has to be float32 \[8\]"),
        (torch.zeros(2, 8), ONES.half(), "has to be float32"),
    ],
)
def test_norms(x: torch.Tensor, weight: torch.Tensor, says: str) -> None:
    refuses("rms_norm", (x, weight, 1e-5), UsageError, says)
    refuses("rms_norm_int8", (x, weight, 1e-5, 32), UsageError, says)


@pytest.mark.parametrize("padded_to", [0, -32, 20, 33])
def test_padding_is_whole_groups(padded_to: int) -> None:
    says = f"padded_to={padded_to}: a multiple of 32"
    refuses("rms_norm_int8", (torch.zeros(2, 8), ONES, 1e-5, padded_to), UsageError, says)


def test_padding_that_no_program_holds() -> None:
    given = (torch.zeros(2, 8), ONES, 1e-5, 16416)
    refuses("rms_norm_int8", given, UsageError, "padded_to=16416 makes rows of 16416")
    with pytest.raises(UsageError, match="rows of 16416"):
        norm.rms_norm_int8(*given[:3], padded_to=16416)


@pytest.mark.parametrize(
    "chunks",
    [
        torch.zeros(()),
        torch.zeros(16),
        torch.zeros(0, 2),
        torch.zeros(8, 2).double(),
        torch.zeros(8, 2).int(),
        torch.zeros(2, 8).t(),
        torch.zeros(4097, 1),
    ],
    ids=lambda t: f"{t.dtype}{list(t.shape)}",
)
def test_chunks(chunks: torch.Tensor) -> None:
    refuses("action_pack", (chunks,), UsageError, "not contiguous float32|1 to 4096 are packed")
    with pytest.raises(UsageError):
        action_pack(chunks)


@pytest.mark.parametrize(
    ("x", "width", "says"),
    [
        (torch.zeros(64), 64, r"int8 codes are of floats \[B, K\]"),
        (torch.zeros(()), 64, r"int8 codes are of floats \[B, K\]"),
        (torch.zeros(1, 2, 64), 64, r"int8 codes are of floats \[B, K\]"),
        (torch.zeros(1, 64).int(), 64, r"int8 codes are of floats \[B, K\]"),
        (torch.zeros(1, 0), 32, r"int8 codes are of floats \[B, K\]"),
        (torch.zeros(1, 64), 0, "width=0 for 64 columns"),
        (torch.zeros(1, 64), 32, "width=32 for 64 columns"),
        (torch.zeros(1, 64), -64, "width=-64 for 64 columns"),
        (torch.zeros(1, 40), 40, "width=40 for 40 columns: a multiple of 32"),
    ],
)
def test_activations(x: torch.Tensor, width: int, says: str) -> None:
    from wmrt.kernels.triton.activations import int8_codes

    refuses("quantize_int8_g32", (x, width), UsageError, says)
    with pytest.raises(UsageError, match=says):
        int8_codes(x, width)


#: Operator, format and the arguments behind the two tensors of the weight.
GEMV: dict[str, tuple[str, list[Any]]] = {
    "gemv_nvfp4": ("nvfp4", [1.0]),
    "gemv_mxfp4": ("mxfp4", []),
    "gemv_w4a8": ("int4-g32", [32]),
    "gemv_nvfp4_a16": ("nvfp4", [1.0]),
    "gemv_mxfp4_a16": ("mxfp4", []),
}


def product(name: str, seed: int) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """Tensors of a call that fits, of 2 vectors and a weight [5, 300], and the rest of it."""
    format, more = GEMV[name]
    _, matrix = fused.random(format, (5, 300), np.random.default_rng(seed))
    weight = {"words": matrix.words.cpu(), "lane_scales": matrix.lane_scales.cpu()}
    if name.endswith("a16"):
        return {"x": torch.ones(2, 300), **weight}, more
    return {"x": torch.ones(2, 512).to(torch.int8), "factors": torch.ones(2, 16), **weight}, more


@pytest.mark.parametrize("name", GEMV)
def test_products_of_what_fits(name: str, seed: int) -> None:
    given, more = product(name, seed)
    assert getattr(OPS, name)(*given.values(), *more).shape == (2, 5)
    on_meta = [t.to("meta") for t in given.values()]
    assert getattr(OPS, name)(*on_meta, *more).shape == (2, 5)


@pytest.mark.parametrize("name", GEMV)
def test_products_of_what_does_not_fit(name: str, seed: int) -> None:
    """Each tensor shorter, of fewer rows, of another type, with strides, without axes."""
    given, more = product(name, seed)
    for at, tensor in given.items():
        wrong = {
            "narrow": tensor[:, : tensor.shape[1] // 4].contiguous(),
            "rows": tensor[:1],
            "type": tensor.to(torch.int64),
            "strides": tensor.t().contiguous().t(),
            "number": tensor[0, 0],
            "axis": tensor[0],
            "more axes": tensor[None],
        }
        if at == "x" and "factors" not in given:  # any number of vectors, any strides
            del wrong["rows"], wrong["strides"]
        for what, bad in wrong.items():
            refused = tuple({**given, at: bad}.values())
            try:
                refuses(name, (*refused, *more), QuantizationError, ".")
            except BaseException as error:
                raise AssertionError(f"{name}: {at}, {what}") from error


def test_groups_that_no_kernel_reads(seed: int) -> None:
    given, _ = product("gemv_w4a8", seed)
    for group in (0, 16, 48, 256):
        refuses("gemv_w4a8", (*given.values(), group), UnsupportedError, f"int4-g{group}")


def test_products_of_tensors_apart(seed: int) -> None:
    given, _ = product("gemv_nvfp4", seed)
    with pytest.raises(QuantizationError, match="lie on cpu, meta; move them"):
        checks_ops.product(
            *(given["x"], given["factors"].to("meta"), given["words"], given["lane_scales"]),
            "nvfp4",
        )


def test_launches_are_of_the_tensors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the current one, which may be another GPU."""
    inside: list[Any] = []

    @contextmanager
    def device(place: Any) -> Iterator[None]:
        inside.append(place)
        yield
        inside.pop()

    monkeypatch.setattr(ops, "_require", lambda place: 90)
    monkeypatch.setattr(torch.cuda, "device", device)
    seen: list[Any] = []
    for name in ("norm.rms_norm", "norm.rms_norm_int8", "action_quant.action_pack"):
        monkeypatch.setattr(
            f"wmrt.kernels.triton.{name}", lambda *a, **k: seen.append(list(inside))
        )
    x = torch.zeros(2, 8)
    ops._norm_on_cuda(x, ONES, 1e-5)
    ops._int8_on_cuda(x, ONES, 1e-5, 32)
    ops._pack_on_cuda(x)
    assert seen == [[x.device]] * 3
