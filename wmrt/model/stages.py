"""The parts of a network that calibration walks through, each opened, transformed, run, packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from wmrt.core.errors import QuantizationError, WmrtError
from wmrt.model.config import ModelConfig
from wmrt.model.folds import block_folds
from wmrt.model.hollow import hollow
from wmrt.model.linear import Linear
from wmrt.model.network import Network
from wmrt.model.rope import rope_table
from wmrt.model.rotation import residual_rotation, rotate_block, rotate_heads, rotate_token
from wmrt.model.trunk import RMS_EPS, Block
from wmrt.quant import QuantizedTensor, Recipe
from wmrt.quant.calibrate import Outputs, Tap
from wmrt.quant.hadamard import Rotation
from wmrt.quant.scaling import Fold


class Windows(Protocol):
    """Calibration inputs: B windows of T steps. codes int[B, T, F], values float32[B, T, F] and
    previous actions float32[B, T, A]."""

    @property
    def codes(self) -> Tensor: ...

    @property
    def values(self) -> Tensor: ...

    @property
    def previous(self) -> Tensor: ...


@dataclass(frozen=True)
class Stream:
    """What one layer hands to the next: x float32[B, T, d], and what all layers share."""

    x: Tensor
    bias: Tensor
    cos: Tensor
    sin: Tensor


def empty_block(config: ModelConfig) -> Block:
    """A layer without values."""
    with hollow():
        return Block(config).eval()


def widened(name: str, stored: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy to work on; the checkpoint's own tensor is never written to."""
    if not bool(torch.isfinite(stored).all()):
        raise QuantizationError(f"{name} holds NaN or infinity; repair the checkpoint")
    return stored.to(dtype, copy=True)


class _Part:
    """A stage's linears: where its weights are, and how its inputs are tapped."""

    name: str

    def __init__(self, network: Network) -> None:
        self.network = network

    def modules(self) -> dict[str, Linear]:
        """By name, in the order they run."""
        return {}

    def linears(self) -> Sequence[str]:
        return list(self.modules())

    def weight(self, name: str) -> Tensor:
        held = self.modules()[name].weight
        assert held is not None  # a stage is open until it is packed
        return held.data

    def replace(self, name: str, weight: Tensor) -> None:
        self.modules()[name].weight = nn.Parameter(weight, requires_grad=False)

    def open(self) -> None:
        pass

    def output_scale(self, name: str) -> Tensor | None:
        return None

    def folds(self) -> Sequence[Fold]:
        return ()

    def tapped(self, tap: Tap, compute: Callable[[], Any]) -> Any:
        """``compute``'s result with every linear's input passed through ``tap``."""

        def hook(name: str) -> Callable[[nn.Module, tuple[Tensor]], Tensor]:
            return lambda module, inputs: tap(name, inputs[0])

        held = [m.register_forward_pre_hook(hook(n)) for n, m in self.modules().items()]
        try:
            with torch.no_grad():
                return compute()
        finally:
            for handle in held:
                handle.remove()

    def pack(self, packed: Mapping[str, QuantizedTensor], recipe: Recipe) -> None:
        for name, module in self.modules().items():
            try:
                if name in packed:
                    module.pack(recipe, quantized=packed[name])
                else:
                    module.pack("bf16")
            except WmrtError as error:
                raise type(error)(f"{name}: {error}") from None


class TokenStage(_Part):
    """StateFusion, the selector and the embedding of actions; no packed linear."""

    name = "token"

    def rotate(self, seed: int) -> None:
        rotate_token(self.network, residual_rotation(self.network, seed))
        for module in (self.network.fusion, self.network.selector):
            # Now: every layer is to be calibrated on what will run. Over the whole shipped model
            # this rounding of rotated weights moves the normalised hidden state by 0.0009 RMS, less
            # than bf16 activations alone do (0.0015) and 50 times less than 4-bit weights.
            _as_stored(module)

    def run(self, stream: Any, tap: Tap) -> Stream:
        windows, network = cast(Windows, stream), self.network
        with torch.no_grad():
            action = network.action_embedding(windows.previous)
            x, _ = network.fusion(windows.codes, windows.values, action)
            scores, age = network.selector.scores(x, action)
            draw = torch.Generator().manual_seed(0)  # the random selector's
            bias = network.selector.sequence_bias(scores, age, draw)
            cos, sin = rope_table(torch.arange(x.shape[1]), network.increments)
        return Stream(x, bias, cos, sin)

    def close(self, packed: Mapping[str, QuantizedTensor], recipe: Recipe) -> None:
        pass

    def discard(self) -> None:
        pass


class LayerStage(_Part):
    """One trunk layer."""

    def __init__(self, network: Network, index: int, stored: Mapping[str, Tensor]) -> None:
        super().__init__(network)
        self.index, self.name, self.stored = index, f"blocks.{index}", stored
        self._divided: dict[str, Tensor] = {}

    @property
    def block(self) -> Block:
        return cast(Block, self.network.blocks[self.index])

    def modules(self) -> dict[str, Linear]:
        return _linears(self.block, f"{self.name}.")

    def open(self) -> None:
        tensors = {}
        for name in self.block.state_dict():
            full = f"{self.name}.{name}"
            tensors[name] = widened(full, self.stored[full], torch.float32)
        self.block.load_state_dict(tensors, assign=True)

    def rotate(self, seed: int) -> None:
        rotate_block(self.block, residual_rotation(self.network, seed), seed, self.index)

    def folds(self) -> Sequence[Fold]:
        return block_folds(self.block, f"{self.name}.", self._record)

    def _record(self, name: str, rows: Tensor) -> None:
        self._divided[name] = rows

    def output_scale(self, name: str) -> Tensor | None:
        return self._divided.get(name)

    def run(self, stream: Any, tap: Tap) -> Stream:
        given, block = cast(Stream, stream), self.block
        moved = self.tapped(tap, lambda: block(given.x, given.bias, given.cos, given.sin))
        return replace(given, x=moved[0])

    def close(self, packed: Mapping[str, QuantizedTensor], recipe: Recipe) -> None:
        self.pack(packed, recipe)

    def discard(self) -> None:
        self.network.blocks[self.index] = empty_block(self.network.config)


class HeadsStage(_Part):
    """The final norm, the action head and the dynamics head."""

    name = "heads"

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._rotation: Rotation | None = None

    def modules(self) -> dict[str, Linear]:
        return _linears(self.network.action_head, "action_head.")

    def rotate(self, seed: int) -> None:
        self._rotation = residual_rotation(self.network, seed)
        rotate_heads(self.network, self._rotation)
        _as_stored(self.network.dynamics)

    def run(self, stream: Any, tap: Tap) -> Outputs:
        x, head = cast(Stream, stream).x, self.network.action_head
        logits = self.tapped(tap, lambda: head(self.network.norm(x)))
        plain = nn.functional.rms_norm(x, (x.shape[-1],), None, RMS_EPS)
        hidden = plain if self._rotation is None else self._rotation.undo(plain)
        return Outputs(hidden, head.decode(logits))

    def close(self, packed: Mapping[str, QuantizedTensor], recipe: Recipe) -> None:
        self.pack(packed, recipe)

    def discard(self) -> None:
        pass


@torch.no_grad()
def _as_stored(module: nn.Module) -> None:
    """Round the float32 parameters of ``module`` to bfloat16, as a checkpoint stores them."""
    for parameter in module.parameters():
        parameter.copy_(parameter.to(torch.bfloat16))


def _linears(root: nn.Module, prefix: str) -> dict[str, Linear]:
    found = root.named_modules()
    return {prefix + name: module for name, module in found if isinstance(module, Linear)}
