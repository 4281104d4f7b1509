"""A folder of compressed-tensors: ``config.json`` and its safetensors, both ways."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from wmrt.core.errors import CheckpointError, QuantizationError
from wmrt.core.files import read_json
from wmrt.quant.formats import block_format
from wmrt.quant.interchange.files import CONFIG_FILE, read_tensors, some, write_folder
from wmrt.quant.interchange.schemes import Schemes, make_config, read_schemes
from wmrt.quant.interchange.weights import (
    PACKED,
    PARTS,
    Origin,
    divisor_of,
    from_parts,
    multiplier_of,
    part_names,
    to_parts,
)
from wmrt.quant.tensor import QuantizedTensor

QUANTIZATION = "quantization_config"
# In config.json, module -> float.hex(). Not in the metadata of the weight file: safetensors writes
# several entries there in random order, and the same weights should give the same bytes.
MULTIPLIERS = "wmrt_multipliers"


@dataclass(frozen=True)
class Interchanged:
    """What such a folder holds.

    * `weights`: packed weights by module name (the tensor names less ``.weight_packed``)
    * `others`: every other tensor by its full name, as it is: norms, embeddings, biases, linears
      left alone, ``input_global_scale``
    * `config`: ``config.json``; what it says of activations is kept and not carried out
    * `origins`: per packed weight what writing it again needs to give the same bytes
    """

    weights: dict[str, QuantizedTensor]
    others: dict[str, Tensor] = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    origins: dict[str, Origin] = field(repr=False)


def read_compressed_tensors(
    folder: str | os.PathLike[str], *, round_scales: bool = False
) -> Interchanged:
    """Read a folder written by compressed-tensors, or by `write_compressed_tensors`.

    Formats ``nvfp4-pack-quantized``, ``mxfp4-pack-quantized`` and ``pack-quantized`` with 4 bits in
    groups of 32, 64 or 128, symmetric or with zero points. Codes and scales are those of the file,
    bit for bit; `round_scales` allows int4 scales that are no float16 values to become the nearest.

    Raises:
        CheckpointError: files that are missing, truncated or not this format; tensors of a packed
            weight missing or unexpected, by name; modules the configuration does not provide for.
        UnsupportedError: a configuration that means something not read here.
        QuantizationError: tensors of the wrong shape, dtype or content (NaN scales, zero scales
            over codes that are not zero), by module.
    """
    path = Path(folder)
    config = read_json(path / CONFIG_FILE)
    if not isinstance(config.get(QUANTIZATION), dict):
        raise CheckpointError(f"{path / CONFIG_FILE}: it holds no {QUANTIZATION}")
    schemes = read_schemes(config[QUANTIZATION])
    tensors = read_tensors(path)
    modules, others = split_parts(tensors)
    formats = {module: schemes.format_of(module) for module in modules}
    _check_parts(modules, formats, tensors)
    multipliers = _multipliers(path, config.get(MULTIPLIERS, {}))
    weights, origins = {}, {}
    for module, parts in modules.items():
        try:
            weights[module], origins[module] = from_parts(
                formats[module],
                parts,
                round_scales=round_scales,
                multiplier=multipliers.get(module),
            )
        except QuantizationError as error:
            raise QuantizationError(f"{module}: {error}") from None
    return Interchanged(weights, others, config, origins)


def split_parts(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """Tensors -> the parts of each packed weight, and all others under their full names."""
    modules: dict[str, dict[str, Tensor]] = {}
    others = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if part in PARTS:
            modules.setdefault(module, {})[part] = tensor
        else:
            others[name] = tensor
    if not any(PACKED in parts for parts in modules.values()):
        raise CheckpointError(f"it holds no packed weights; names end in .{PACKED} for those")
    return modules, others


def _check_parts(
    modules: Mapping[str, Mapping[str, Tensor]],
    formats: Mapping[str, str],
    tensors: Mapping[str, Tensor],
) -> None:
    missing, unexpected = [], []
    for module, parts in modules.items():
        expected = set(part_names(block_format(formats[module])))
        missing += [f"{module}.{part}" for part in expected - parts.keys()]
        unexpected += [f"{module}.{part}" for part in parts.keys() - expected]
        unexpected += [name for name in (f"{module}.weight",) if name in tensors]
    if missing or unexpected:
        raise CheckpointError(
            f"tensors of packed weights: missing: {some(missing) or 'none'}; "
            f"unexpected: {some(unexpected) or 'none'}"
        )


def _multipliers(path: Path, recorded: Any) -> dict[str, float]:
    try:
        return {str(module): float.fromhex(text) for module, text in recorded.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise CheckpointError(
            f"{path / CONFIG_FILE}: {MULTIPLIERS} maps no modules to numbers: {recorded!r:.200}"
        ) from None


def write_compressed_tensors(
    folder: str | os.PathLike[str],
    weights: Mapping[str, QuantizedTensor],
    others: Mapping[str, Tensor],
    *,
    config: Mapping[str, Any] | None = None,
    origins: Mapping[str, Origin] | None = None,
    ignore: Sequence[str] = (),
) -> None:
    """Write a folder that compressed-tensors 0.20 reads, whole or not at all.

    Args:
        folder: must not exist, or be empty.
        weights: by module name. Where the columns are no multiple of the block, the file is right
            but that library refuses to decompress it ("must be divisible").
        others: by full tensor name, written as they are.
        config: other entries of ``config.json`` (architecture, dtype). A ``quantization_config`` in
            it, as `read_compressed_tensors` returns, is kept if it fits the weights.
        origins: of weights that came from a file: their bytes become the file's again.
        ignore: names of linear modules among `others`.

    That library holds int4 scales in the model's dtype: for float16 scales to stay what they are,
    load with float16 or float32, not bfloat16.

    Raises:
        QuantizationError: a format there is no file of, an odd width in nvfp4 or mxfp4.
        CheckpointError: two tensors of one name, a configuration that does not fit, a used folder.
    """
    formats = {module: q.format for module, q in weights.items()}
    said = {key: value for key, value in (config or {}).items() if key != MULTIPLIERS}
    if QUANTIZATION in said:
        _check_fits(read_schemes(said[QUANTIZATION]), formats)
    else:
        said[QUANTIZATION] = make_config(formats, ignore)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in others.items()}
    multipliers = {}
    for module, q in weights.items():
        try:
            parts = to_parts(q, (origins or {}).get(module))
        except QuantizationError as error:
            raise QuantizationError(f"{module}: {error}") from None
        named = {f"{module}.{part}": tensor for part, tensor in parts.items()}
        twice = [name for name in (*named, f"{module}.weight") if name in tensors]
        if twice:
            raise CheckpointError(f"given both as packed and among the others: {some(twice)}")
        tensors |= named
        if q.spec.has_global and not _comes_back(q, (origins or {}).get(module)):
            multipliers[module] = q.global_scale.hex()
    if multipliers:
        said[MULTIPLIERS] = multipliers
    write_folder(Path(folder).absolute(), said, tensors)


def _comes_back(q: QuantizedTensor, origin: Origin | None) -> bool:
    """Whether the divisor written for `q` leads a reader to its global scale."""
    if origin is not None and origin.divisor is not None:
        if multiplier_of(origin.divisor) == q.global_scale:
            return True
    return multiplier_of(divisor_of(q.global_scale)) == q.global_scale


def _check_fits(schemes: Schemes, formats: Mapping[str, str]) -> None:
    wrong = [name for name, format in formats.items() if schemes.format_of(name) != format]
    if wrong:
        raise CheckpointError(
            f"{QUANTIZATION} means another format than the weights have: {some(wrong)}"
        )
