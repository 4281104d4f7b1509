"""Each thing that running a triton kernel needs, taken away: the error names it and what to do."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import triton

from wmrt.core.errors import MissingExtraError, UnsupportedError, UsageError
from wmrt.kernels.triton import library


class Device:
    """Stands for torch's view of a CUDA machine; all of it is in the methods replaced here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capability, self.available, self.count = (9, 0), True, 1
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: self.available)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: self.count)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda place: self.capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: "A GPU")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.mark.parametrize("number", library.CAPABILITIES)
def test_every_capability_is_one_number(device: Device, number: int) -> None:
    if not library.assembles(number, library.triton_version()):
        pytest.skip("this triton has no assembler for it, which has a test of its own")
    device.capability = divmod(number, 10)
    assert library.require_kernels("cuda:0") == number


@pytest.mark.parametrize("capability", [(7, 5), (10, 1), (13, 0)])
def test_another_capability_is_refused(device: Device, capability: tuple[int, int]) -> None:
    device.capability = capability
    says = rf"A GPU has compute capability {capability[0]}\.{capability[1]}.*80, 86, 87"
    with pytest.raises(UnsupportedError, match=says):
        library.capability()


def test_an_assembler_that_is_too_old(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.capability = (11, 0)
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    says = r"triton 3\.6 has no assembler for compute capability 110; install triton 3\.7 or later"
    with pytest.raises(UnsupportedError, match=says):
        library.require_kernels()
    monkeypatch.setattr(triton, "__version__", "3.7.1")
    assert library.require_kernels() == 110


def test_no_cuda_in_torch(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UnsupportedError, match="built without CUDA; install a CUDA build"):
        library.require_kernels()


def test_no_device(device: Device) -> None:
    device.available = False
    with pytest.raises(UnsupportedError, match="finds no CUDA device: see that nvidia-smi"):
        library.require_kernels()


def test_a_device_that_is_not_there(device: Device) -> None:
    with pytest.raises(UsageError, match="device 1: there are 1 CUDA devices"):
        library.capability(1)
    with pytest.raises(UsageError, match="device 'cpu': triton's kernels run on cuda devices"):
        library.capability("cpu")


@pytest.mark.parametrize("given", ["nonsense", "cuda:-1", "cuda:x", "", -1, True, None, 1.5])
def test_a_device_that_is_none(given: Any, device: Device) -> None:
    with pytest.raises(UsageError, match=f"device {given!r} is not understood; give cuda, cuda:1"):
        library.capability(given)


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.9.0+git12ab", "3.9.12"])
def test_versions_that_the_kernels_are_for(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    assert library.triton_version() == tuple(map(int, version.split(".")[:2]))


@pytest.mark.parametrize("version", ["2.3.1", "3.5.1", "3.10.0", "4.0.0", "unknown"])
def test_other_versions_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    says = rf"triton {version} is installed.*3\.6 up to, without, 3\.10.*wmrt\[cuda\]"
    with pytest.raises(UnsupportedError, match=says):
        library.triton_version()


def test_no_triton(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'wmrt\[cuda\]'"):
        library.require_kernels()
