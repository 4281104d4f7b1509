"""Capture, proof and replay, on a stand-in for the device that keeps a graph's promises."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime import counter
from tests.runtime.counter import SIZE, Counter, backend, held, same
from tests.runtime.tape import Tape
from wmrt.core.errors import DeviceError, UnsupportedError
from wmrt.runtime.cuda_graph import CudaGraphExecutor
from wmrt.runtime.graph_states import State

#: For every test here.
collector = counter.collector


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
