"""The fused step against the network: the reference of every operator on the CPU, whole steps and
sessions; what the kernels compute is tests/kernels/triton's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.networks import schemas
from tests.runtime.models import PACKING, eager, states, tiny
from tests.runtime.tape import TapeBackend
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton.variants import variant
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.network import Network
from wmrt.runtime import WorldModel
from wmrt.runtime.build import build_network
from wmrt.runtime.session import Session
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_session import TritonSession
from wmrt.runtime.triton_state import ALL, TritonState

CPU = torch.device("cpu")


def network_of(checkpoint: Checkpoint, recipe: str = "nvfp4") -> Network:
    return build_network(checkpoint, recipe, CPU).network


def encoded(network: Network, count: int, seed: int) -> list[tuple[Any, Any, Any]]:
    rng = np.random.default_rng(seed)
    found = []
    for state in states(network.schema, count, seed):
        read = network.schema.encode(state, strict=False)
        action = rng.uniform(-1, 1, len(network.actions)).astype(np.float32)
        found.append((read.codes, read.values, action))
    return found


def write(state: TritonState, inputs: Sequence[tuple[Any, Any, Any]]) -> None:
    for row, (codes, values, action) in enumerate(inputs):
        state.rows["codes"][row], state.rows["values"][row] = codes, values
        state.rows["previous"][row] = action


def close(name: str, got: torch.Tensor, want: torch.Tensor, share: float) -> None:
    """In the mean square: an int8 code that tips over moves a sum by a hundredth of a group."""
    if not want.numel():
        return
    scale = float(want.double().square().mean().sqrt().clamp(min=1e-3))
    off = float((got.double() - want.double()).square().mean().sqrt())
    assert off <= share * scale, f"{name}: off by {off / scale:.1e} of its size"


@pytest.mark.parametrize("recipe", PACKING)
@torch.inference_mode()
def test_steps_are_the_networks(recipe: str, seed: int) -> None:
    """19 steps, past the ring's 16; each from the same ring, so that no difference grows."""
    network = network_of(tiny(seed), recipe)
    state, session = TritonState(network, TritonModel(network)), Session(network)
    for inputs in encoded(network, 19, seed):
        write(state, [inputs])
        state.run()
        out = session.step(*inputs)
        arrays = state.arrays
        close("hidden", arrays["hidden"], out.hidden, 0.05)
        close("logits", arrays["logits"], out.logits, 0.05)
        for name, tensor in vars(out.prediction).items():
            mine = getattr(state.prediction, name)
            assert mine.shape == tensor.shape
            close(name, mine, tensor, 0.05)
        for name, tensor in session.ring.tensors().items():
            mine = state.ring.tensors()[name]
            close(name, mine, tensor, 0.05)
            tensor.copy_(mine)


@pytest.mark.parametrize("changes", [{"past": 0}, {"past": 15}, {"selector": "full"}, {"ffn": 96}])
@torch.inference_mode()
def test_other_sizes(changes: dict[str, Any], seed: int) -> None:
    network = network_of(tiny(seed, **changes))
    state, session = TritonState(network, TritonModel(network)), Session(network)
    for inputs in encoded(network, 4, seed):
        write(state, [inputs])
        state.run()
        close("hidden", state.arrays["hidden"], session.step(*inputs).hidden, 0.08)


@pytest.mark.parametrize("shape", schemas())
def test_every_kind_of_schema(shape: str, seed: int) -> None:
    checkpoint = tiny(seed, schemas()[shape])
    mine, theirs = sessions(checkpoint)
    for inputs in encoded(mine.network, 3, seed):
        mine.step(*inputs)
        theirs.step(*inputs)
        (q, reward, proceed), (q2, reward2, proceed2) = mine.consequences(), theirs.consequences()
        assert q.shape == q2.shape and abs(proceed - proceed2) < 0.05
        assert abs(reward - reward2) < 0.1


def sessions(checkpoint: Checkpoint, **options: Any) -> tuple[TritonSession, Session]:
    network = network_of(checkpoint)
    mine = TritonSession(network, TritonModel(network), **options)
    mine.capture("off")
    return mine, Session(network, **options)


@torch.inference_mode()
def test_robots_of_one_step_do_not_touch_one_another(seed: int) -> None:
    """NaN in one of three; torch's matrix products round otherwise for three than for one."""
    network = network_of(tiny(seed))
    model = TritonModel(network)
    alone, three = TritonState(network, model), TritonState(network, model, 3)
    stream = encoded(network, 12, seed)
    for step in range(4):
        write(three, stream[3 * step : 3 * step + 3])
        three.rows["values"][2] = np.nan
        write(alone, [stream[3 * step + 1]])
        three.run()
        alone.run()
        close("hidden", three.arrays["hidden"][1], alone.arrays["hidden"][0], 0.05)
        assert np.isnan(three.rows["chunk"][2]).all() and np.isfinite(three.rows["chunk"][:2]).all()


def test_a_captured_session_answers_as_an_eager_one(seed: int) -> None:
    network = network_of(tiny(seed))
    model = TritonModel(network)
    plain, captured = TritonSession(network, model), TritonSession(network, model)
    assert not plain.capture("off").used
    backend = TapeBackend(captured.state.buffers)
    assert captured.capture("on", backend).used
    for inputs in encoded(network, 20, seed):
        a, b = plain.step(*inputs), captured.step(*inputs)
        assert torch.equal(a.hidden, b.hidden) and torch.equal(a.chunk, b.chunk)
        assert plain.consequences()[0].tolist() == captured.consequences()[0].tolist()
    assert backend.tape is not None and backend.tape.replays > 20


def test_a_replay_is_compared_with_launches_in_turn(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof's step is the only one without dependent launches; where it differs, no graph."""
    network = network_of(tiny(seed))
    session = TritonSession(network, TritonModel(network))
    state, seen, off = session.state, [], 0.0
    compute = state.compute

    def computed(stages: int = ALL) -> None:
        seen.append(variant(90).dependent)
        compute(stages)
        if not seen[-1]:
            state.arrays["action"].add_(off)

    monkeypatch.setattr(state, "compute", computed)
    assert session.capture("on", TapeBackend(state.buffers)).used
    assert seen.count(False) == 1 and seen[0] and seen[-1] is False
    off = 1.0
    again = session.capture("auto", TapeBackend(state.buffers))
    assert not again.used and "differs from an eager step in got" in again.reason


def test_a_replaced_buffer_is_refused(seed: int) -> None:
    network = network_of(tiny(seed))
    session = TritonSession(network, TritonModel(network))
    session.capture("on", TapeBackend(session.state.buffers))
    session.ring.hidden = session.ring.hidden.clone()
    with pytest.raises(UsageError, match="static buffer ring hidden was replaced"):
        session.step(*encoded(network, 1, seed)[0])


def test_an_eager_session_can_be_captured_too(seed: int) -> None:
    """bf16, which has no fused step."""
    network = network_of(tiny(seed), "bf16")
    plain, captured = Session(network), Session(network)
    backend = TapeBackend(captured.ring.tensors())
    assert captured.capture("on", backend).used
    for inputs in encoded(network, 20, seed):
        a, b = plain.step(*inputs), captured.step(*inputs)
        assert torch.equal(a.hidden, b.hidden) and torch.equal(a.action, b.action)
        assert plain.consequences()[0].tolist() == captured.consequences()[0].tolist()


@torch.inference_mode()
def test_imagination_and_copies(seed: int) -> None:
    mine, theirs = sessions(tiny(seed))
    for inputs in encoded(mine.network, 5, seed):
        mine.step(*inputs)
        theirs.step(*inputs)
    generator = torch.Generator().manual_seed(seed)
    plan = torch.rand(18, 3, 2, generator=generator) * 2 - 1
    a, b = mine.imagine(plan), theirs.imagine(plan)
    assert a.q.shape == b.q.shape and np.abs(a.proceed - b.proceed).max() < 0.1
    alone = mine.imagine(plan[16:])  # what a sequence gives does not depend on the others
    assert np.array_equal(alone.q, a.q[16:]) and np.array_equal(alone.reward, a.reward[16:])
    other = mine.fresh()
    for name, tensor in other.ring.tensors().items():
        tensor.copy_(mine.ring.tensors()[name])
    other.take(mine)
    assert other.consequences()[1:] == mine.consequences()[1:]
    inputs = encoded(mine.network, 1, seed + 1)[0]
    assert torch.equal(other.step(*inputs).hidden, mine.step(*inputs).hidden)


def test_drawn_actions_are_what_is_predicted_from(seed: int) -> None:
    mine, theirs = sessions(tiny(seed), action_noise=0.3, seed=seed)
    mine.capture("auto")
    for inputs in encoded(mine.network, 5, seed):
        a, b = mine.step(*inputs), theirs.step(*inputs)
        assert not torch.equal(a.action[0], a.chunk[0, 0])
        close("action", a.action, b.action, 0.1)
        close("reward", a.prediction.reward, b.prediction.reward, 0.1)
    with pytest.raises(UnsupportedError, match="the action is drawn between two halves of a step"):
        mine.capture("on")


@torch.inference_mode()
def test_what_a_layer_adds_reaches_the_end(seed: int) -> None:
    network = network_of(tiny(seed, layers=3))
    inputs = encoded(network, 1, seed)[0]

    def hidden(model: TritonModel) -> torch.Tensor:
        state = TritonState(network, model)
        write(state, [inputs])
        state.run()
        return state.arrays["hidden"].clone()

    whole = hidden(TritonModel(network))
    for layer in range(3):
        for part in ("out", "down"):
            model = TritonModel(network)
            matrix = getattr(model.layers[layer], part)
            gone = matrix._replace(lane_scales=torch.zeros_like(matrix.lane_scales))
            object.__setattr__(model.layers[layer], part, gone)
            assert not torch.equal(hidden(model), whole), (layer, part)


def test_what_it_refuses(seed: int) -> None:
    checkpoint = tiny(seed)
    with pytest.raises(UnsupportedError, match=r"executor=triton cannot be had: it runs on a CUDA"):
        WorldModel.from_checkpoint(checkpoint, recipe="nvfp4", executor="triton")
    with pytest.raises(UsageError, match="executor=triton leave it at auto"):
        WorldModel.from_checkpoint(checkpoint, executor="triton", pages="huge")
    with pytest.raises(UsageError, match="executor=triton has none"):
        WorldModel.from_checkpoint(checkpoint, executor="triton", cpus=[0])
    for recipe, held in (("bf16", "bf16 with bf16"), ("nvfp4-a16", "nvfp4 with bf16")):
        with pytest.raises(UnsupportedError, match=f"blocks.0.qkv is {held}; the fused step"):
            TritonModel(network_of(checkpoint, recipe))
    with pytest.raises(UnsupportedError, match="random"):
        TritonModel(network_of(tiny(seed, selector="random")))
    network = network_of(checkpoint)
    with pytest.raises(UsageError, match="robots=17: 1 to 16"):
        TritonState(network, TritonModel(network), 17)
    assert eager(checkpoint).report().resolved["executor"] == "eager"
