"""The launches of the fused step for a GPU that is not here, in order, with what they are given.

The step runs once on tensors of the meta device; launches are written down in place of running.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from wmrt.core.errors import UnsupportedError
from wmrt.kernels.decode_arguments import Decode
from wmrt.kernels.state_arguments import FusionWeights, SelectorWeights
from wmrt.kernels.triton import ops_decode, ops_fused, ops_heads, ops_state
from wmrt.kernels.triton.launchers import LAUNCHERS
from wmrt.kernels.triton.packaged_step import Add, Step, Stored
from wmrt.kernels.triton.recorded import Launch, recorded
from wmrt.kernels.triton.variants import variant
from wmrt.model.checkpoint import load_checkpoint
from wmrt.model.config import ModelConfig
from wmrt.model.config import preset as sizes
from wmrt.model.network import Network
from wmrt.quant import get_recipe
from wmrt.runtime.bench.gpu_network import random_network
from wmrt.runtime.fake_cuda import over_tensors
from wmrt.runtime.triton_model import Layer, Packed, TritonModel
from wmrt.runtime.triton_state import TritonState

#: Of names up to their first dot; everything else is scratch.
_ROLES = {
    **dict.fromkeys(("layers", "fusion", "selector", "heads", "decode"), "weights"),
    **dict.fromkeys(("ring",), "state"),
    "sent": "input",
    "got": "output",
}
_CPU = torch.device("cpu")


class Blueprint:
    """Weights of a step without numbers, of which `step` tells the launches for a capability.

    Args:
        network: a real one, since which type a small weight has depends on its values, with one
            layer or all; it is emptied.
        config: of the network with all its layers, taken to be like those that are there.

    Raises:
        UnsupportedError: as `TritonModel`.
    """

    def __init__(self, network: Network, config: ModelConfig) -> None:
        self.config = config
        self.model = TritonModel(network)
        there = self.model.layers
        for name, value in vars(self.model).items():
            if name not in ("network", "layers"):
                setattr(self.model, name, over_tensors(value, _hollow))
        layers = [there[min(i, len(there) - 1)] for i in range(config.layers)]
        hollow = [over_tensors(layer, _hollow) for layer in layers]
        self.model.layers = [_with_scales(layer, i) for i, layer in enumerate(hollow)]
        self.model.decode = (*self.model.decode[:2], Stored("decode.reward_scale"))
        self.network: Network = network.to("meta")
        self.network.config = config

    @torch.inference_mode()
    def step(self, name: str, capability: int, robots: int = 1) -> Step:
        """The step on a GPU of ``capability``, with the variant that the table has for it.

        Raises:
            UnsupportedError: no kernels are chosen for it.
        """
        assert ops_decode and ops_fused and ops_heads and ops_state  # they fill LAUNCHERS
        how = variant(capability)
        ops = {name: functools.partial(launch, how) for name, launch in LAUNCHERS.items()}
        state = TritonState(self.network, self.model, robots, SimpleNamespace(**ops))
        actions: list[Launch | Add] = []
        with recorded(actions.append), _Between(actions):
            state.compute()
        ring = {f"ring.{n}": t for n, t in state.ring.tensors().items()}
        return Step(
            name=name,
            capability=capability,
            about={
                "robots": robots,
                "layers": self.config.layers,
                "schema": self.network.schema.hash,
            },
            actions=actions,
            tensors={
                **{"sent": state.sent, "got": state.got},
                **{**ring, **state.arrays, **dict(named_weights(self.model))},
            },
            roles=_ROLES,
            host={"sent": "in", "got": "out"},
        )


def preset_steps(preset: str, recipe: str, capabilities: Sequence[int]) -> list[Step]:
    """The step of one robot for each capability. Errors as `preset_blueprint` and `step`."""
    made, name = preset_blueprint(preset, recipe), f"step.{preset}.{recipe}"
    given = {"preset": preset, "recipe": recipe}
    steps = [made.step(name, capability) for capability in capabilities]
    return [replace(step, about={**given, **step.about}) for step in steps]


def preset_blueprint(preset: str, recipe: str) -> Blueprint:
    """Sizes of a preset with the packaged highway schema, weights in the form of a recipe.

    Raises:
        UsageError: an unknown preset or recipe.
        UnsupportedError: a recipe whose trunk is not packed with int8 activations.
    """
    config, chosen, like = sizes(preset), get_recipe(recipe), load_checkpoint("highway")
    one = random_network(like.schema, config.with_(layers=1), like.actions, chosen, _CPU)
    with torch.no_grad():
        for parameter in one.parameters():  # as a stored model has them
            if parameter.is_floating_point():
                parameter.copy_(parameter.to(torch.bfloat16))
    return Blueprint(one, config)


class _Between(TorchDispatchMode):
    """Writes down what a step does by torch's own operators: it may add a number to a tensor."""

    def __init__(self, actions: list[Launch | Add]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._actions = actions

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **dict(kwargs or {}))
        if func._schema.name == "aten::add_" and isinstance(args[1], int):
            self._actions.append(Add(args[0], args[1]))
        elif not func.is_view and not func._schema.name.startswith("prim::"):
            raise UnsupportedError(
                f"the step calls {func}, which is neither a launch nor an addition of a number; "
                "tell wmrt.runtime.step_launches how a program without torch does that"
            )
        return result


def _with_scales(layer: Layer, index: int) -> Layer:
    """The layer with names in place of what a checkpoint has as global scales."""
    changes: dict[str, Any] = {
        name: part._replace(global_scale=Stored(f"layers.{index}.{name}.global_scale"))
        for name, part in vars(layer).items()
        if isinstance(part, Packed)
    }
    return replace(layer, **changes)


def _hollow(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")


def named_weights(model: TritonModel) -> Iterator[tuple[str, Tensor]]:
    """Weights by name."""
    yield from _within("layers", model.layers)
    yield from _within("fusion", FusionWeights(*model.fusion))
    yield from _within("selector", SelectorWeights(*model.selector))
    yield from _within("heads", model.heads)
    yield from _within("decode", Decode(*model.decode[0]))


def _within(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    parts: Mapping[Any, Any] = {}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
    elif hasattr(value, "_asdict"):
        parts = value._asdict()
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value))
    for own, part in parts.items():
        yield from _within(f"{name}.{own}", part)
