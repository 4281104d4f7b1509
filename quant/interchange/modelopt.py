"""NVFP4 checkpoints of ModelOpt: the same bytes under other names, scalars the other way up."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from wmrt.core.errors import CheckpointError, QuantizationError
from wmrt.quant.interchange.files import read_tensors, some
from wmrt.quant.tensor import QuantizedTensor

_SCALE, _GLOBAL = "weight_scale", "weight_scale_2"


def read_modelopt(
    folder: str | os.PathLike[str],
) -> tuple[dict[str, QuantizedTensor], dict[str, Tensor]]:
    """Weights by module name, and all other tensors by full name (``input_scale`` among them).

    A packed weight is ``weight`` uint8 [N, K/2], ``weight_scale`` float8_e4m3fn [N, K/16] and
    ``weight_scale_2`` float32 []: amax / 2688, a multiplier as ours is, so it is taken as it is
    (compressed-tensors stores its reciprocal). Other formats of ModelOpt are not read.

    Raises `CheckpointError` for files that cannot be read and packed weights that lack a part (by
    name), `QuantizationError` for wrong shapes, dtypes or content (ModelOpt writes NaN scales for a
    weight of zeros).
    """
    tensors = read_tensors(Path(folder))
    modules = [
        name.removesuffix(".weight")
        for name, tensor in tensors.items()
        if name.endswith(".weight") and tensor.dtype == torch.uint8
    ]
    names = {f"{module}.{part}" for module in modules for part in ("weight", _SCALE, _GLOBAL)}
    scales = {name for name in tensors if name.rpartition(".")[2] in (_SCALE, _GLOBAL)}
    if not modules or names - tensors.keys() or scales - names:
        raise CheckpointError(
            f"{folder}: {len(modules)} NVFP4 weights; their tensors: "
            f"missing: {some(names - tensors.keys()) or 'none'}; "
            f"scales without a packed weight: {some(scales - names) or 'none'}"
        )
    weights = {module: _weight(module, tensors) for module in modules}
    return weights, {name: tensor for name, tensor in tensors.items() if name not in names}


def _weight(module: str, tensors: dict[str, Tensor]) -> QuantizedTensor:
    codes, scales = tensors[f"{module}.weight"], tensors[f"{module}.{_SCALE}"]
    if scales.dtype != torch.float8_e4m3fn or codes.ndim != 2:
        raise QuantizationError(
            f"{module}: not NVFP4: weight has {codes.ndim} dimensions, scales are {scales.dtype}"
        )
    parts = {
        "codes": codes,
        "scales": scales.view(torch.uint8),
        "global_scale": tensors[f"{module}.{_GLOBAL}"],
    }
    try:
        return QuantizedTensor.from_tensors("nvfp4", (codes.shape[0], codes.shape[1] * 2), parts)
    except QuantizationError as error:
        raise QuantizationError(f"{module}: {error}") from None
