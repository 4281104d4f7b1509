"""One place that says how operators are launched, for a device and for a variant that is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.kernels.fused import HOW
from wmrt.kernels.triton import launchers, norm, ops_decode, ops_fused, ops_heads, ops_state
from wmrt.kernels.triton.launchers import LAUNCHERS, function_of, on_cuda

MODULES = (ops_decode, ops_fused, ops_heads, ops_state)


def test_every_operator_of_a_step_has_a_launcher() -> None:
    assert LAUNCHERS.keys() == {name for module in MODULES for name in module.LAUNCHES}


def test_a_function_gets_the_arguments_and_what_matters_of_the_variant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    monkeypatch.setattr(norm, "rms_norm_to", lambda *a, dependent: calls.append((a, dependent)))
    launch = function_of("norm", "rms_norm_to")
    launch(HOW, 1, 2)
    launch(replace(HOW, dependent=True), 3)
    assert calls == [((1, 2), False), ((3,), True)]


def test_on_cuda_the_device_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(launchers, "_known", {})
    monkeypatch.setattr(launchers, "chosen", lambda device: f"variant of {device}")
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.inference_mode())
    run = on_cuda("something", lambda how, *given: calls.append((how, given)))
    x = torch.zeros(1)
    run(x, 2)
    assert calls == [("variant of cpu", (x, 2))] and set(launchers._known) == {"something"}
