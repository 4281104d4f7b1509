"""Channels that could only ever agree are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.control.support import Bench, FakePolicy, answer, constant
from wmrt.control import Channel
from wmrt.core.errors import SafetyError


class Model(FakePolicy):
    """What identifies a `WorldModel`."""

    def __init__(self, weights: str, recipe: str) -> None:
        super().__init__(lambda state, previous: answer([0.0, 0.0]))
        self.weights_sha256 = weights * 64
        self.recipe = SimpleNamespace(name=recipe, to_json=lambda: {"weights": recipe})
        self.report = lambda: SimpleNamespace(resident_bytes=1_000)


def test_channels_that_always_agree_are_refused() -> None:
    def rule(state: Any, previous: Any) -> Any:
        return (0.0, 0.0)

    plain = FakePolicy(rule)
    running, twin = Model("a", "nvfp4"), Model("a", "nvfp4")
    other, earlier = Model("a", "bf16"), Model("b", "nvfp4")
    for channels, named in (
        (
            [Channel.from_policy("twin", twin), Channel("rule", rule)],
            "'twin' and 'the running model'",
        ),
        ([Channel.from_policy("self", running), Channel("rule", rule)], "'self' and 'the running"),
        (
            [Channel.from_policy("x", other), Channel.from_policy("y", Model("a", "bf16"))],
            "'y' and 'x' are both the weights a{16} in bf16",
        ),
        (
            [Channel("x", other.step), Channel("y", Model("a", "bf16").step)],
            "'y' and 'x' are both the weights",
        ),
        (
            [Channel.from_policy("x", plain), Channel.from_policy("y", plain)],
            "'y' and 'x' are both one FakePolicy",
        ),
    ):
        with pytest.raises(SafetyError, match=named):
            Bench(running, channels=channels)
    Bench(running, channels=[Channel.from_policy("x", other), Channel.from_policy("y", earlier)])


def test_the_memory_of_a_channel_is_told() -> None:
    channels = [
        Channel.from_policy("other", Model("a", "bf16")),
        Channel("rule", lambda s, p: (0, 0)),
    ]
    report = Bench(Model("a", "nvfp4"), channels=channels).controller.stats()["channels"]
    assert [report[name]["resident_bytes"] for name in ("other", "rule")] == [1_000, None]


def test_the_running_policys_own_method_is_no_second_opinion() -> None:
    policy = constant(0.1, 0.1)
    with pytest.raises(SafetyError, match="'a' and 'the running model' are both one FakePolicy"):
        Bench(policy, channels=[Channel("a", policy.step), Channel("b", lambda s, p: p)])
