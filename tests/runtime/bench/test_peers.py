"""Arms of other runtimes: the chain, the protocol, and what is missing is named."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
import pytest
import torch

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.runtime.bench import peers
from wmrt.runtime.bench.arms import Arm, Missing
from wmrt.runtime.bench.peers import common, torch_bf16
from wmrt.runtime.bench.peers.check import check_layers, distinct, relative_error
from wmrt.runtime.bench.peers.common import Link, Peer, attempt, chain, input_width

#: A trunk of two blocks and a head, as the model's layers are named.
SHAPES = [
    *(
        (f"blocks.{i}.{name}", n, k)
        for i in range(2)
        for name, n, k in (
            ("qkv", 128, 64),
            ("out", 64, 64),
            ("gate_up", 256, 64),
            ("down", 64, 128),
        )
    ),
    ("action_head.hidden", 64, 64),
    ("action_head.out", 32, 64),
]


def test_every_layer_waits_for_an_earlier_one() -> None:
    links = chain(SHAPES)
    assert [link.source for link in links] == [-1, *range(9)]
    assert input_width(links) == 64
    wide = chain([("a", 32, 64), ("b", 8, 96), ("c", 8, 16)])
    assert [link.source for link in wide] == [-1, -1, 0] and input_width(wide) == 96


def test_bad_requests_are_refused() -> None:
    with pytest.raises(UsageError, match="no linear layer"):
        chain([])
    with pytest.raises(UsageError, match=r"'a' has shape \[0, 8\]"):
        chain([("a", 0, 8)])
    with pytest.raises(UsageError, match="tvm"):
        peers.build(SHAPES, 1, ["tvm"])
    for name in peers.PEERS:
        with pytest.raises(UsageError, match="at least 1, got 0"):
            peers.build(SHAPES, 0, [name])


def test_a_peer_is_an_arm_until_it_is_closed() -> None:
    calls: list[str] = []
    arm: Arm = Peer(
        "fake",
        "bf16",
        2,
        10,
        {"error": {}},
        lambda: calls.append("step"),
        lambda: calls.append("close"),
    )
    arm.step()
    arm.step()
    assert (arm.name, arm.recipe, arm.threads, arm.read_bytes) == ("fake", "bf16", 2, 10)
    assert {arm: 1}[arm] == 1
    arm.close()
    arm.close()
    assert calls == ["step", "step", "close"]
    with pytest.raises(UsageError, match="closed"):
        arm.step()


def test_a_peer_that_fails_says_why() -> None:
    def fails() -> Arm:
        raise RuntimeError("no such\n  kernel")

    assert attempt("x", fails) == Missing("x", "RuntimeError: no such kernel")


@pytest.mark.parametrize("name", sorted(peers.PEERS.keys() - {"torch"}))
def test_what_is_not_installed_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def absent(module: str) -> object:
        if not module.startswith("wmrt."):
            raise ImportError(f"No module named {module!r}")
        return real(module)

    monkeypatch.setattr(importlib, "import_module", absent)
    arms = peers.build(SHAPES, 1, [name])
    assert arms
    for arm in arms:
        assert isinstance(arm, Missing) and "pip install 'wmrt[peers]'" in arm.reason


def test_random_weights_keep_the_size_of_a_vector(seed: int) -> None:
    # |W x|^2 / |x|^2 has mean N/K = 1; 2^18 products of bounded numbers hold it within 10%.
    link = Link(seed, "any", 512, 512, -1)
    codes = common.random_codes(link)
    levels = np.stack([codes & 15, codes >> 4], -1).reshape(512, -1, 32).astype(float) - 8
    weight = (levels * common.random_scales(link, 32)[..., None]).reshape(512, 512)
    x = np.random.default_rng(seed).standard_normal(512) + 1
    assert 0.8 < np.linalg.norm(weight @ x) / np.linalg.norm(x) < 1.2
    assert (codes == common.random_codes(link)).all()


def test_relative_error() -> None:
    assert relative_error(np.array([3.0, 4.0]), np.array([3.0, 4.0])) == 0
    assert relative_error(np.array([3.0, 5.0]), np.array([3.0, 4.0])) == pytest.approx(0.2)
    for wrong in ([3.0], [3.0, np.nan]):
        assert relative_error(np.array(wrong), np.array([3.0, 4.0])) == np.inf


def test_check_finds_a_wrong_layer(seed: int) -> None:
    links = chain(SHAPES)
    assert [link.name for link in distinct(links)] == [s[0] for s in [*SHAPES[:4], SHAPES[-1]]]
    rng = np.random.default_rng(seed)
    weights = {link.index: rng.standard_normal((link.n, link.k)) for link in links}

    def run(bad: int) -> Callable[[Link, np.ndarray], np.ndarray]:
        def one(link: Link, x: np.ndarray) -> np.ndarray:
            y = weights[link.index] @ x[0]
            return np.roll(y, 1) if link.index == bad else y

        return one

    def exact(link: Link) -> np.ndarray:
        return weights[link.index]

    errors = check_layers(links, run(-1), exact, 1e-12)
    assert errors.keys() == {"128x64", "64x64", "256x64", "64x128", "32x64"}
    with pytest.raises(UnsupportedError, match=r"blocks\.0\.down differs from float64"):
        check_layers(links, run(3), exact, 0.1)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **options: object) -> object:
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch, "compile", fails)


@pytest.mark.usefixtures("no_compiler")
def test_torch_eager_runs_and_a_failed_compilation_is_named() -> None:
    threads = torch.get_num_threads()
    eager, compiled = peers.build(SHAPES, threads + 1, ["torch"])
    assert compiled == Missing(torch_bf16.COMPILED, "RuntimeError: no C++ compiler")
    assert not isinstance(eager, Missing)
    assert eager.read_bytes == 2 * sum(n * k for _, n, k in SHAPES)
    assert eager.threads == threads + 1 and eager.detail["versions"]["torch"] != "unknown"
    assert 0 < max(eager.detail["error"].values()) <= torch_bf16.LIMIT
    eager.step()
    assert torch.get_num_threads() == threads
    eager.close()


@pytest.mark.usefixtures("no_compiler")
def test_torch_arms_share_their_weights() -> None:
    links = tuple(chain(SHAPES))
    weights = torch_bf16.Weights(links)
    torch_bf16._shared[links] = weights
    one, *_ = torch_bf16.build(SHAPES, 1)
    assert torch_bf16._shared[links] is weights
    assert isinstance(one, Peer)
    one.close()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_torch_compiles_more_chains_than_its_limit() -> None:
    for threads in (1, 2):
        for arm in torch_bf16.build(SHAPES, threads):
            assert not isinstance(arm, Missing), arm
            arm.step()
            arm.close()
