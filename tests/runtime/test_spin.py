"""What is asked of the driver, and what is made of its answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from wmrt.core.errors import UsageError
from wmrt.runtime.graph_backend import TorchBackend, backend_of
from wmrt.runtime.spin import request_spin


class Driver:
    """libcuda with one device. ``deaf`` takes flags and keeps its own; ``codes`` are answers."""

    def __init__(
        self, flags: int = 0, active: bool = False, deaf: bool = False, **codes: int
    ) -> None:
        self.flags, self.active, self.deaf, self.codes = flags, active, deaf, codes
        self.calls: list[str] = []

    def _answer(self, name: str) -> int:
        self.calls.append(name)
        return self.codes.get(name, 0)

    def cuInit(self, flags: int) -> int:
        return self._answer("cuInit")

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index + 10
        return self._answer("cuDeviceGet")

    def cuDevicePrimaryCtxGetState(self, device: Any, flags: Any, active: Any) -> int:
        assert device.value == 12
        flags._obj.value, active._obj.value = self.flags, self.active
        return self._answer("cuDevicePrimaryCtxGetState")

    def cuDevicePrimaryCtxSetFlags_v2(self, device: Any, flags: Any) -> int:
        assert device.value == 12
        code = self._answer("cuDevicePrimaryCtxSetFlags")
        self.flags = self.flags if self.deaf or code else flags.value
        return code


@pytest.mark.parametrize(
    ("driver", "obtained", "reason", "flags"),
    [
        (Driver(), True, "the driver spins, asked before there was a context", 1),
        (Driver(flags=0x1C, active=True), True, "asked in a context that was there before", 0x19),
        (Driver(flags=0x01), True, "the driver spins already", 1),
        (Driver(flags=4, deaf=True), False, "the driver kept its schedule 4, asked before", 4),
        (Driver(cuInit=100), False, "cuInit answered CUDA error 100", 0),
        (Driver(cuDevicePrimaryCtxSetFlags=708), False, "SetFlags answered CUDA error 708", 0),
    ],
)
def test_answers(driver: Driver, obtained: bool, reason: str, flags: int) -> None:
    asked = request_spin(2, driver)
    assert asked.obtained is obtained and reason in asked.reason
    assert driver.flags == flags  # all but the schedule is kept
    assert asked.to_json() == {"obtained": obtained, "reason": asked.reason}


def test_what_spins_already_is_not_set_again() -> None:
    driver = Driver(flags=1, active=True)
    assert request_spin(2, driver).obtained
    assert "cuDevicePrimaryCtxSetFlags" not in driver.calls


def test_a_driver_without_the_call() -> None:
    assert "the driver has no cuInit" in request_spin(0, object()).reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver here")
def test_without_a_driver() -> None:
    asked = TorchBackend(torch.device("cuda")).spin()
    assert not asked.obtained and asked.reason


def test_a_backend_is_of_one_device() -> None:
    class Lying:
        def __init__(self, device: str) -> None:
            self.device = torch.device(device)

    cpu: Any = Lying("cpu")
    assert backend_of([cpu]).unavailable() == "a CUDA Graph needs a CUDA device, this one is cpu"
    one: Any = [Lying("cuda:1"), cpu]
    assert backend_of(one).device == torch.device("cuda:1")
    two: Any = [Lying("cuda:0"), Lying("cuda:1")]
    with pytest.raises(UsageError, match="lie on cuda:0, cuda:1; put them on one device"):
        backend_of(two)
    backend = backend_of([cpu])
    backend.synchronize()
    assert backend.allocated() is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_a_cuda_device_that_is_not_there() -> None:
    said = TorchBackend(torch.device("cuda")).unavailable()
    assert said is not None and "CUDA" in said and "use device=cpu" in said
