"""Waiting for a GPU by spinning, asked of the driver before there is a context.

With the driver's default a wait blocks on Tegra, and wherever there are more contexts than
processors it yields; waking up then costs tens of microseconds (ggml-org/llama.cpp#16585). torch
has no call for it: what `torch.cuda.cudart()` exposes does not include ``cudaSetDeviceFlags``. So
the driver is asked itself, and asked again afterwards what it made of it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

#: CU_CTX_SCHED_SPIN and CU_CTX_SCHED_MASK of cuda.h.
SPIN, SCHEDULES = 0x01, 0x07
_LIBRARY = "libcuda.so.1"


@dataclass(frozen=True)
class SpinSync:
    """Whether waits for the device spin, and how that came about."""

    obtained: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"obtained": self.obtained, "reason": self.reason}


class _Refused(Exception):
    """A call that the driver did not take."""


def request_spin(index: int, driver: Any = None) -> SpinSync:
    """Ask that waits for CUDA device ``index`` spin. Best called before anything touches the
    device: some drivers take the flags of a context that is already there, others refuse.

    Args:
        driver: what has the functions of libcuda; None loads it. Never raises: what stands against
            it is the answer's reason.
    """
    if driver is None:
        try:
            driver = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            return SpinSync(False, f"no driver: {error}")
    try:
        return _request(driver, index)
    except _Refused as error:
        return SpinSync(False, str(error))


def _request(driver: Any, index: int) -> SpinSync:
    device = ctypes.c_int()
    _call(driver, "cuInit", 0)
    _call(driver, "cuDeviceGet", ctypes.byref(device), index)
    flags, active = _state(driver, device)
    when = "in a context that was there before" if active else "before there was a context"
    if flags & SCHEDULES == SPIN:
        return SpinSync(True, "the driver spins already")
    wanted = flags & ~SCHEDULES | SPIN
    _call(driver, "cuDevicePrimaryCtxSetFlags", device, ctypes.c_uint(wanted))
    flags, _ = _state(driver, device)
    if flags & SCHEDULES != SPIN:
        return SpinSync(False, f"the driver kept its schedule {flags & SCHEDULES}, asked {when}")
    return SpinSync(True, f"the driver spins, asked {when}")


def _state(driver: Any, device: ctypes.c_int) -> tuple[int, bool]:
    """Flags of the primary context, and whether it exists."""
    flags, active = ctypes.c_uint(), ctypes.c_int()
    asked = ctypes.byref(flags), ctypes.byref(active)
    _call(driver, "cuDevicePrimaryCtxGetState", device, *asked)
    return flags.value, bool(active.value)


def _call(driver: Any, name: str, *arguments: Any) -> None:
    # SetFlags got a second version with CUDA 11; the first one refuses a context that exists.
    function = getattr(driver, f"{name}_v2", None) if name.endswith("SetFlags") else None
    function = function or getattr(driver, name, None)
    if function is None:
        raise _Refused(f"the driver has no {name}")
    code = function(*arguments)
    if code:
        raise _Refused(f"{name} answered CUDA error {code}")
