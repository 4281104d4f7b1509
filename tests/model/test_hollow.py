"""Networks without values: the same tensors by name, shape and dtype, and nothing drawn."""

from __future__ import annotations

import subprocess
import sys

import torch

from tests.model.networks import ACTIONS, build, schemas
from wmrt.model.config import preset
from wmrt.model.hollow import constants, hollow
from wmrt.model.network import Network

#: Torch's compiler, which torch imports to say what shape a draw on the meta device has.
COMPILER = "torch._dynamo"


def test_what_is_stored_has_no_values_and_what_is_not_has_its_own(seed: int) -> None:
    for schema in schemas().values():
        drawn = build(seed, schema)
        made = Network.hollow(schema, drawn.config, ACTIONS)
        stored = drawn.state_dict()
        assert {n: (t.shape, t.dtype) for n, t in made.state_dict().items()} == {
            n: (t.shape, t.dtype) for n, t in stored.items()
        }
        assert all(tensor.is_meta for tensor in made.state_dict().values())
        others = {n: t for n, t in made.named_buffers() if n not in stored}
        expected = {n: t for n, t in drawn.named_buffers() if n not in stored}
        assert others.keys() == expected.keys() and others
        assert all(torch.equal(others[n], t) and others[n].dtype == t.dtype
                   for n, t in expected.items())  # fmt: skip
        made.load_state_dict(stored, strict=True, assign=True)
        assert not any(t.is_meta for t in (*made.parameters(), *made.buffers()))
        assert all(
            mine.requires_grad == theirs.requires_grad
            for mine, theirs in zip(made.parameters(), drawn.parameters(), strict=True)
        )


def test_nothing_is_drawn(seed: int) -> None:
    schema = next(iter(schemas().values()))
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    Network.hollow(schema, preset("tiny"), ACTIONS)
    assert torch.equal(torch.get_rng_state(), before)


def test_constants_have_values_within() -> None:
    with hollow():
        assert torch.zeros(2).is_meta and torch.randn(2).is_meta
        with constants():
            assert torch.arange(2).tolist() == [0, 1]
        assert torch.zeros(2).is_meta
    assert not torch.zeros(2).is_meta


def test_torch_does_not_import_its_compiler() -> None:
    program = f"""
import sys
from wmrt.model.checkpoint import load_checkpoint
from wmrt.model.config import preset
from wmrt.model.network import Network
model = load_checkpoint("highway")
Network.hollow(model.schema, preset("1.3b"), model.actions)
print({COMPILER!r} in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
