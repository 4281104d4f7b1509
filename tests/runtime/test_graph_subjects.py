"""The eager step on a fake GPU: what it launches, and that nothing in it breaks a capture."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from wmrt.model.checkpoint import Checkpoint, load_checkpoint
from wmrt.model.config import ModelConfig, preset
from wmrt.quant import get_recipe
from wmrt.runtime.fake_cuda import fake_cuda
from wmrt.runtime.graph_faults import ALLOCATION, CHANCE
from wmrt.runtime.graph_lint import lint
from wmrt.runtime.graph_subjects import eager_subject


@pytest.fixture(scope="module")
def like() -> Checkpoint:
    return load_checkpoint("highway")


def config(**changes: object) -> ModelConfig:
    return replace(preset("tiny"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4", "mxfp4", "w4a8", "nvfp4-a16"])
@pytest.mark.parametrize("batch", [1, 3])
def test_only_allocations_stand_against_it(recipe: str, batch: int, like: Checkpoint) -> None:
    sizes = config()
    report = lint(
        lambda: eager_subject(like.schema, sizes, like.actions, get_recipe(recipe), batch)
    )
    assert report.capturable and not report.clean
    assert {fault.kind for fault in report.faults} == {ALLOCATION}
    assert all(fault.where.startswith(("wmrt/", "kernels/")) for fault in report.faults)
    gemvs = sum(n for name, n in report.launches.items() if name.startswith("wmrt::gemv_"))
    assert gemvs == (0 if recipe == "bf16" else 4 * sizes.layers)


def test_a_random_selector_draws_from_a_generator_that_nobody_named(like: Checkpoint) -> None:
    sizes, bf16 = config(selector="random"), get_recipe("bf16")
    report = lint(lambda: eager_subject(like.schema, sizes, like.actions, bf16))
    assert CHANCE in {fault.kind for fault in report.faults} and not report.capturable


def test_a_value_read_in_the_step_is_found(
    like: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wmrt.model.network import Network

    right = Network.step

    def wrong(self: Network, codes: torch.Tensor, *rest: object) -> torch.Tensor:
        if codes.sum().item() > 0:
            pass
        return right(self, codes, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Network, "step", wrong)
    sizes = config()
    report = lint(lambda: eager_subject(like.schema, sizes, like.actions, get_recipe("nvfp4")))
    assert report.complete and not report.capturable
    assert "test_graph_subjects.py" in report.faults[0].where


def test_the_largest_preset_takes_no_memory(like: Checkpoint) -> None:
    with fake_cuda(), torch.no_grad():
        subject = eager_subject(like.schema, preset("1.3b"), like.actions, get_recipe("nvfp4"))
        assert subject.buffers["ring.keys"].shape == (24, 1, 64, 4, 128)
        assert {t.device.type for t in subject.buffers.values()} == {"cuda"}
