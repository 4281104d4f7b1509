"""The ``quantization_config`` of compressed-tensors: which module holds which weight format.

Written as version 0.20.1 of that library writes it; read strictly, for the settings it can mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wmrt.core.errors import CheckpointError, QuantizationError, UnsupportedError
from wmrt.quant.formats import FORMATS, BlockFormat, block_format

VERSION = "0.20.1"  # the release whose files these are
METHOD = "compressed-tensors"
INT4_GROUPS = (32, 64, 128)
PACKINGS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized", "pack-quantized")
MIXED = "mixed-precision"
_SCALE_DTYPES = {"nvfp4": "torch.float8_e4m3fn", "mxfp4": "torch.uint8"}
# Settings of how scales were found (observers) are of no matter to who reads the result.
_FREE = {"observer", "observer_kwargs", "zp_dtype", "actorder"}
_MEANT = {"num_bits", "type", "symmetric", "group_size", "strategy", "dynamic", "block_structure",
          "scale_dtype"}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """One entry of ``config_groups``: a weight format of ours and the modules it is meant for."""

    name: str
    format: str
    targets: tuple[str, ...]

    def named(self, module: str) -> bool:
        """Whether a target names the module, literally or as a regular expression."""
        return any(_names(target, module) for target in self.targets)

    @property
    def by_class(self) -> bool:
        """Whether a target is the class Linear, which every packed module is taken to be."""
        return "Linear" in self.targets


@dataclass(frozen=True)
class Schemes:
    """All groups of a file, and the modules it leaves alone."""

    groups: tuple[Group, ...]
    ignore: tuple[str, ...]

    def format_of(self, module: str) -> str:
        """Weight format of a packed module; `CheckpointError` when the configuration has none, or
        several, or ignores it."""
        if any(_names(entry, module) for entry in self.ignore):
            raise CheckpointError(f"{module} is packed, but quantization_config.ignore lists it")
        found = [group for group in self.groups if group.named(module)]
        found = found or [group for group in self.groups if group.by_class]
        if len(found) != 1:
            names = ", ".join(group.name for group in found) or "none"
            raise CheckpointError(
                f"{module} is packed, but the groups of quantization_config meant for it are: "
                f"{names}; exactly one must be"
            )
        return found[0].format


def _names(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], module) is not None
    return target == module


def read_schemes(config: Mapping[str, Any]) -> Schemes:
    """Parse ``quantization_config``.

    Raises `CheckpointError` for anything that is not well formed, `UnsupportedError` for what the
    library knows and this reader does not: other formats, bits, group sizes, transforms, sparsity.
    """
    method, version = config.get("quant_method"), config.get("version")
    if method != METHOD:
        raise CheckpointError(f"quantization_config.quant_method is {method!r}, not {METHOD!r}")
    if not isinstance(version, str) or not re.match(r"0\.\d+(\.|$)", version):
        raise UnsupportedError(
            f"quantization_config.version is {version!r}; versions 0.x are read, {VERSION} written"
        )
    if config.get("quantization_status") != "compressed":
        raise CheckpointError(
            f"quantization_config.quantization_status is {config.get('quantization_status')!r}; "
            "only compressed weights can be read"
        )
    for key in ("transform_config", "sparsity_config", "kv_cache_scheme"):
        if config.get(key):
            raise UnsupportedError(
                f"quantization_config.{key} is {config[key]!r:.200}; the weights mean something "
                "else without it, and it is not read"
            )
    entries = config.get("config_groups")
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(f"quantization_config.config_groups is {entries!r:.200}, not groups")
    common = config.get("format")
    groups = tuple(_group(name, entry, common) for name, entry in entries.items())
    return Schemes(groups, tuple(_texts(config.get("ignore") or [], "ignore")))


def _texts(value: object, key: str) -> Sequence[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise CheckpointError(f"quantization_config.{key} is no list of names: {value!r:.200}")
    return value


def _group(name: str, entry: object, common: object) -> Group:
    where = f"quantization_config.config_groups.{name}"
    if not isinstance(entry, dict) or not isinstance(entry.get("weights"), dict):
        raise CheckpointError(f"{where} says nothing of weights: {entry!r:.200}")
    packing = entry.get("format") or common
    if packing not in PACKINGS:
        raise UnsupportedError(
            f"{where}: format is {packing!r}; formats that can be read are {', '.join(PACKINGS)}"
        )
    targets = tuple(_texts(entry.get("targets"), f"config_groups.{name}.targets"))
    return Group(name, _weight_format(where, packing, entry["weights"]), targets)


def _weight_format(where: str, packing: str, weights: Mapping[str, Any]) -> str:
    unknown = sorted(weights.keys() - _MEANT - _FREE)
    if unknown:
        raise UnsupportedError(f"{where}.weights has settings unknown here: {', '.join(unknown)}")
    for name, spec in FORMATS.items():
        if packing_of(spec) == packing and _same(weight_arguments(spec), weights):
            return name
    raise UnsupportedError(
        f"{where}: {packing} with {dict(weights)!r:.300} is none of the formats that can be read: "
        "nvfp4 (float, 4 bits, groups of 16, tensor_group), mxfp4 (float, 4 bits, groups of 32), "
        f"int4 (int, 4 bits, groups of {', '.join(map(str, INT4_GROUPS))})"
    )


def _same(expected: Mapping[str, Any], got: Mapping[str, Any]) -> bool:
    """Equal in what decides the bytes; a scale dtype left out is the format's own."""
    plain = {key: value for key, value in got.items() if key in _MEANT and value is not None}
    if str(expected.get("type")) == "int":
        plain.pop("scale_dtype", None)  # the tensor says it
    elif "scale_dtype" not in plain:
        expected = {key: value for key, value in expected.items() if key != "scale_dtype"}
    return plain == expected and all(type(plain[key]) is type(expected[key]) for key in plain)


def packing_of(spec: BlockFormat) -> str | None:
    """The library's name for how a weight format is stored; None where there is no such format."""
    if spec.name in _SCALE_DTYPES:
        return f"{spec.name}-pack-quantized"
    return "pack-quantized" if spec.element == "int4" and spec.block in INT4_GROUPS else None


def weight_arguments(spec: BlockFormat) -> dict[str, Any]:
    """The library's ``weights`` settings of a format."""
    arguments: dict[str, Any] = {
        "num_bits": 4,
        "type": "int" if spec.element == "int4" else "float",
        "symmetric": not spec.has_zero_points,
        "group_size": spec.block,
        "strategy": "tensor_group" if spec.has_global else "group",
        "dynamic": False,
    }
    if spec.name in _SCALE_DTYPES:
        arguments["scale_dtype"] = _SCALE_DTYPES[spec.name]
    return arguments


def make_config(formats: Mapping[str, str], ignore: Sequence[str]) -> dict[str, Any]:
    """``quantization_config`` for modules with their formats, `ignore` being linears left alone.

    One format is one group of all ``Linear`` modules; several are groups that name their modules.
    """
    used = list(dict.fromkeys(formats.values()))
    foreign = [name for name in used if packing_of(block_format(name)) is None]
    if foreign or not used:
        known = ", ".join(name for name, spec in FORMATS.items() if packing_of(spec))
        raise QuantizationError(
            f"no {METHOD} file of {', '.join(foreign) or 'nothing'} is written; formats are {known}"
        )
    groups, packings = {}, []
    for index, name in enumerate(used):
        spec = block_format(name)
        named = [module for module, format in formats.items() if format == name]
        packings.append(packing_of(spec))
        groups[f"group_{index}"] = {
            "targets": ["Linear"] if len(used) == 1 else sorted(named),
            "weights": weight_arguments(spec),
            "input_activations": None,
            "output_activations": None,
            "format": packings[-1],
        }
    return {
        "config_groups": groups,
        "format": packings[0] if len(set(packings)) == 1 else MIXED,
        "global_compression_ratio": None,
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "moe_sparsity_config": None,
        "quant_method": METHOD,
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": VERSION,
    }
