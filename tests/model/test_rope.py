"""Rotary embedding: exact phases, rotations, and nothing lost after a billion steps."""

from __future__ import annotations

import math

import numpy as np
import torch

from wmrt.model.rope import rope_table, rotate, turn_increments

EPS = torch.finfo(torch.float32).eps
TURN = 1 << 32


def test_increments_are_the_frequencies_in_turns() -> None:
    half, base = 16, 1000.0
    got = turn_increments(half, base).tolist()
    for i, turns in enumerate(got):
        assert abs(turns / TURN - base ** (-i / half) / (2 * math.pi)) <= 0.5 / TURN
    assert got == sorted(got, reverse=True)


def test_table_equals_whole_number_arithmetic(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = [0, 1, 63, 64, TURN - 1, TURN, 10**9, 10**15, *rng.integers(0, 2**62, 20).tolist()]
    increments = turn_increments(8, 1000.0)
    cos, sin = rope_table(torch.tensor(steps), increments)
    assert cos.dtype == sin.dtype == torch.float32
    for row, step in enumerate(steps):
        for column, increment in enumerate(increments.tolist()):
            angle = (step * increment % TURN) * (2 * math.pi / TURN)
            # one rounding to float32 of a value of at most 1; the double's error is far below it
            assert abs(float(cos[row, column]) - math.cos(angle)) <= EPS
            assert abs(float(sin[row, column]) - math.sin(angle)) <= EPS


def test_step_zero_is_the_identity(seed: int) -> None:
    x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(seed))
    cos, sin = rope_table(torch.zeros(3, 1, dtype=torch.int64), turn_increments(8, 1000.0))
    assert torch.equal(rotate(x, cos, sin), x)


def test_rotation_keeps_lengths_of_pairs(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 16, generator=generator)
    steps = torch.randint(1 << 40, (20,), generator=generator)
    y = rotate(x, *rope_table(steps, turn_increments(8, 1000.0)))
    before = x[:, :8].square() + x[:, 8:].square()
    after = y[:, :8].square() + y[:, 8:].square()
    torch.testing.assert_close(after, before, rtol=8 * EPS, atol=8 * EPS)


def test_scores_depend_on_the_distance_alone_at_a_billion_steps(seed: int) -> None:
    increments = turn_increments(32, 1000.0)
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(64, generator=generator), torch.randn(64, generator=generator)

    def score(step: int, age: int) -> float:
        rotated = [
            rotate(x, *rope_table(torch.tensor(s), increments))
            for x, s in ((q, step), (k, step - age))
        ]
        return float(rotated[0].double() @ rotated[1].double())

    scale = float(q.norm() * k.norm())
    differs = []
    for age in (1, 7, 63):
        near, far = score(1000, age), score(10**9 + 1000, age)
        assert abs(near - far) <= 4 * EPS * scale
        differs.append(abs(score(1000, age + 1) - near) > 1e-4 * scale)
    assert any(differs)  # the distance does matter; a single step of it may hardly
