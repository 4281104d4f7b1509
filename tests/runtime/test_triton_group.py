"""Groups of robots under fused operators, on the CPU: each answers as it would alone, whoever else
steps. `rowwise` computes each row by itself; that kernels do is tests/kernels/triton's."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.runtime.models import same, states, tiny
from tests.runtime.rowwise import group_of, model_of
from tests.runtime.tape import TapeBackend
from wmrt.core.errors import DeviceError, OutOfMemoryError, UnsupportedError, UsageError
from wmrt.model.network import Network
from wmrt.runtime import WorldModel
from wmrt.runtime.cuda_graph import CudaGraphExecutor
from wmrt.runtime.group import SessionGroup
from wmrt.runtime.triton_group import ROWS, TritonGroup, sizes, spare


def grouped(model: WorldModel, robots: int, **options: Any) -> tuple[SessionGroup, TritonGroup]:
    steps = group_of(model, robots, **options)
    return SessionGroup(model, robots, steps), steps


def memory(group: SessionGroup, robot: int) -> dict[str, Tensor]:
    return group.snapshot(robot).tensors


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(a[name].nan_to_num(7), b[name].nan_to_num(7)) for name in a)


@pytest.fixture(autouse=True)
def collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection before each capture takes 0.1 s where a test process has so many objects."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


class Backends:
    """A `TapeBackend` for each step of a group, in the order of their rows."""

    def __init__(self, *, refuses: int | None = None, unavailable: str | None = None) -> None:
        self.made: list[TapeBackend] = []
        self.refuses, self.unavailable = refuses, unavailable

    def __call__(self, buffers: Mapping[str, Tensor]) -> TapeBackend:
        broken = {"capture": "no room for a graph"} if len(self.made) == self.refuses else {}
        self.made.append(TapeBackend(buffers, broken, self.unavailable))
        return self.made[-1]


@pytest.mark.parametrize("robots", range(1, 17))
def test_every_number_of_robots_has_its_rows(robots: int) -> None:
    rows = sizes(robots)
    assert rows[-1] == robots and set(rows[:-1]) < {*ROWS, 0} and sorted(set(rows)) == list(rows)
    padded = [next(r for r in rows if r >= count) - count for count in range(1, robots + 1)]
    assert max(padded) == spare(rows) <= 3


@pytest.mark.parametrize(("recipe", "robots"), [("nvfp4", 16), ("w4a8", 5), ("mxfp4", 3)])
def test_any_of_them_may_step_in_any_order(recipe: str, robots: int, seed: int) -> None:
    """Past the ring's 7 slots; those that stay keep every bit."""
    model = model_of(seed, recipe)
    group, _ = grouped(model, robots)
    alone = [model.fork() for _ in range(robots)]
    draw = np.random.default_rng(seed)
    for t in range(14 if robots < 16 else 10):
        chosen = draw.permutation(robots)[: draw.integers(1, robots + 1)].tolist()
        given = states(model.schema, len(chosen), seed + t)
        before = draw.uniform(-1, 1, (len(chosen), 2)).tolist()
        staying = {i: memory(group, i) for i in set(range(robots)) - set(chosen)}
        together = group.step(given, before, robots=chosen)
        for step, i, state, action in zip(together, chosen, given, before, strict=True):
            assert same(step, alone[i].step(state, action)), f"robot {i}, step {t}"
        assert all(equal(memory(group, i), kept) for i, kept in staying.items())
    for i, own in enumerate(alone):
        assert equal(memory(group, i), own.snapshot().tensors)
    ran = group.report().ran
    assert sum(ran.values()) == t + 1 and set(ran) == set(sizes(robots))


@torch.inference_mode()
def test_the_operators_take_them_together(seed: int) -> None:
    """As `test_triton_step`: torch rounds otherwise for several rows."""
    model = model_of(seed)
    group, _ = grouped(model, 5, ops=None)
    alone = [model.fork() for _ in range(5)]
    for t, chosen in enumerate([[4, 1, 2], [1], [0, 1, 2, 3, 4], [3, 1]]):
        given = states(model.schema, len(chosen), seed + t)
        for i, own in enumerate(alone):  # from one memory, so that no difference grows
            own.restore(group.snapshot(i))
        together = group.step(given, robots=chosen)
        for step, i, state in zip(together, chosen, given, strict=True):
            want = alone[i].step(state)
            assert np.abs(step.chunk - want.chunk).max() < 0.1
            assert abs(step.reward - want.reward) < 0.1


def test_captured_steps_answer_as_eager_ones(seed: int) -> None:
    """One graph for each number of rows, captured once, whoever steps."""
    model, made, robots = model_of(seed), Backends(), 3
    captured, _ = grouped(model, robots, graph="on", backend=made)
    plain, _ = grouped(model, robots)
    draw = np.random.default_rng(seed)
    for t in range(12):
        chosen = draw.permutation(robots)[: draw.integers(1, robots + 1)].tolist()
        given = states(model.schema, len(chosen), seed + t)
        a, b = (group.step(given, robots=chosen) for group in (captured, plain))
        assert all(same(x, y) for x, y in zip(a, b, strict=True))
    report = captured.report()
    assert report.graph and "equal to an eager step" in report.graph_reason
    assert report.rows == sizes(robots) and not plain.report().graph
    assert [backend.log.count("capture") for backend in made.made] == [1] * len(report.rows)
    played = [backend.tape.replays for backend in made.made if backend.tape is not None]
    assert [n - min(played) for n in played] == [
        n - min(report.ran.values()) for n in report.ran.values()
    ]


def test_what_is_not_a_number_stays_with_its_robot(seed: int) -> None:
    """In a state, in an action, in a spare row and in what spare rows left behind."""
    model = model_of(seed)
    group, steps = grouped(model, 4)
    clean, _ = grouped(model, 4)
    for tensor in steps.ring.tensors().values():
        if tensor.is_floating_point():
            axis = 1 if tensor.dim() == 5 else 0
            tensor.narrow(axis, 4, tensor.shape[axis] - 4).fill_(torch.nan)
    own = [model.session.fresh_choice(i) for i in range(4)]  # type: ignore[attr-defined]
    for t in range(9):
        chosen = [2, 0, 3]
        read = [model.schema.encode(s, strict=False) for s in states(model.schema, 3, seed + t)]
        bad = replace(read[1], values=np.full_like(read[1].values, np.nan))
        before: list[Any] = [[0.5, 0.5], [np.nan, 0.0], [-0.5, 1.0]]
        got = steps.step(chosen, [read[0], bad, read[2]], before, own)
        assert np.isnan(got["chunk"][1]).all()
        want = group_rows(clean, chosen, read, [before[0], [0.0, 0.0], before[2]], own)
        for name in ("chunk", "following", "expected", "continues", "category_code"):
            assert np.array_equal(got[name][::2], want[name][::2]), name
    for robot in (1, 2, 3):
        assert equal(memory(group, robot), memory(clean, robot))
    assert bool(memory(group, 0)["hidden"].isnan().any())
    group.reset(0)
    assert not any(bool(t.any()) for t in memory(group, 0).values())


def group_rows(group: SessionGroup, *given: Any) -> Mapping[str, Any]:
    rows: Mapping[str, Any] = group._steps.step(*given)
    return rows


def test_no_row_steps_a_robot_that_another_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(seed)
    group, steps = grouped(model, 16)
    monkeypatch.setattr(CudaGraphExecutor, "replay", lambda executor: None)
    for count in range(1, 17):
        chosen = np.random.default_rng(seed + count).permutation(16)[:count].tolist()
        group.step(states(model.schema, count, seed), robots=chosen)
        rows = next(r for r in steps.rows if r >= count)
        robots = steps._states[rows].rows["robots"].tolist()
        assert robots[:count] == chosen and len(set(robots)) == rows
        assert all(16 <= robot < steps.ring.step.shape[0] for robot in robots[count:])


def test_one_robots_memory_can_be_kept_moved_and_forgotten(seed: int) -> None:
    model = model_of(seed)
    group, _ = grouped(model, 3)
    stream = states(model.schema, 12, seed)
    for state in stream[:5]:
        group.step([state, {}], robots=[0, 2])
    kept, third = group.snapshot(0), memory(group, 2)
    model.restore(kept)
    group.restore(1, kept)
    for state in stream[5:8]:
        pair = group.step([state, state], robots=[1, 0])
        assert same(pair[0], pair[1]) and same(pair[0], model.step(state))
    assert equal(memory(group, 2), third)
    kept, first = group.snapshot(1), memory(group, 0)
    group.reset(1)
    assert equal(memory(group, 0), first) and equal(memory(group, 2), third)
    fresh = model.fork()
    fresh.reset()
    after = group.step([stream[8], stream[8]], robots=[1, 0])
    assert same(after[0], fresh.step(stream[8])) and not same(after[0], after[1])
    group.restore(1, kept)
    model.restore(kept)
    assert same(group.step([stream[9]], robots=[1])[0], model.step(stream[9]))
    with pytest.raises(UsageError, match="belongs to another model"):
        group.restore(0, model_of(seed + 1).snapshot())


def test_drawn_actions_are_each_robots_own(seed: int) -> None:
    options: dict[str, Any] = {"action_noise": 0.2, "sample": True}
    checkpoint = tiny(seed, window=7, past=3)
    model, made = model_of(checkpoint, graph="auto", seed=5, **options), Backends()
    group, _ = grouped(model, 3, graph="auto", backend=made)
    alone = [model_of(checkpoint, seed=5 + i, **options) for i in range(3)]
    for t, chosen in enumerate([[0, 1, 2], [2, 0], [1], [2, 1, 0]]):
        (state,) = states(model.schema, 1, seed + t)
        together = group.step([state] * len(chosen), robots=chosen)
        for step, i in zip(together, chosen, strict=True):
            assert same(step, alone[i].step(state))
            assert not np.array_equal(step.action, step.chunk[0])
    report = group.report()
    assert not report.graph and "drawn between two halves" in report.graph_reason
    assert len(made.made) == 3 and not any("capture" in one.log for one in made.made)
    with pytest.raises(UnsupportedError, match="graph=on cannot be had: the action is drawn"):
        group_of(model, 3, graph="on")


def test_a_refused_capture_is_loud_if_it_was_asked_for(seed: int) -> None:
    model = model_of(seed)
    with pytest.raises(
        UnsupportedError, match=r"a step of 1 of 3 robots: graph=on cannot be had: a"
    ):
        group_of(model, 3, graph="on")  # a CPU has no graphs
    with pytest.raises(UnsupportedError, match=r"a step of 2 of 3 robots: .*no room for a graph"):
        group_of(model, 3, graph="on", backend=Backends(refuses=1))
    group, _ = grouped(model, 3, graph="auto", backend=Backends(refuses=1))
    report = group.report()
    assert not report.graph and "no room for a graph" in report.graph_reason
    assert model.session.group(2).resolved[1].reason == "switched off"  # type: ignore[attr-defined]
    plain, _ = grouped(model, 3)
    for chosen in ([0, 2], [1], [0, 1, 2]):
        given = states(model.schema, len(chosen), seed)
        pairs = zip(*(g.step(given, robots=chosen) for g in (group, plain)), strict=True)
        assert all(same(a, b) for a, b in pairs)


def test_a_session_hands_its_graph_mode_on(seed: int) -> None:
    model = model_of(seed, graph="auto")
    report = SessionGroup(model, 2).report()
    assert not report.graph and report.graph_reason == model.session._step.resolved.reason  # type: ignore
    assert report.executor == "triton" and report.robots == 2 and report.rows == (1, 2)
    assert report.kernels == model.report().kernels
    ring = model.session.ring.nbytes
    assert report.bytes["ring"] == 2 * ring and report.bytes["workspace"] > 0
    assert SessionGroup(model, 16).report().bytes["ring"] == 19 * ring
    session = model.session
    session.capture("on", TapeBackend(session.state.buffers))  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="a step of 1 of 2 robots: graph=on cannot be had"):
        SessionGroup(model, 2)
    assert json.loads(json.dumps(report.to_json()))["ran"] == {"1": 0, "2": 0}


def test_after_a_fault_of_the_device_nobody_steps(seed: int) -> None:
    """The memory is of all, and what it holds is unknown."""
    model, made = model_of(seed), Backends()
    group, _ = grouped(model, 3, graph="on", backend=made)
    group.step([{}], robots=[1])
    tape = made.made[1].tape
    assert tape is not None
    tape.fault = "CUDA error: an illegal memory access was encountered"
    with pytest.raises(DeviceError, match="illegal memory access"):
        group.step([{}, {}], robots=[0, 2])
    for chosen in ([1], [0, 2], [0, 1, 2]):
        with pytest.raises(DeviceError, match="no more steps: a step failed"):
            group.step([{}] * len(chosen), robots=chosen)


def test_a_replaced_buffer_is_refused(seed: int) -> None:
    group, steps = grouped(model_of(seed), 2)
    group.step([{}, {}])
    steps.ring.cell = steps.ring.cell.clone()
    with pytest.raises(UsageError, match="static buffer ring cell was replaced"):
        group.step([{}, {}])


def test_what_it_refuses(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(seed)
    for robots in (0, 17):
        with pytest.raises(UsageError, match="1 to 16"):
            group_of(model, robots)
        with pytest.raises(UsageError, match="1 to 16"):
            SessionGroup(model, robots)
    with pytest.raises(UsageError, match="graph 'maybe' is unknown"):
        group_of(model, 2, graph="maybe")
    group = SessionGroup(model, 2)
    with pytest.raises(UsageError, match="3 states for robots"):
        group.step([{}] * 3)
    with pytest.raises(UsageError, match="robots 0 to 1"):
        group.step([{}], robots=[2])

    def full(self: Network, batch: int = 1) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    monkeypatch.setattr(Network, "new_ring", full)
    with pytest.raises(
        OutOfMemoryError, match=r"group of 2 robots: CUDA out of memory.*take fewer"
    ):
        group_of(model, 2)
