"""Capture, proof and replay, on a stand-in for the device that keeps a graph's promises."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.tape import FAULT, Tape, TapeBackend
from wmrt.core import frozen_garbage
from wmrt.core.errors import DeviceError, UnsupportedError, UsageError
from wmrt.runtime.cuda_graph import CudaGraphExecutor
from wmrt.runtime.graph_states import State
from wmrt.runtime.static_buffers import Attributes

SIZE = 6


class Counter:
    """A step with state: out = weight @ x + total, then total += x. It counts its runs."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(SIZE, SIZE, generator=generator)
        self.x = torch.randn(SIZE, generator=generator)
        self.total = torch.randn(SIZE, generator=generator)
        self.out = torch.zeros(SIZE)
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1
        torch.mv(self.weight, self.x, out=self.out)
        self.out.add_(self.total)
        self.total.add_(self.x)

    @property
    def buffers(self) -> Attributes:
        return Attributes(self, ("x", "total", "out"))


@pytest.fixture(autouse=True)
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is left held; a collection takes 0.1 s where a test process has so many objects."""
    before = gc.isenabled(), frozen_garbage._holders
    monkeypatch.setattr(gc, "collect", lambda: 0)
    yield
    assert (gc.isenabled(), frozen_garbage._holders) == before
    gc.unfreeze()


def held(step: Counter) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in step.buffers.items()}


def same(step: Counter, before: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(t, before[name]) for name, t in step.buffers.items())


def backend(step: Counter, **options: Any) -> TapeBackend:
    return TapeBackend(step.buffers, **options)


def test_a_captured_step_equals_eager_ones_and_leaves_no_trace(seed: int) -> None:
    step, plain = Counter(seed), Counter(seed)
    device, before = backend(step), held(step)
    with CudaGraphExecutor(step, step.buffers, graph="on", backend=device) as executor:
        assert executor.state is State.IDLE
        resolved = executor.prepare()
        assert resolved.used and "equal to an eager step in every bit" in resolved.reason
        assert executor.state is State.READY and same(step, before)
        assert step.runs == 3 + 1 + 1  # warm, captured, compared
        assert device.tape is not None and device.tape.replays == 1 + 5
        for turn in range(4):
            for each in (step, plain):
                each.x.fill_(turn + 0.1)
            executor.replay()
            executor.wait()
            plain()
            assert same(plain, held(step))
        assert step.runs == 5
        shown = executor.to_json()
        assert (shown["resolved"], shown["state"]) == ("cuda graph", "ready")
        assert shown["spin"]["obtained"] and shown["failure"] is None
    assert executor.state is State.CLOSED and device.tape.freed


def test_the_device_is_asked_in_order(seed: int) -> None:
    step = Counter(seed)
    device = backend(step)
    with CudaGraphExecutor(step, step.buffers, graph="on", backend=device) as executor:
        executor.prepare()
    marks = [what for what in device.log if what != "synchronize"]
    assert marks == ["spin", "side stream", "side stream ends", "capture"]
    assert "synchronize" in device.log[2:4]  # warm-up runs are done before the capture


def test_off_runs_eagerly_and_touches_no_device(seed: int) -> None:
    step, plain = Counter(seed), Counter(seed)
    device = backend(step)
    with CudaGraphExecutor(step, step.buffers, graph="off", backend=device) as executor:
        assert executor.prepare().reason == "switched off"
        assert executor.state is State.EAGER and not device.log and step.runs == 0
        executor.replay()
        plain()
        assert same(plain, held(step)) and not executor.spin.obtained


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_where_no_graph_can_be_had(mode: str, seed: int) -> None:
    step = Counter(seed)
    device = backend(step, unavailable="there is no CUDA here")
    executor = CudaGraphExecutor(step, step.buffers, graph=mode, backend=device)
    if mode == "on":
        with pytest.raises(UnsupportedError, match=r"graph=on cannot be had: there is no CUDA her"):
            executor.prepare()
        with pytest.raises(DeviceError, match="no more steps: there is no CUDA here"):
            executor.replay()
    else:
        assert executor.prepare().reason == "there is no CUDA here"
        executor.replay()
        assert step.runs == 1
    executor.close()


def test_buffers_on_the_cpu_say_so_themselves(seed: int) -> None:
    step = Counter(seed)
    with CudaGraphExecutor(step, step.buffers) as executor:
        assert executor.prepare().reason == "a CUDA Graph needs a CUDA device, this one is cpu"
        executor.replay()
        executor.wait()
    executor = CudaGraphExecutor(step, step.buffers, graph="on")
    with pytest.raises(UnsupportedError, match="use graph=auto or graph=off"):
        executor.prepare()


class Reading(Counter):
    """Asks for a value in the middle of the step."""

    def __call__(self) -> None:
        super().__call__()
        if self.x.sum().item() > 0:
            self.out.mul_(2)


def uneven(tape: Tape) -> None:
    """The capture missed the last operator."""
    tape.calls.pop()


REFUSALS: list[tuple[type[Counter], dict[str, Any], str]] = [
    (Reading, {}, "the capture failed: CUDA error: operation not permitted when stream is"),
    (Counter, {"faults": {"capture": "no pool"}}, "the capture failed: no pool"),
    (Counter, {"faults": {"replay": "launch failed\nmore"}}, "the first replay failed: launch f"),
    (Counter, {"spoil": uneven}, "a replay differs from an eager step in total"),
    (Counter, {"spoil": lambda tape: tape.calls.clear()}, "in total, out: the step"),
]


@pytest.mark.parametrize(("kind", "options", "reason"), REFUSALS)
@pytest.mark.parametrize("mode", ["auto", "on"])
def test_a_capture_that_is_refused(
    mode: str, kind: type[Counter], options: dict[str, Any], reason: str, seed: int
) -> None:
    step, plain = kind(seed), kind(seed)
    before = held(step)
    device = backend(step, **options)
    executor = CudaGraphExecutor(step, step.buffers, graph=mode, backend=device)
    if mode == "on":
        with pytest.raises(UnsupportedError, match="graph=on cannot be had: ") as raised:
            executor.prepare()
        assert reason in str(raised.value) and executor.state is State.FAILED
    else:
        assert reason in executor.prepare().reason and executor.state is State.EAGER
    assert same(step, before)
    assert device.tape is None or device.tape.freed or kind is Reading
    if mode == "auto":
        executor.replay()
        plain()
        assert same(plain, held(step))
    executor.close()


def test_a_step_that_queues_nothing_is_no_graph(seed: int) -> None:
    step = Counter(seed)
    with CudaGraphExecutor(lambda: None, step.buffers, backend=backend(step)) as executor:
        assert executor.prepare().reason == "the capture failed: the CUDA Graph is empty"


def test_a_fault_of_the_device_while_preparing_ends_it_even_with_auto(seed: int) -> None:
    step = Counter(seed)
    device = backend(step)

    def broken(tape: Tape) -> None:
        device.faults |= {"synchronize": FAULT}

    device.spoil = broken
    executor = CudaGraphExecutor(step, step.buffers, graph="auto", backend=device)
    with pytest.raises(DeviceError, match="an illegal memory access was encountered; make another"):
        executor.prepare()
    assert executor.state is State.FAILED and "Compile with" not in executor.failure
    with pytest.raises(DeviceError, match="no more steps"):
        executor.replay()
    executor.close()
    assert device.tape is not None and not device.tape.freed  # its memory is beyond reach


@pytest.mark.parametrize("at", ["spin", "side stream", "synchronize"])
def test_a_fault_in_the_warm_up(at: str, seed: int) -> None:
    step = Counter(seed)
    device = backend(step, faults={at: "CUDA error: out of luck"})
    executor = CudaGraphExecutor(step, step.buffers, backend=device)
    with pytest.raises(DeviceError, match="a warm-up run failed: CUDA error: out of luck"):
        executor.prepare()
    with pytest.raises(DeviceError, match="no more steps: a warm-up run failed"):
        executor.prepare()


def test_the_steps_own_errors_pass_through(seed: int) -> None:
    step = Counter(seed)

    def run() -> None:
        raise UsageError("x must be contiguous")

    executor = CudaGraphExecutor(run, step.buffers, backend=backend(step))
    with pytest.raises(UsageError, match="x must be contiguous"):
        executor.prepare()
    assert executor.failure == "a warm-up run failed: x must be contiguous"


def test_an_interrupt_leaves_nothing_that_steps(seed: int) -> None:
    step = Counter(seed)

    def interrupt(tape: Tape) -> None:
        raise KeyboardInterrupt

    executor = CudaGraphExecutor(step, step.buffers, backend=backend(step, spoil=interrupt))
    with pytest.raises(KeyboardInterrupt):
        executor.prepare()
    with pytest.raises(DeviceError, match="ended by KeyboardInterrupt"):
        executor.replay()
    executor.close()


def test_a_fault_in_a_replay_is_told_and_remembered(seed: int) -> None:
    step = Counter(seed)
    device = backend(step)
    executor = CudaGraphExecutor(step, step.buffers, backend=device)
    executor.prepare()
    assert device.tape is not None
    device.tape.fault = FAULT
    with pytest.raises(DeviceError, match="a step failed: CUDA error: an illegal memory access"):
        executor.replay()
    device.tape.fault = ""
    for again in (executor.replay, executor.wait):
        with pytest.raises(DeviceError, match="no more steps: a step failed: CUDA error"):
            again()
    executor.close()


def test_a_fault_that_shows_while_waiting(seed: int) -> None:
    step = Counter(seed)
    device = backend(step)
    executor = CudaGraphExecutor(step, step.buffers, backend=device)
    executor.prepare()
    executor.replay()
    device.faults["synchronize"] = FAULT
    with pytest.raises(DeviceError, match="illegal memory access"):
        executor.wait()
    assert executor.state is State.FAILED
    executor.close()


def test_closing_waits_for_what_is_queued(seed: int) -> None:
    step = Counter(seed)
    device = backend(step)
    executor = CudaGraphExecutor(step, step.buffers, backend=device)
    executor.prepare()
    executor.replay()
    device.faults["synchronize"] = FAULT
    with pytest.raises(DeviceError, match="giving a graph back failed: CUDA error: an illegal"):
        executor.close()
    assert executor.state is State.CLOSED
    executor.close()


REPLACEMENTS: list[tuple[Callable[[Counter], object], str]] = [
    (lambda s: setattr(s, "x", s.x.clone()), r"x was replaced by torch.float32 \[6\] on cpu at"),
    (lambda s: setattr(s, "total", s.total[:3]), r"total was replaced by torch.float32 \[3\]"),
    (lambda s: setattr(s, "x", s.x.view(torch.int32)), "x was replaced by torch.int32"),
    (lambda s: s.out.resize_(600), r"out was replaced by torch.float32 \[600\]"),
    (lambda s: s.out.set_(torch.zeros(SIZE)), "out was replaced by torch.float32"),
    (lambda s: delattr(s, "out"), "out is gone"),
    (lambda s: setattr(s, "x", s.x.to("meta")), r"x was replaced by torch.float32 \[6\] on meta"),
]


@pytest.mark.parametrize(("replace", "said"), REPLACEMENTS)
def test_a_replaced_buffer_is_named_before_a_replay(
    replace: Callable[[Counter], object], said: str, seed: int
) -> None:
    step = Counter(seed)
    x, total, out = step.x, step.total, step.out
    storage = out.untyped_storage()
    with CudaGraphExecutor(step, step.buffers, backend=backend(step)) as executor:
        executor.prepare()
        replace(step)
        with pytest.raises(UsageError, match=said) as raised:
            executor.replay()
        assert "write into it with .copy_(), put the tensor back" in str(raised.value)
        if out.shape == (SIZE,):  # put back, it goes on
            out.set_(storage, 0, (SIZE,))
            step.x, step.total, step.out = x, total, out
            executor.replay()


def test_another_view_of_the_same_memory_is_the_same_buffer(seed: int) -> None:
    step = Counter(seed)
    with CudaGraphExecutor(step, step.buffers, backend=backend(step)) as executor:
        executor.prepare()
        step.x = step.x.view(2, 3).view(SIZE)
        executor.replay()


def test_chance_is_repeated_where_its_generator_is_named(seed: int) -> None:
    step = Counter(seed)
    generator = torch.Generator().manual_seed(seed)

    def run() -> None:
        step()
        step.out.add_(torch.rand(SIZE, generator=generator))

    state = generator.get_state()
    named = CudaGraphExecutor(
        run, step.buffers, graph="on", backend=backend(step), generators=[generator]
    )
    with named:
        assert named.prepare().used
        assert torch.equal(generator.get_state(), state)
        want = torch.rand(SIZE, generator=torch.Generator().manual_seed(seed))
        base = step.weight @ step.x + step.total
        named.replay()
        assert torch.equal(step.out, base + want)
    with CudaGraphExecutor(run, step.buffers, backend=backend(step)) as unnamed:
        assert "differs from an eager step in out" in unnamed.prepare().reason


def test_bits_are_compared_not_values(seed: int) -> None:
    step = Counter(seed)
    step.total[2] = torch.nan  # NaN in both is equal
    with CudaGraphExecutor(step, step.buffers, graph="on", backend=backend(step)) as executor:
        assert executor.prepare().used
    step = Counter(seed)
    step.out.zero_()

    def run() -> None:
        step.out.copy_(step.out * sign)

    sign = torch.tensor(1.0)

    def flip(tape: Tape) -> None:
        sign.neg_()

    with CudaGraphExecutor(run, step.buffers, backend=backend(step, spoil=flip)) as executor:
        sign.fill_(-1.0)
        assert executor.prepare().used  # -0 each time: the sign flips before both
    step.out.zero_()
    sign.fill_(1.0)
    tape_only = backend(step, spoil=lambda tape: tape.calls.append(_negated(step.out)))
    with CudaGraphExecutor(run, step.buffers, backend=tape_only) as executor:
        assert "in out" in executor.prepare().reason  # 0 is not -0


def _negated(tensor: Tensor) -> tuple[Any, Any, Any, Any]:
    return torch.ops.aten.neg_.default, (tensor,), {}, tensor


def test_what_lives_is_set_aside_until_the_last_executor_closes(seed: int) -> None:
    gc.unfreeze()
    executors = []
    for number in range(2):
        step = Counter(seed + number)
        executors.append(CudaGraphExecutor(step, step.buffers, backend=backend(step)))
        executors[-1].prepare()
        assert gc.get_freeze_count() > 1000
    executors[0].close()
    executors[0].close()  # again is nothing
    assert gc.get_freeze_count() > 1000
    executors[1].close()
    assert gc.get_freeze_count() == 0


def test_no_collection_during_a_capture(seed: int) -> None:
    step, seen = Counter(seed), []

    def run() -> None:
        step()
        seen.append(gc.isenabled())

    was = gc.isenabled()
    gc.enable()
    with CudaGraphExecutor(run, step.buffers, backend=backend(step), runs=2) as executor:
        executor.prepare()
    assert seen == [True, True, False, True]
    (gc.enable if was else gc.disable)()


def test_misuse_is_refused_with_what_to_do(seed: int) -> None:
    step = Counter(seed)
    with pytest.raises(UsageError, match="graph 'maybe' is unknown"):
        CudaGraphExecutor(step, step.buffers, graph="maybe")
    with pytest.raises(UsageError, match="needs static buffers, got none"):
        CudaGraphExecutor(step, {})
    with pytest.raises(UsageError, match="static buffer x on meta lies nowhere"):
        CudaGraphExecutor(step, {"x": torch.empty(2, device="meta")})
    with pytest.raises(UsageError, match="runs=0, replays=5: at least 1"):
        CudaGraphExecutor(step, step.buffers, runs=0)
    executor = CudaGraphExecutor(step, step.buffers, backend=backend(step))
    with pytest.raises(UsageError, match=r"replay is not possible .* idle; call prepare\(\) first"):
        executor.replay()
    executor.prepare()
    with pytest.raises(UsageError, match=r"start is not possible .* ready"):
        executor.prepare()
    executor.close()
    with pytest.raises(UsageError, match="closed; make another executor"):
        executor.replay()
