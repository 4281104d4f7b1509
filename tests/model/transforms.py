"""What a transform of a network may change: nothing but rounding, and how much that is."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from tests.model.networks import build, stream
from wmrt.model.network import Network

#: Transforms round each weight at most log2(256) + 2 times and each activation a few times more, by
#: 2^-24 of the length of what is summed. Sixteen of those on every weight bound it.
NOISE = 16 * 2.0**-24


def smooth_network(seed: int, **changes: object) -> Network:
    """A float network without a jump: every past state is read, through its gate. Norms are not 1,
    so that folding them does something."""
    network = build(seed, past=15, **changes)  # tiny's window is 16
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("norm.weight") and "fusion" not in name:
                parameter.copy_(0.25 + torch.rand(parameter.shape, generator=generator) * 2)
    return network


Outputs = dict[str, Tensor]


@torch.no_grad()
def outputs(network: Network, seed: int, steps: int = 40) -> Outputs:
    """Logits of both heads over a sequence, and over the ring for as many steps: past its end."""
    codes, values, previous = stream(network, 2, steps, seed)
    hidden, _ = network(codes, values, previous)
    ring, states = network.new_ring(2), []
    for t in range(steps):
        states.append(network.step(codes[:, t], values[:, t], previous[:, t], ring))
    assert steps > 2 * network.config.window
    found = {}
    for name, x in (("sequence", hidden), ("ring", torch.stack(states, 1))):
        found[f"{name} actions"] = network.action_head(x)
        prediction = network.predict(x, previous)
        for part in ("change", "missing", "category", "reward", "proceed"):
            found[f"{name} {part}"] = getattr(prediction, part)
    return found


def same_function(network: Network, change: Callable[[Network], object], seed: int) -> None:
    """Assert that ``change`` keeps every output within 8 times what `NOISE` on the weights does.

    One draw of the noise is one sample of a sum of many small terms; 8 of its RMS is far outside
    what another draw gives, and a wrong sign or index is thousands of times that.
    """
    before = outputs(network, seed)
    noisy = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in noisy.parameters():
            draw = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(1 + NOISE * draw)
    rounding = outputs(noisy, seed)
    change(network)
    after = outputs(network, seed)
    for name, expected in before.items():
        allowed = 8 * float((rounding[name] - expected).square().mean().sqrt())
        found = float((after[name] - expected).square().mean().sqrt())
        assert found <= allowed, f"{name} moved by {found:g}, rounding moves it by {allowed / 8:g}"
        assert float(expected.std()) > 1000 * allowed, f"{name} says nothing"
