"""The operators of a fused step, each row by itself.

Torch's matrix products round otherwise for three rows than for one. Computed so, a robot has the
bits on a CPU that it has on a GPU, where kernels sum every row in one order in every batch.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from tests.runtime.models import tiny
from wmrt.model.checkpoint import Checkpoint
from wmrt.runtime import WorldModel
from wmrt.runtime.build import build_network
from wmrt.runtime.report import build_report
from wmrt.runtime.triton_group import TritonGroup
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_session import TritonSession

#: Arguments with a row for each robot that steps. Negative: only where it is not of all robots.
ROWS = {
    "state_fusion": (0, 1, 2, 5, 7),
    "transition_select": (0, 1, -2, -5, -6, -7, 9, 10, 11, 12, 13),
    "norm_qkv_rope_store": (0, 7, 8, 9, 11, -12, -13),
    "transition_attention_int8": (0, -1, -2, 3, 4, 5, 6),
    "gemv_residual": (0, 1, 6),
    "norm_gate_up": (0, 8, 9),
    "rms_norm_to": (0, 3),
    "dense": (0, 6),
    "action_decode": (0, 3, 4, 5),
    "consequences": (0, 1, 2, 6, 7, 8, 9, 10),
}
#: Where they take scratch; one row alone may take more of it than several.
SCRATCH = {"norm_qkv_rope_store": 10, "norm_gate_up": 7}
WORK = torch.zeros(1 << 16, dtype=torch.int8)


def _by_row(name: str) -> Any:
    def call(*given: Any) -> None:
        of_all = (name == "transition_select" and given[13] is not None) or (
            name in ("norm_qkv_rope_store", "transition_attention_int8")
            and given[12 if name == "norm_qkv_rope_store" else 1].dim() == 3
        )
        rows = {abs(at) for at in ROWS[name] if at >= 0 or not of_all}
        for b in range(len(given[0])):
            one = [
                g[b : b + 1] if at in rows and g is not None else g for at, g in enumerate(given)
            ]
            if name in SCRATCH:
                one[SCRATCH[name]] = WORK
            getattr(torch.ops.wmrt, name)(*one)

    return call


OPS = SimpleNamespace(**{name: _by_row(name) for name in ROWS})


def model_of(
    weights: int | Checkpoint, /, recipe: str = "nvfp4", graph: str = "off", **options: Any
) -> WorldModel:
    """A model that the fused step steps, on the CPU, where no executor offers it: of `tiny` weights
    with a ring of 7 states, or of a checkpoint."""
    checkpoint = tiny(weights, window=7, past=3) if isinstance(weights, int) else weights
    built = build_network(checkpoint, recipe, torch.device("cpu"))
    session = TritonSession(built.network, TritonModel(built.network), **options)
    session.capture(graph)
    asked = {"graph": graph, "executor": "triton"}
    sizes = (session.ring.nbytes, session.workspace_bytes)
    report = build_report(built.network, asked, {"executor": "triton"}, *sizes)
    return WorldModel(built.network, built.recipe, report, session)


def group_of(model: WorldModel, robots: int, **options: Any) -> TritonGroup:
    """What steps a group of such a model, each row by itself."""
    session = model.session
    assert isinstance(session, TritonSession)
    options = {"graph": "off", "ops": OPS, "draws": session.choice.draws, **options}
    return TritonGroup(model.network, session.model, robots, **options)
