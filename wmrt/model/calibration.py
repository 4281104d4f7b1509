"""`Network` as a calibration target: token, then each layer, then the heads.

Built from a checkpoint, whose tensors may be views of its mapped file. The small parts are widened
to float32 at once; a layer only while it is open. The 1.3B preset so needs one layer in float32
(210 MB) beside the mapped file, instead of 5.2 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from wmrt.core.errors import CheckpointError, UsageError
from wmrt.model.checkpoint import Checkpoint, check_tensors
from wmrt.model.config import ModelConfig
from wmrt.model.network import Network
from wmrt.model.stages import HeadsStage, LayerStage, TokenStage, empty_block, widened
from wmrt.quant.calibrate import Stage


class NetworkTarget:
    """A float checkpoint as stages; `network` is the packed one once every stage was closed.

    Args:
        checkpoint: not packed.
        keep: says which linears stay bf16 whatever the recipe.

    Raises `CheckpointError` when its tensors do not fit its configuration, `UsageError` when it is
    packed already.
    """

    def __init__(self, checkpoint: Checkpoint, keep: Callable[[str], bool]) -> None:
        if checkpoint.quantization is not None:
            raise UsageError("the checkpoint is packed already; give the one it was packed from")
        self.network = network = _skeleton(checkpoint)
        self._keep = keep
        layers = [
            LayerStage(network, index, checkpoint.tensors) for index in range(len(network.blocks))
        ]
        self._stages: list[Stage] = [TokenStage(network), *layers, HeadsStage(network)]

    def stages(self) -> Sequence[Stage]:
        return self._stages

    def keeps(self, name: str) -> bool:
        return self._keep(name)


def _skeleton(checkpoint: Checkpoint) -> Network:
    """The network with its small parts in float32 and its layers without values."""
    try:
        config = ModelConfig.from_json(checkpoint.model)
    except UsageError as error:
        raise CheckpointError(f"{checkpoint.path or 'checkpoint'}: {error}") from None
    network = Network(checkpoint.schema, config.with_(layers=1), checkpoint.actions)
    network.config = config
    network.blocks = nn.ModuleList(empty_block(config) for _ in range(config.layers))
    parameters = dict(network.named_parameters())
    expected = {
        name: (tuple(t.shape), torch.bfloat16 if name in parameters else t.dtype)
        for name, t in network.state_dict().items()
    }
    check_tensors(expected, checkpoint.tensors)
    small = {
        name: widened(name, checkpoint.tensors[name], own.dtype)
        for name, own in network.state_dict().items()
        if not own.is_meta
    }
    network.load_state_dict(small, strict=False, assign=True)
    return network.eval()
