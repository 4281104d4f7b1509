"""A device by its name: which there is, and what is missing where there is none."""

from __future__ import annotations

import pytest
import torch

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.runtime.checks import resolve_device


@pytest.mark.parametrize(
    ("build", "devices", "name", "says"),
    [
        (None, 0, "cuda", "built without CUDA; install a CUDA build of torch .* use device=cpu"),
        ("13.0", 0, "cuda:1", "finds no CUDA device: see that nvidia-smi lists .* use device=cpu"),
        ("13.0", 2, "cuda:2", "torch sees 2 CUDA devices, cuda:0 to cuda:1; use one of them, or"),
        ("13.0", 2, "cuda:256", "torch sees 2 CUDA devices"),
    ],
)
def test_what_is_missing_is_told(
    build: str | None, devices: int, name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with pytest.raises(UnsupportedError, match=f"^device '{name}' cannot be had: .*{says}"):
        resolve_device(name)


def test_a_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda") == torch.device("cuda")
    assert resolve_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:x", "mps", "", 0])
def test_other_kinds(name: object) -> None:
    with pytest.raises(UsageError, match="use cpu, cuda or cuda:N"):
        resolve_device(name)  # type: ignore[arg-type]
