"""Whether triton's kernels can run here: asked once, answered by an error that says what to do.

Nothing here falls back.
"""

from __future__ import annotations

import re

import torch

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.core.extras import require

#: First release, major and minor, that the kernels are written for, and the first that is too new.
FIRST, BEYOND = (3, 6), (3, 10)
#: Whether a product and a sum become one instruction that rounds once. Said at every compilation:
#: triton's default changes with 3.10.
FP_FUSION = True
#: Releases whose assembler first knew a capability, where that is later than `FIRST`: the one of
#: 3.6.0 ends with "Value 'sm_110a' is not defined".
_ASSEMBLED_FROM = {110: (3, 7)}
#: Compute capabilities that the kernels compile for: Ampere and later, Jetson Orin (87) and Thor
#: (110) among them.
CAPABILITIES = (80, 86, 87, 89, 90, 100, 103, 110, 120, 121)


def assembles(capability: int, version: tuple[int, int]) -> bool:
    """Whether that release of triton brings an assembler for ``capability``."""
    return version >= _ASSEMBLED_FROM.get(capability, FIRST)


def releases() -> list[str]:
    """The releases of triton that the kernels are written for: 3.6, 3.7 and so on."""
    return [f"{FIRST[0]}.{minor}" for minor in range(FIRST[1], BEYOND[1])]


def triton_version() -> tuple[int, int]:
    """Major and minor version of the triton that is installed. Imports it.

    Raises:
        MissingExtraError: there is none.
        UnsupportedError: it is older or newer than what the kernels are written for.
    """
    text = str(require("triton", "cuda").__version__)
    found = re.match(r"(\d+)\.(\d+)", text)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if not FIRST <= version < BEYOND:
        raise UnsupportedError(
            f"triton {text} is installed; the kernels are written for {_dotted(FIRST)} up to, "
            f"without, {_dotted(BEYOND)}; run: pip install 'wmrt[cuda]'"
        )
    return version


def capability(device: torch.device | str | int = "cuda") -> int:
    """Compute capability of a CUDA device as one number, such as 87 or 120.

    Raises:
        UsageError: not a CUDA device, or one that is not there.
        UnsupportedError: torch has no CUDA, there is no device, or it is none of `CAPABILITIES`.
    """
    place = _device(device)
    if place.type != "cuda":
        raise UsageError(f"device {device!r}: triton's kernels run on cuda devices")
    require_cuda()
    index, count = place.index, torch.cuda.device_count()
    if index is not None and index >= count:
        raise UsageError(f"device {device!r}: there are {count} CUDA devices, counted from 0")
    major, minor = torch.cuda.get_device_capability(place)
    number = major * 10 + minor
    if number not in CAPABILITIES:
        listed = ", ".join(map(str, CAPABILITIES))
        raise UnsupportedError(
            f"{torch.cuda.get_device_name(place)} has compute capability {major}.{minor}; the "
            f"kernels are made for {listed}; use executor=eager there, or device=cpu"
        )
    return number


def _device(device: torch.device | str | int) -> torch.device:
    """As torch reads it. What torch would not: a negative number is the last one's to it."""
    try:
        place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        place = None
    if place is None or isinstance(device, bool) or (place.index or 0) < 0:
        raise UsageError(f"device {device!r} is not understood; give cuda, cuda:1 or a number")
    return place


def require_kernels(device: torch.device | str | int = "cuda") -> int:
    """`capability` of the device, after all that running a kernel there needs was found.

    Raises:
        MissingExtraError, UnsupportedError, UsageError: as `triton_version` and `capability`.
    """
    number, version = capability(device), triton_version()
    if not assembles(number, version):
        first = _dotted(_ASSEMBLED_FROM[number])
        raise UnsupportedError(
            f"triton {_dotted(version)} has no assembler for compute capability {number}; install "
            f"triton {first} or later, or use executor=eager"
        )
    return number


def require_cuda() -> None:
    """Raise `UnsupportedError` if this torch has no CUDA, or finds no device."""
    if torch.version.cuda is None:
        raise UnsupportedError(
            f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch (see "
            "https://pytorch.org/get-started), or use device=cpu"
        )
    if not torch.cuda.is_available():
        raise UnsupportedError(
            f"torch {torch.__version__} finds no CUDA device: see that nvidia-smi lists one and "
            "that CUDA_VISIBLE_DEVICES does not hide it, or use device=cpu"
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
