"""``torch.ops.wmrt``: `state_fusion` and `transition_select`, the step up to the trunk.

They write into buffers they are given and allocate nothing on CUDA, where they compute by triton,
which is imported when one first runs there. On the CPU they compute by torch.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from wmrt.kernels import reference_state
from wmrt.kernels.state_arguments import check_fusion, check_select
from wmrt.kernels.triton.launchers import function_of, on_cuda

#: Kernels that one call of an operator launches on CUDA.
LAUNCHES = {"state_fusion": 2, "transition_select": 2}

#: Weights and sizes are those of `wmrt.kernels.state_arguments`, in the order of its records.
_SCHEMAS = (
    "state_fusion(Tensor codes, Tensor values, Tensor previous, Tensor[] weights, int[] sizes, "
    "Tensor(a!) action, Tensor(b!) work, Tensor(c!) token) -> ()",
    "transition_select(Tensor token, Tensor action, Tensor step, Tensor[] weights, str kind, "
    "Tensor(a!) hidden, Tensor(b!) cell, Tensor(c!) select_keys, Tensor(d!) work, "
    "Tensor(e!) slots, Tensor(f!) bias, Tensor(g!) cos, Tensor(h!) sin, Tensor? robots=None) -> ()",
)
_LIBRARY: Any = cast(Any, torch.library).Library("wmrt", "FRAGMENT")  # its methods have no types


def _fusion_on_cpu(
    codes: Tensor,
    values: Tensor,
    previous: Tensor,
    weights: list[Tensor],
    sizes: list[int],
    action: Tensor,
    work: Tensor,
    token: Tensor,
) -> None:
    w, s = check_fusion(codes, values, previous, weights, sizes, action, work, token)
    reference_state.fuse(codes, values, previous, w, s, action, token)


def _fusion_on_meta(*given: Any) -> None:
    check_fusion(*given)


def _select_on_cpu(
    token: Tensor,
    action: Tensor,
    step: Tensor,
    weights: list[Tensor],
    kind: str,
    hidden: Tensor,
    cell: Tensor,
    select_keys: Tensor,
    work: Tensor,
    slots: Tensor,
    bias: Tensor,
    cos: Tensor,
    sin: Tensor,
    robots: Tensor | None = None,
) -> None:
    state, chosen = (hidden, cell, select_keys), (slots, bias)
    w, _ = check_select(token, action, step, weights, kind, *state, work, *chosen, cos, sin, robots)
    own = state
    if robots is not None:
        step, own = step[robots], (hidden[robots], cell[robots], select_keys[robots])
    reference_state.select(token, action, step, w, kind, *own, *chosen)
    reference_state.turn(step, w.increments, cos, sin)
    if robots is not None:
        for whole, part in zip(state, own, strict=True):
            whole[robots] = part
        slots += robots.unsqueeze(1) * select_keys.shape[1]


def _select_on_meta(*given: Any) -> None:
    check_select(*given)


ON_CUDA = {name: on_cuda(name, function_of(name, name)) for name in LAUNCHES}

for _schema in _SCHEMAS:
    _LIBRARY.define(_schema)
for _key, *_functions in (
    ("CPU", _fusion_on_cpu, _select_on_cpu),
    ("CUDA", *ON_CUDA.values()),
    ("Meta", _fusion_on_meta, _select_on_meta),
):
    for _schema, _function in zip(_SCHEMAS, _functions, strict=True):
        _LIBRARY.impl(_schema.split("(")[0], _function, _key)
