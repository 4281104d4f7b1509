"""One trunk layer against its formulas written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wmrt.model.config import ModelConfig, preset
from wmrt.model.linear import Linear
from wmrt.model.rope import rope_table, turn_increments
from wmrt.model.transition import NEG_INF, Selection
from wmrt.model.trunk import RMS_EPS, Block, RMSNorm

CONFIG = preset("tiny").with_(dropout=0.0, heads=4, kv_heads=2, head_dim=16)


def block_of(config: ModelConfig, seed: int) -> Block:
    torch.manual_seed(seed)
    block = Block(config).eval()
    with torch.no_grad():
        for norm in (block.attention_norm, block.mlp_norm):
            norm.weight.normal_(1.0, 0.3)
    return block


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + RMS_EPS) * weight


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def by_hand(
    block: Block,
    x: np.ndarray,
    past: np.ndarray,
    bias: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
) -> np.ndarray:
    """One state x[d] over the states past[n, d] (oldest first) with logit bias[n]; float64."""
    p = {name: w.detach().double().numpy() for name, w in block.named_parameters()}
    heads, kv, hd = block.heads, block.kv_heads, block.head_dim
    rows = np.concatenate([past, x[None]])
    projected = rms(rows, p["attention_norm.weight"]) @ p["qkv.weight"].T
    projected = projected.reshape(len(rows), heads + 2 * kv, hd)
    attended = np.zeros((heads, hd))
    for head in range(heads):
        shared = heads + head // (heads // kv)  # query heads share a key head, in order
        q = rotated(projected[-1, head], cos[-1], sin[-1])
        keys = np.stack([rotated(projected[n, shared], cos[n], sin[n]) for n in range(len(rows))])
        logits = keys @ q / np.sqrt(hd) + np.append(bias, 0.0)
        weights = np.exp(logits - logits.max())
        attended[head] = (weights / weights.sum()) @ projected[:, shared + kv]
    y = x + attended.reshape(-1) @ p["out.weight"].T
    gate, up = np.split(rms(y, p["mlp_norm.weight"]) @ p["gate_up.weight"].T, 2)
    return y + (gate / (1 + np.exp(-gate)) * up) @ p["down.weight"].T


def test_rms_norm(seed: int) -> None:
    torch.manual_seed(seed)
    norm = RMSNorm(48)
    norm.weight.data.normal_()
    x = 100 * torch.randn(6, 48)
    expected = rms(x.double().numpy(), norm.weight.detach().double().numpy())
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=2e-6, atol=2e-6)
    assert torch.equal(norm(torch.zeros(1, 48)), torch.zeros(1, 48))


def test_step_and_sequence_equal_the_formulas(seed: int) -> None:
    block, steps, n = block_of(CONFIG, seed), 9, CONFIG.window
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, steps, CONFIG.d_model, generator=generator)
    cos, sin = rope_table(torch.arange(steps), turn_increments(8, 1000.0))
    bias = torch.full((1, steps, steps), NEG_INF)
    bias.masked_fill_(torch.ones(steps, steps).tril().bool(), 0.0)
    gate = -torch.rand(steps - 1, generator=generator)
    gate[2] = NEG_INF  # a slot that was not chosen
    bias[0, -1, :-1] = gate
    expected = by_hand(
        block,
        x[0, -1].double().numpy(),
        x[0, :-1].double().numpy(),
        gate.double().numpy(),
        cos.double().numpy(),
        sin.double().numpy(),
    )
    keys = torch.zeros(1, n, CONFIG.kv_heads, CONFIG.head_dim)
    values = torch.zeros_like(keys)
    with torch.no_grad():
        whole, _, _ = block(x, bias, cos, sin)
        for t in range(steps):
            chosen = Selection(torch.arange(t)[None], gate[None, :t] if t == steps - 1 else
                               torch.zeros(1, t))  # fmt: skip
            slot = torch.tensor([t])
            stepped = block.step(
                x[:, t], keys, values, slot, chosen, cos[t : t + 1], sin[t : t + 1]
            )
    scale = np.abs(expected).max()
    np.testing.assert_allclose(whole[0, -1].numpy(), expected, rtol=0, atol=3e-6 * scale)
    np.testing.assert_allclose(stepped[0].numpy(), expected, rtol=0, atol=3e-6 * scale)


def test_step_writes_one_slot_and_reads_only_the_chosen(seed: int) -> None:
    block, n = block_of(CONFIG, seed), CONFIG.window
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(2, n, CONFIG.kv_heads, CONFIG.head_dim, generator=generator)
    values = torch.randn(keys.shape, generator=generator)
    x = torch.randn(2, CONFIG.d_model, generator=generator)
    cos, sin = rope_table(torch.tensor([70, 5]), turn_increments(8, 1000.0))
    slot = torch.tensor([6, 5])
    chosen = Selection(torch.tensor([[1, 2, 3, 9], [0, 1, 2, 3]]), torch.zeros(2, 4))
    chosen.bias[1, 3] = NEG_INF

    def run(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return block.step(x, k, v, slot, chosen, cos, sin)

    new_keys, new_values = keys.clone(), values.clone()
    clean = run(new_keys, new_values)
    changed = (new_keys != keys).flatten(2).any(-1)
    assert changed.nonzero().tolist() == [[0, 6], [1, 5]]
    dirty_keys, dirty_values = keys.clone(), values.clone()
    unread = torch.ones(2, n, dtype=torch.bool)
    unread[0, [1, 2, 3, 9]] = False
    unread[1, [0, 1, 2]] = False  # slot 3 has bias -inf
    dirty_keys[unread], dirty_values[unread] = 1e3, -1e3
    assert torch.equal(clean, run(dirty_keys, dirty_values))
    dirty_values[0, 9] += 1
    assert not torch.equal(clean[0], run(dirty_keys, dirty_values)[0])


def test_a_layer_has_no_biases_and_its_matrices_are_quantizable() -> None:
    block = Block(CONFIG)
    assert not [name for name, _ in block.named_parameters() if name.endswith("bias")]
    matrices = {name for name, p in block.named_parameters() if p.ndim == 2}
    linears = {f"{name}.weight" for name, m in block.named_modules() if isinstance(m, Linear)}
    assert matrices == linears == {f"{n}.weight" for n in ("qkv", "out", "gate_up", "down")}
    assert block.qkv.out_features == CONFIG.qkv_dim == (4 + 2 * 2) * 16


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_acts_in_training_only(dropout: float, seed: int) -> None:
    block = block_of(CONFIG.with_(dropout=dropout), seed)
    x = torch.randn(2, 5, CONFIG.d_model)
    cos, sin = rope_table(torch.arange(5), turn_increments(8, 1000.0))
    bias = torch.zeros(1, 5, 5)
    with torch.no_grad():
        assert torch.equal(block(x, bias, cos, sin)[0], block(x, bias, cos, sin)[0])
        block.train()
        same = torch.equal(block(x, bias, cos, sin)[0], block(x, bias, cos, sin)[0])
    assert same == (dropout == 0.0)
