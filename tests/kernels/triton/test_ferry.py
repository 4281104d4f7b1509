"""CPU tensors of a launch, carried to a device and back; the CPU stands for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from wmrt.core.errors import UsageError
from wmrt.kernels.triton.ferry import carry, ferried


def test_what_a_kernel_writes_comes_back_and_nothing_else_moves() -> None:
    base = torch.arange(12.0)
    part, same = base[2:8].view(2, 3).t(), base[4:]
    bits = base.view(torch.int32)
    seen: dict[str, Any] = {}

    def launch(a: torch.Tensor, b: torch.Tensor, n: int, c: torch.Tensor) -> str:
        seen.update(a=a, b=b, c=c)
        assert a.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
        assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        assert (a.shape, a.stride(), a.storage_offset()) == ((3, 2), (1, 3), 2) and n == 5
        assert torch.equal(a, part) and c.dtype == torch.int32
        a.fill_(-1.0)
        b[0] = 7.0  # shared with a
        assert a[2, 0] == 7.0
        return "queued"

    assert carry(launch, (part, same, 5), {"c": bits}, "cpu") == "queued"
    assert base.tolist() == [0, 1, -1, -1, 7, -1, -1, -1, 8, 9, 10, 11]


def test_empty_tensors_and_those_of_the_device_are_let_alone() -> None:
    empty, meta = torch.zeros(0, 3), torch.zeros(2, device="meta")

    def launch(a: torch.Tensor, b: torch.Tensor, none: None) -> None:
        assert a.shape == (0, 3) and b is meta and none is None

    carry(launch, (empty, meta, None), {}, "cpu")


def test_launches_are_taken_over_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.jit import JITFunction

    from wmrt.kernels.triton import ferry

    calls: list[Any] = []

    def launch(function: Any, *args: Any, **kwargs: Any) -> None:
        calls.append((args, kwargs))

    monkeypatch.setattr(JITFunction, "run", launch)
    monkeypatch.setattr(ferry, "carry", lambda launch, a, k, device: launch(*a, **k, on=device))
    with ferried():
        JITFunction.run(None, 1, grid=(1,))
    assert calls == [((1,), {"grid": (1,), "on": "cuda"})] and JITFunction.run is launch
    with pytest.raises(UsageError, match="repairs of the interpreter"), ferried(without=["fma"]):
        pass
