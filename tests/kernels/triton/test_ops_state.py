"""The torch operators of a step up to the trunk: on the CPU the model's own numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.kernels import state_oracle as oracle
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.state_arguments import SelectorWeights, fusion_work, select_work
from wmrt.kernels.triton import interpreter
from wmrt.kernels.triton import ops_state as module
from wmrt.model.network import Network
from wmrt.runtime.gpu_weights_state import fusion_weights, selector_weights

OPS = torch.ops.wmrt


def fusion_arguments(seed: int) -> tuple[Any, ...]:
    net = oracle.network(seed)
    weights, sizes = fusion_weights(net)
    out = torch.zeros(2, 10), torch.zeros(fusion_work(sizes, 2)), torch.zeros(2, 100)
    return (*oracle.states(net, 2, seed), weights, sizes, *out)


def select_arguments(seed: int, kind: str = "learned") -> tuple[Any, ...]:
    net = oracle.network(seed, selector=kind)
    given = oracle.scene(net, [4, 30], seed)
    slots = torch.zeros(2, net.config.past + 1, dtype=torch.int32)
    out = (slots, *(torch.zeros(2, n) for n in (net.config.past + 1, 6, 6)))
    work = torch.zeros(select_work(20, 2))
    return (*given[:3], selector_weights(net), kind, *given[3:], work, *out)


ARGUMENTS = {"state_fusion": fusion_arguments, "transition_select": select_arguments}


@pytest.mark.full  # it loads torch's compiler: 5 s
@pytest.mark.parametrize("name", ARGUMENTS)
def test_torch_accepts_the_registration(name: str, seed: int) -> None:
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    given = ARGUMENTS[name](seed)
    torch.library.opcheck(getattr(OPS, name).default, given, test_utils=checks)
    if name == "transition_select":
        some = (*given, torch.tensor([1, 0], dtype=torch.int32))
        torch.library.opcheck(getattr(OPS, name).default, some, test_utils=checks)


def on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    return [t.to("meta") for t in value] if value and isinstance(value, list) else value


@pytest.mark.parametrize("name", ARGUMENTS)
def test_meta_checks_the_shapes(name: str, seed: int) -> None:
    given = [
        [on_meta(t) for t in value]
        if isinstance(value, list) and isinstance(value[0], torch.Tensor)
        else value
        if isinstance(value, (list, str))
        else on_meta(value)
        for value in ARGUMENTS[name](seed)
    ]
    assert getattr(OPS, name)(*given) is None
    given[-1] = given[-1][:, :-1]
    with pytest.raises(UsageError, match="not contiguous"):
        getattr(OPS, name)(*given)


@pytest.mark.parametrize("which", [*range(len(SelectorWeights._fields)), "slots"])
def test_sizes_are_not_read_off_a_single_number(which: int | str, seed: int) -> None:
    given = list(select_arguments(seed))
    single = torch.tensor(1.0)
    if isinstance(which, int):
        given[3] = [*given[3][:which], single, *given[3][which + 1 :]]
    else:
        given[9] = single.int()
    with pytest.raises(UsageError, match="is a single number"):
        OPS.transition_select(*given)


def test_every_column_has_a_row_of_the_fields(seed: int) -> None:
    given = list(fusion_arguments(seed))
    given[3] = [given[3][0][:0], *given[3][1:]]
    with pytest.raises(UsageError, match="fields is"):
        OPS.state_fusion(*given)


def step(net: Network, ring: Any, given: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """A step of the model: token, action embedding, and the selection that it made."""
    kept: list[Any] = []
    chosen, selector = net.selector.select, net.selector
    action = net.action_embedding(given[2])
    token, _ = net.fusion(*given[:2], action)
    selector.select = lambda *a: kept.append(chosen(*a)) or kept[-1]  # type: ignore
    net.step(*given, ring)
    selector.select = chosen  # type: ignore[method-assign]
    return token, action, kept[0]


@pytest.mark.parametrize("kind", ["learned", "recent", "full"])
def test_on_the_cpu_they_are_the_model_past_the_rings_end(kind: str, seed: int) -> None:
    net = oracle.network(seed, narrow=False, selector=kind)
    ring, mine = net.new_ring(2), net.new_ring(2)
    count = 12 if kind == "full" else net.config.past
    for at in range(30):
        given = oracle.states(net, 2, seed + at)
        fused = oracle.fuse(OPS.state_fusion, net, *given)
        before = oracle.Scene(*([t.clone() for t in (fused.token, fused.action, mine.step)] + [
            t.clone() for t in (mine.hidden, mine.cell, mine.select_keys)
        ]))  # fmt: skip
        got = oracle.select(OPS.transition_select, net, before, kind, count)
        token, action, chosen = step(net, ring, given)
        assert torch.equal(fused.token, token) and torch.equal(fused.action, action)
        for name in ("hidden", "cell", "select_keys"):
            assert torch.equal(getattr(got, name), getattr(ring, name)), name
            getattr(mine, name).copy_(getattr(got, name))
        written = min(at, count)
        assert got.slots[:, 0].tolist() == [at % 13] * 2 and not got.bias[:, 0].any()
        assert torch.equal(got.slots[:, 1 : 1 + written].long(), chosen.slots[:, :written])
        assert torch.equal(got.bias[:, 1:], chosen.bias)
        assert all(len(set(row)) == count + 1 for row in got.slots.tolist())
        mine.step += 1


def test_random_selection_is_unsupported(seed: int) -> None:
    given = list(select_arguments(seed))
    given[4] = "random"
    with pytest.raises(UnsupportedError, match="executor=eager"):
        OPS.transition_select(*given)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_launches_are_what_is_said(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from wmrt.kernels.triton.state_fusion import state_fusion
    from wmrt.kernels.triton.transition_select import transition_select

    launched = []
    monkeypatch.setattr(interpreter, "_run", lambda f, *_, **__: launched.append(f.fn.__name__))
    with interpreter.repaired():
        {"state_fusion": state_fusion, "transition_select": transition_select}[name](
            *ARGUMENTS[name](seed)
        )
    assert len(launched) == module.LAUNCHES[name] and all(n.startswith(name) for n in launched)


def test_on_cuda_what_is_missing_is_told() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here, and nothing is missing")
    with FakeTensorMode():
        x = torch.empty(1, 8, device="cuda")
    for function in module.ON_CUDA.values():
        with pytest.raises(UnsupportedError, match=r"without CUDA|no CUDA device"):
            function(x)


def test_weights_by_name_are_those_of_the_list(seed: int) -> None:
    named = SelectorWeights(*selector_weights(oracle.network(seed)))
    assert named.lstm_hidden.shape == (80, 20) and named.increments.shape == (6,)
