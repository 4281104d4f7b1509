"""Whether the CUDA driver of this machine has a device: asked of the driver itself, without torch,
which takes seconds to load and to say the same."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

_DRIVER = "libcuda.so.1"


def refusal(load: Callable[[str], Any] = ctypes.CDLL) -> str | None:
    """Why there is none, with what to do; None where there is one."""
    try:
        driver = load(_DRIVER)
    except OSError:
        return (
            f"this machine has no CUDA driver ({_DRIVER} is not found); run it on a machine with "
            "an NVIDIA GPU where nvidia-smi works, in a container with its GPUs passed through"
        )
    count = ctypes.c_int(0)
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code or not count.value:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"its error {code}" if code else "it counts 0"
        more = "" if hidden is None else f", and that CUDA_VISIBLE_DEVICES={hidden!r} hides none"
        return f"the CUDA driver finds no device ({why}); see that nvidia-smi lists one{more}"
    return None
