"""Weight lists of the GPU's step up to the trunk."""

from __future__ import annotations

import pytest
import torch

from tests.kernels import state_oracle as oracle
from wmrt.core.errors import UnsupportedError
from wmrt.kernels.state_arguments import FusionSizes, FusionWeights, SelectorWeights
from wmrt.model.schema import StateSchema, numeric
from wmrt.runtime.gpu_weights_state import fusion_weights, selector_weights

MATRICES = {
    *("fields", "first", "second", "out", "memory", "action_in", "action_table"),
    *("lstm_in", "lstm_hidden", "query", "key"),
}


def named(net: object) -> dict[str, torch.Tensor]:
    fusion = FusionWeights(*fusion_weights(net)[0])  # type: ignore[arg-type]
    selector = SelectorWeights(*selector_weights(net))  # type: ignore[arg-type]
    return {**fusion._asdict(), **selector._asdict()}


@pytest.mark.parametrize("narrow", [True, False])
def test_matrices_are_bfloat16_where_that_loses_nothing(narrow: bool, seed: int) -> None:
    net = oracle.network(seed, narrow=narrow)
    tensors = named(net)
    assert all(t.is_contiguous() and not t.requires_grad for t in tensors.values())
    for name, tensor in tensors.items():
        if name in MATRICES:
            assert tensor.dtype == (torch.bfloat16 if narrow else torch.float32), name
        else:
            assert tensor.dtype in (torch.float32, torch.int32), name
    assert torch.equal(tensors["first"].float(), net.fusion.mlp[0].weight)
    assert torch.equal(tensors["memory"].float(), net.fusion.memory.table)


def test_what_is_stored_in_bfloat16_is_not_copied(seed: int) -> None:
    net = oracle.network(seed).bfloat16()
    tensors = named(net)
    assert tensors["memory"].data_ptr() == net.fusion.memory.table.data_ptr()
    assert tensors["lstm_hidden"].data_ptr() == net.selector.lstm.weight_hh.data_ptr()


def test_sizes_are_those_of_the_network(seed: int) -> None:
    net = oracle.network(seed)
    assert fusion_weights(net)[1] == list(FusionSizes(5, 6, 34, 40, 24, 100, 61, 3, 2, 5, 10))


def test_multipliers_keep_their_low_bits(seed: int) -> None:
    net = oracle.network(seed)
    low = named(net)["multipliers"].long() & 0xFFFFFFFF
    assert torch.equal(low, net.fusion.memory.multipliers & 0xFFFFFFFF)


def test_random_selection_is_unsupported(seed: int) -> None:
    net = oracle.network(seed, selector="random")
    with pytest.raises(UnsupportedError, match=r"selector 'random' .* executor=eager"):
        selector_weights(net)


def test_cells_beyond_32_bits_are_unsupported(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"x": numeric("m", 0, 100, decimals=2, buckets=4096)}
    monkeypatch.setattr(oracle, "schema", lambda _: StateSchema(fields, neutral=[0.0, 0.0]))
    assert fusion_weights(oracle.network(seed, table_cells=2**19 - 1))
    with pytest.raises(UnsupportedError, match="4096 buckets with 524288 cells"):
        fusion_weights(oracle.network(seed, table_cells=2**19))
