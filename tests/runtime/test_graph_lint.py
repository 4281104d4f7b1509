"""Each fault is planted and must be found where it is; a step without one passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wmrt.kernels.triton.linear
from wmrt.runtime.fake_cuda import fake_cuda, fake_like, on_fake_cuda
from wmrt.runtime.graph_faults import (
    ALLOCATION,
    CHANCE,
    COPY,
    ERROR,
    HIDDEN,
    SHAPE,
    SYNC,
    Report,
)
from wmrt.runtime.graph_lint import Subject, lint

assert wmrt.kernels.triton.linear


class Step:
    """y = relu(w x), by operators that write into what they are given."""

    def __init__(self, extra: Callable[[Step], Any] = lambda step: None) -> None:
        self.w = torch.empty(8, 8, device="cuda")
        self.x, self.y = torch.empty(8, 4, device="cuda"), torch.empty(8, 4, device="cuda")
        self.index = torch.zeros(3, dtype=torch.int64, device="cuda")
        self.host = torch.empty(8, 4)
        self.extra = extra

    def __call__(self) -> None:
        torch.mm(self.w, self.x, out=self.y)
        self.y.relu_()
        self.extra(self)


def look(extra: Callable[[Step], Any], *generators: torch.Generator, host: bool = False) -> Report:
    def build() -> Subject:
        step = Step(extra)
        buffers = {"x": step.x, "y": step.y, **({"host": step.host} if host else {})}
        return Subject(step, buffers, generators)

    return lint(build)


def kinds(report: Report) -> set[str]:
    return {fault.kind for fault in report.faults}


def test_a_clean_step_passes() -> None:
    report = look(lambda step: step.y[2].t().copy_(step.y[3]))
    assert report.clean and report.capturable and report.faults == ()
    assert report.launches == {"aten::mm": 1, "aten::relu_": 1, "aten::copy_": 1}
    assert report.to_json()["allocated_bytes"] == 0


PLANTED: list[tuple[Callable[[Step], Any], str, str]] = [
    (lambda s: s.y.sum().item(), SYNC, "_local_scalar_dense"),
    (lambda s: bool((s.y > 0).any()), SYNC, "_local_scalar_dense"),
    (lambda s: s.y[0].tolist(), SYNC, "_local_scalar_dense"),
    (lambda s: torch.equal(s.x, s.y), SYNC, "equal"),
    (lambda s: int(s.index[0]), SYNC, "_local_scalar_dense"),
    (lambda s: s.y.nonzero(), SHAPE, "nonzero"),
    (lambda s: s.y[s.y > 0], SHAPE, "index"),
    (lambda s: s.y.__setitem__(s.y > 0, 0.0), SHAPE, "index_put"),
    (lambda s: float(s.y[0, 0]), SYNC, "_local_scalar_dense"),
    (lambda s: s.y.masked_select(s.y > 0), SHAPE, "masked_select"),
    (lambda s: s.y.unique(), SHAPE, "_unique2"),
    (lambda s: s.x.repeat_interleave(s.index[:1].expand(8), 0), SHAPE, "repeat_interleave"),
    (lambda s: s.y.cpu(), COPY, "_to_copy"),
    (lambda s: s.x.copy_(s.host), COPY, "copy_"),
    (lambda s: s.x.copy_(s.host, non_blocking=True), COPY, "copy_"),
    (lambda s: torch.tensor([1.0, 2.0], device="cuda"), COPY, "_to_copy"),
    (lambda s: s.y.sum().to("cpu"), COPY, "_to_copy"),
    (lambda s: s.y.normal_(), CHANCE, "normal_"),
    (lambda s: F.dropout(s.y, 0.5), CHANCE, "dropout"),
    (lambda s: torch.multinomial(s.y.softmax(-1), 1), CHANCE, "multinomial"),
    (lambda s: s.w.mul_(2), HIDDEN, "mul_"),
    (lambda s: s.w[0].fill_(1.0), HIDDEN, "fill_"),
    (lambda s: s.y + s.x, ALLOCATION, "add"),
    (lambda s: s.y[s.index], ALLOCATION, "index"),
    (lambda s: torch.zeros(3, device="cuda"), ALLOCATION, "zeros"),
    (lambda s: s.y.t().contiguous(), ALLOCATION, "clone"),
    (lambda s: s.x + s.host, ERROR, "FakeTensorDeviceMismatchError"),
    (lambda s: 1 / 0, ERROR, "ZeroDivisionError"),
]


@pytest.mark.parametrize(("extra", "kind", "said"), PLANTED)
def test_a_planted_fault_is_found(extra: Callable[[Step], Any], kind: str, said: str) -> None:
    report = look(extra)
    assert not report.clean and report.capturable == (kind == ALLOCATION)
    found = [f for f in report.faults if f.kind == kind and said in f"{f.operator} {f.detail}"]
    assert found, report.faults
    assert all(f.where.startswith("tests/runtime/test_graph_lint.py:") for f in found)
    assert report.complete == (kind not in (SHAPE, ERROR))


def test_the_step_goes_on_behind_a_value_that_it_reads() -> None:
    def extra(step: Step) -> None:
        if step.y.sum().item() > 0:
            step.w.add_(1)
        step.y.cpu()

    assert {SYNC, HIDDEN, COPY} <= kinds(look(extra))


def test_the_line_of_the_fault_is_told_once_with_its_count() -> None:
    line = Path(__file__).read_text("utf-8").splitlines().index("            step.y + 1.0") + 1

    def extra(step: Step) -> None:
        for _ in range(3):
            step.y + 1.0

    (fault,) = look(extra).faults
    assert (fault.count, fault.bytes) == (3, 3 * 8 * 4 * 4)
    assert fault.where == f"tests/runtime/test_graph_lint.py:{line}"


def test_a_pinned_buffer_may_be_copied_from_where_it_is_named() -> None:
    def extra(step: Step) -> Tensor:
        return step.x.copy_(step.host, non_blocking=True)

    assert look(extra, host=True).clean
    assert kinds(look(lambda step: step.x.copy_(step.host), host=True)) == {COPY}


def test_what_a_step_makes_it_may_write() -> None:
    report = look(lambda step: torch.empty(3, device="cuda").fill_(1.0))
    assert kinds(report) == {ALLOCATION}


def test_chance_with_a_named_generator_is_no_fault() -> None:
    generator = torch.Generator()  # none can be made on a device that is not there

    def extra(step: Step) -> None:
        torch.rand(4, generator=generator)

    assert CHANCE not in kinds(look(extra, generator))
    assert CHANCE in kinds(look(extra, torch.Generator()))


def test_operators_of_wmrt_are_launches_by_name() -> None:
    def build() -> Subject:
        x, weight = torch.empty(1, 64, device="cuda"), torch.empty(64, device="cuda")
        return Subject(lambda: torch.ops.wmrt.rms_norm(x, weight, 1e-5), {"x": x})

    import wmrt.kernels.triton.ops

    assert wmrt.kernels.triton.ops
    report = lint(build)
    assert report.launches == {"wmrt::rms_norm": 1} and report.capturable


def test_operators_that_write_into_buffers_are_a_clean_step() -> None:
    def build() -> Subject:
        like = {"q": torch.empty(1, 4, 32), "slots": torch.empty(1, 3, dtype=torch.int32)}
        like |= {name: torch.empty(1, 8, 2, 32) for name in ("keys", "values")}
        like |= {"bias": torch.empty(1, 3), "attended": torch.empty(1, 4, 32)}
        t = {name: fake_like(tensor) for name, tensor in like.items()}
        names = ("q", "keys", "values", "slots", "bias", "attended")
        attend = torch.ops.wmrt.transition_attention
        return Subject(lambda: attend(*(t[n] for n in names)), {"attended": t["attended"]})

    report = lint(build)
    assert report.clean, report.faults
    assert report.launches == {"wmrt::transition_attention": 1}


def test_a_module_on_the_meta_device_becomes_one_of_a_fake_gpu() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    with fake_cuda(), torch.no_grad():
        on_fake_cuda(module)
        held = [*module.parameters(), *module.buffers()]
        assert {t.device.type for t in held} == {"cuda"}
        assert all(isinstance(p, nn.Parameter) for p in module.parameters())
        assert module(torch.empty(2, 4, device="cuda")).shape == (2, 4)


INDICES: list[Any] = [
    0,
    -1,
    slice(1, 3),
    (slice(None), 0),
    (..., 0),
    (0, ..., None),
    None,
    (slice(None), torch.tensor([0, 1])),
    (..., torch.tensor([1, 1, 0])),
    (torch.tensor([0, 1]), torch.tensor([1, 1])),
    (1, torch.tensor([[0, 1], [1, 0]])),
    (slice(0, 2), None, 1),
]


@pytest.mark.parametrize("index", INDICES)
def test_indices_have_the_shapes_of_real_ones(index: Any) -> None:
    real = torch.arange(24.0).view(2, 3, 4)
    parts = index if isinstance(index, tuple) else (index,)
    with fake_cuda(), torch.no_grad():
        fake = torch.empty(2, 3, 4, device="cuda")
        there = tuple(
            torch.zeros(p.shape, dtype=p.dtype, device="cuda") if isinstance(p, Tensor) else p
            for p in parts
        )
        assert fake[there].shape == real[parts].shape
        fake[there] = 1.0
        fake[there] = fake[there]
        assert fake[parts[0] if len(parts) == 1 else there].device.type == "cuda"
