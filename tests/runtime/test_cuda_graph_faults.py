"""What goes wrong in a captured step: faults of the device, errors of the step, replaced buffers,
misuse. All of it is told, and nothing steps on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.runtime import counter
from tests.runtime.counter import SIZE, Counter, backend
from tests.runtime.tape import FAULT, Tape
from wmrt.core.errors import DeviceError, UsageError
from wmrt.runtime.cuda_graph import CudaGraphExecutor
from wmrt.runtime.graph_states import State

#: For every test here.
collector = counter.collector


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
    (lambda s: s.out.as_strided_((SIZE,), (0,)), r"strides \[0\], 24 bytes .* strides \[1\]"),
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
            out.set_(storage, 0, (SIZE,), (1,))
            step.x, step.total, step.out = x, total, out
            executor.replay()


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
