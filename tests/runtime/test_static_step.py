"""The step on static buffers: a session's own numbers, eager and captured."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.runtime.models import eager, states, tiny
from tests.runtime.tape import TapeBackend
from wmrt.runtime import Session
from wmrt.runtime.cuda_graph import CudaGraphExecutor
from wmrt.runtime.static_step import StaticStep


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4"])
@pytest.mark.parametrize("graph", ["on", "off"])
def test_it_steps_as_a_session_does(recipe: str, graph: str, seed: int) -> None:
    model = eager(tiny(seed), recipe=recipe)
    session, step = Session(model.network), StaticStep(model.network)
    rng = np.random.default_rng(seed)
    backend = TapeBackend(step.buffers)
    with CudaGraphExecutor(step.run, step.buffers, graph=graph, backend=backend) as executor:
        assert executor.prepare().used == (graph == "on")
        for state in states(model.schema, 5, seed):
            codes, values, _ = model.schema.encode(state, strict=False)
            previous = rng.uniform(-1, 1, len(model.network.actions)).astype(np.float32)
            want = session.step(codes, values, previous)
            step.inputs["codes"][0].copy_(torch.from_numpy(codes))
            step.inputs["values"][0].copy_(torch.from_numpy(values))
            step.inputs["previous"][0].copy_(torch.from_numpy(previous))
            executor.replay()
            executor.wait()
            found = {**vars(want.prediction), "hidden": want.hidden, "logits": want.logits}
            found["chunk"] = want.chunk
            for name, tensor in found.items():
                assert torch.equal(step.outputs.tensors()[name], tensor), name
            for name, tensor in session.ring.tensors().items():
                assert torch.equal(step.buffers[f"ring.{name}"], tensor), name


def test_every_tensor_that_changes_is_a_named_buffer(seed: int) -> None:
    step = StaticStep(eager(tiny(seed)).network, batch=2)
    assert len({t.data_ptr() for t in step.buffers.values()}) == len(step.buffers)
    own = [*step.inputs, *step.outputs.tensors(), *(f"ring.{n}" for n in step.ring.tensors())]
    assert sorted(step.buffers) == sorted(own)
