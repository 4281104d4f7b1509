"""The one linear layer of the trunk: float weights, or packed ones, never both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wmrt.core.errors import QuantizationError
from wmrt.kernels import LinearOp
from wmrt.kernels import linear as pick
from wmrt.quant import QuantizedTensor, Recipe, get_recipe, quantize
from wmrt.quant.formats import block_format
from wmrt.quant.tensor import layout

PACKED_NAMES = ("codes", "scales", "global_scale")


class Linear(nn.Module):
    """``y[..., N] = x[..., K] W^T`` without bias, in one of three forms.

    * float: `weight` is a Parameter [N, K]; trainable
    * bf16: `weight` is a bfloat16 Parameter [N, K]; the op rounds x to bfloat16, output float32
    * packed: buffers `codes`, `scales` (and `global_scale` for nvfp4); the op reads those

    `pack` turns the first form into one of the others. `expect` does so without values, for
    `load_state_dict`. The op is picked then and named by `kernel`; nothing switches it later.
    """

    weight: nn.Parameter | None
    codes: Tensor
    scales: Tensor
    global_scale: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.recipe: Recipe | None = None
        self._op: LinearOp | None = None
        self._packed: QuantizedTensor | None = None
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        nn.init.normal_(self.weight, std=1.0 / math.sqrt(in_features))

    @property
    def kernel(self) -> str:
        """Name of the operator that runs."""
        return "linear_float.torch" if self._op is None else self._op.name

    def packed_bytes(self) -> int:
        """Bytes of the weight as held now, scales included."""
        held = [*self.parameters(recurse=False), *self.buffers(recurse=False)]
        return sum(t.numel() * t.element_size() for t in held)

    def pack(
        self,
        recipe: str | Recipe,
        implementation: str = "reference",
        quantized: QuantizedTensor | None = None,
    ) -> Linear:
        """Replace the float weight by what `recipe` stores, and pick its operator. Returns self.

        With `quantized`, a weight of the recipe's format and this layer's shape, that is held;
        without, the float weight is rounded to nearest. Raises `QuantizationError` when packed
        already, when the weight cannot be quantized, or when `quantized` is of something else.
        """
        chosen, op, weight = self._choose(recipe, implementation)
        if quantized is not None:
            self._require_mine(chosen, quantized)
        if not chosen.packs:
            if not bool(torch.isfinite(weight).all()):
                raise QuantizationError("the weight holds NaN or infinity; bf16 would keep it")
            self.weight = nn.Parameter(weight.detach().to(torch.bfloat16), requires_grad=False)
        else:
            held = quantize(weight, chosen.weight_format) if quantized is None else quantized
            self.weight = None
            self._hold(held.tensors())
            self._packed = held
        self.recipe, self._op = chosen, op
        return self

    def expect(self, recipe: str | Recipe, implementation: str = "reference") -> Linear:
        """Take the form `recipe` stores, without values, on the meta device. Returns self.

        Fill it with ``load_state_dict(..., assign=True)``, which keeps memory-mapped tensors
        mapped; what is loaded is validated there.
        """
        chosen, op, _ = self._choose(recipe, implementation)
        shape = (self.out_features, self.in_features)
        if not chosen.packs:
            empty = torch.empty(shape, dtype=torch.bfloat16, device="meta")
            self.weight = nn.Parameter(empty, requires_grad=False)
        else:
            stored = layout(block_format(chosen.weight_format), shape)
            self.weight = None
            self._hold({k: torch.empty(s, dtype=d, device="meta") for k, (s, d) in stored.items()})
        self.recipe, self._op = chosen, op
        return self

    def _choose(
        self, recipe: str | Recipe, implementation: str
    ) -> tuple[Recipe, LinearOp, nn.Parameter]:
        if self.recipe is not None or self.weight is None:
            raise QuantizationError(
                f"this linear is packed as {self.recipe.name if self.recipe else '?'} already; "
                "pack a float one"
            )
        chosen = get_recipe(recipe)
        op = pick(chosen.weight_format, chosen.activation, implementation)
        return chosen, op, self.weight

    def _require_mine(self, recipe: Recipe, quantized: QuantizedTensor) -> None:
        mine = (recipe.weight_format, (self.out_features, self.in_features))
        if (quantized.format, tuple(quantized.shape)) != mine:
            raise QuantizationError(
                f"this linear takes {mine[0]} {list(mine[1])} under {recipe.name}, "
                f"got {quantized.format} {list(quantized.shape)}"
            )

    def _hold(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def quantized(self) -> QuantizedTensor:
        """The packed weight over this layer's own buffers, validated when they changed."""
        if self.recipe is None or not self.recipe.packs:
            raise QuantizationError("this linear holds no packed weight")
        held = self._packed
        if held is None or held.codes is not self.codes or held.scales is not self.scales:
            shape = (self.out_features, self.in_features)
            tensors = dict(self.named_buffers(recurse=False))
            self._packed = held = QuantizedTensor.from_tensors(
                self.recipe.weight_format, shape, tensors
            )
        return held

    def forward(self, x: Tensor) -> Tensor:
        if self._op is None:
            assert self.weight is not None
            return F.linear(x, self.weight)
        weight = self.weight
        with torch.no_grad():
            return self._op(x, self.quantized() if weight is None else weight)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._packed = None
        held = [*self.parameters(recurse=False), *self.buffers(recurse=False)]
        if self.recipe is None or any(tensor.is_meta for tensor in held):
            return  # what is missing, torch reports
        try:
            self._validate()
        except QuantizationError as error:
            raise QuantizationError(f"{prefix.rstrip('.') or 'linear'}: {error}") from None

    def _validate(self) -> None:
        if self.weight is None:
            self.quantized()
        elif self.weight.dtype != torch.bfloat16:
            raise QuantizationError(f"a bf16 weight must be bfloat16, got {self.weight.dtype}")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linear:
        before = {name: t.dtype for name, t in self.named_buffers(recurse=False)}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._packed = None
        for name, tensor in self.named_buffers(recurse=False):
            if tensor.dtype != before[name]:
                raise QuantizationError(
                    f"{name} of a packed linear is {before[name]}; it cannot become {tensor.dtype}"
                )
        return self

    def extra_repr(self) -> str:
        form = self.recipe.name if self.recipe else "float"
        return f"{self.in_features} -> {self.out_features}, {form}, {self.kernel}"
