"""The one linear layer of the trunk: float weights, or packed ones, never both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wmrt.core.errors import QuantizationError
from wmrt.kernels import LinearOp
from wmrt.kernels import linear as pick
from wmrt.quant import QuantizedTensor, Recipe, get_recipe, quantize
from wmrt.quant.layouts import LaidOut, from_layout, laid_out, stored, to_layout


class Linear(nn.Module):
    """``y[..., N] = x[..., K] W^T`` without bias, in one of three forms.

    * float: `weight` is a Parameter [N, K]; trainable
    * bf16: `weight` is a bfloat16 Parameter [N, K]; the op rounds x to bfloat16, output float32
    * packed: buffers in one layout (canonical: `codes`, `scales` and what else the format has); the
      op reads those

    `pack` turns the first form into one of the others. `expect` does so without values, for
    `load_state_dict`. The op is picked then and named by `kernel`; nothing switches it later.

    `layout` is that of the buffers, `stored_layout` that of the checkpoint they were loaded from;
    both are None where there is none. They differ where the op reads another than was stored: the
    weight was converted when it was loaded.
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
        self.layout: str | None = None
        self.stored_layout: str | None = None
        self._packed: QuantizedTensor | LaidOut | None = None
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        nn.init.normal_(self.weight, std=1.0 / math.sqrt(in_features))

    @property
    def kernel(self) -> str:
        """Name of the operator that runs."""
        return "linear_float.torch" if self._op is None else self._op.name

    @property
    def read_layout(self) -> str:
        """The layout that the operator reads; a weight stored in another is converted at load."""
        return "canonical" if self._op is None else self._op.layout

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
            _require_finite(weight)
            self.weight = nn.Parameter(weight.detach().to(torch.bfloat16), requires_grad=False)
        else:
            held = quantized
            if held is None:  # a bfloat16 weight, as stored, is widened for this alone
                held = quantize(weight.detach().float(), chosen.weight_format)
            self._take(held, op.layout)
        self.recipe, self._op = chosen, op
        return self

    def expect(
        self,
        recipe: str | Recipe,
        implementation: str = "reference",
        layout: str = "canonical",
    ) -> Linear:
        """Take the form `recipe` stores in `layout`, without values, on the meta device. Returns
        self.

        Fill it with ``load_state_dict(..., assign=True)``: what is loaded is validated there, and
        converted if the op reads another layout. If it reads this one, memory-mapped tensors stay
        mapped. `QuantizationError` if the layout does not take the recipe's format.
        """
        chosen, op, _ = self._choose(recipe, implementation)
        shape = (self.out_features, self.in_features)
        if not chosen.packs:
            empty = torch.empty(shape, dtype=torch.bfloat16, device="meta")
            self.weight = nn.Parameter(empty, requires_grad=False)
        else:
            specs = stored(layout, chosen.weight_format, shape)
            self.weight = None
            self._hold({k: torch.empty(s, dtype=d, device="meta") for k, (s, d) in specs.items()})
            self.layout = self.stored_layout = layout
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
        """These buffers in place of those there are."""
        self._buffers.clear()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def _take(self, weight: QuantizedTensor, layout: str) -> None:
        """Hold `weight` in `layout`, instead of whatever was held."""
        tensors = to_layout(weight, layout)
        self.weight = None
        self._hold(tensors)
        self.layout, self._packed = layout, _as_read(weight, layout, tensors)

    def quantized(self) -> QuantizedTensor:
        """The packed weight, canonical: over this layer's own buffers, validated when they
        changed; where the op reads another layout, a copy made by this call."""
        held = self._held()
        if isinstance(held, QuantizedTensor):
            return held
        return from_layout(held.format, held.shape, held.layout, held.tensors)

    def tensors(self, layout: str) -> dict[str, Tensor]:
        """The packed weight as `layout` stores it; this layer's own buffers if it is in it."""
        if layout == self.layout:
            return dict(self.named_buffers(recurse=False))
        return to_layout(self.quantized(), layout)

    def _held(self) -> QuantizedTensor | LaidOut:
        """What the op reads."""
        held = self._packed
        if held is None or any(self._buffers[k] is not t for k, t in _parts(held).items()):
            held = self._validated()
        return held

    def _validated(self) -> QuantizedTensor | LaidOut:
        """`_held`, made anew from the buffers: checked, and in the layout that the op reads."""
        if self.recipe is None or self._op is None or self.layout is None:
            raise QuantizationError("this linear holds no packed weight")
        form, shape = self.recipe.weight_format, (self.out_features, self.in_features)
        tensors = self.tensors(self.layout)
        if self.layout == self._op.layout != "canonical":
            self._packed = laid_out(form, shape, self.layout, tensors)
        else:
            weight = from_layout(form, shape, self.layout, tensors)
            if self.layout == self._op.layout:
                self._packed = weight
            else:
                self._take(weight, self._op.layout)
        assert self._packed is not None  # both branches set it
        return self._packed

    def forward(self, x: Tensor) -> Tensor:
        if self._op is None:
            assert self.weight is not None
            return F.linear(x, self.weight)
        weight = self.weight
        with torch.no_grad():
            return self._op(x, self._held() if weight is None else weight)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._packed = None
        held = [*self.parameters(recurse=False), *self.buffers(recurse=False)]
        if self.recipe is None or any(tensor.is_meta for tensor in held):
            return  # what is missing, torch reports
        try:
            self._check()
        except QuantizationError as error:
            raise QuantizationError(f"{prefix.rstrip('.') or 'linear'}: {error}") from None

    def _check(self) -> None:
        if self.weight is None:
            self._validated()
        elif self.weight.dtype != torch.bfloat16:
            raise QuantizationError(f"a bf16 weight must be bfloat16, got {self.weight.dtype}")
        else:
            _require_finite(self.weight)

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


def _require_finite(weight: Tensor) -> None:
    if weight.dtype == torch.bfloat16 and weight.device.type == "cpu":
        bits = weight.detach().view(torch.int16).numpy()  # as in `wmrt.quant.tensor.ordinary`
        # Infinity is the largest finite number's bits and one more, on both sides of zero.
        finite = bits.max() < 0x7F80 and bits.view(np.uint16).max() < 0xFF80
    else:
        finite = bool(torch.isfinite(weight).all())
    if not finite:
        raise QuantizationError("the weight holds NaN or infinity; bf16 would keep it")


def _as_read(
    weight: QuantizedTensor, layout: str, tensors: Mapping[str, Tensor]
) -> QuantizedTensor | LaidOut:
    """The weight as operators of that layout take it."""
    if layout == "canonical":
        return weight
    return LaidOut(weight.format, weight.shape, layout, tensors, weight.global_scale)


def _parts(held: QuantizedTensor | LaidOut) -> Mapping[str, Tensor]:
    """The large tensors of a held weight."""
    if isinstance(held, LaidOut):
        return held.tensors
    return {"codes": held.codes, "scales": held.scales}
