"""From the name a person types to a checkpoint folder on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from wmrt.core.errors import CheckpointError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"
#: Calibration of the prediction monitor, beside a model that has one (`wmrt.control.calibration`).
MONITOR_FILE = "monitor.json"
#: Checkpoints that come with the package.
PACKAGED = Path(__file__).resolve().parent.parent / "checkpoints"

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_PACKAGED_NAME = re.compile(_NAME)
_HUB_NAME = re.compile(f"{_NAME}/{_NAME}")


def packaged_names() -> tuple[str, ...]:
    """Names of the checkpoints that come with the package, sorted."""
    return tuple(sorted(entry.parent.name for entry in PACKAGED.glob(f"*/{CONFIG_FILE}")))


def resolve_checkpoint(name_or_path: str | os.PathLike[str], revision: str | None = None) -> Path:
    """Folder of a checkpoint: an existing path, else a packaged name, else a hub repository.

    Args:
        name_or_path: what to look for; a hub repository is written ``owner/name``.
        revision: branch, tag or commit; only for a hub repository.

    Returns:
        A folder that holds ``config.json``. A hub repository is downloaded or taken from its cache.

    Raises:
        CheckpointError: nothing of that name, a path that is no checkpoint folder, ``revision``
            given for something that is not on the hub, or a hub repository that cannot be had.
    """
    name = os.fspath(name_or_path)
    path = os.path.expanduser(name)
    if os.path.exists(path):
        return _local(Path(path), name, revision)
    if _PACKAGED_NAME.fullmatch(name) and os.path.isfile(PACKAGED / name / CONFIG_FILE):
        return _local(PACKAGED / name, name, revision)
    if _HUB_NAME.fullmatch(name):
        return _from_hub(name, revision)
    known = ", ".join(packaged_names()) or "none"
    raise CheckpointError(
        f"no checkpoint {name!r}: no such path and no packaged checkpoint (packaged: {known}); "
        "give a folder, a packaged name, or a hub repository as owner/name"
    )


def _local(path: Path, name: str, revision: str | None) -> Path:
    if revision is not None:
        raise CheckpointError(
            f"revision {revision!r} was given, but {name!r} is local; leave it out"
        )
    if not path.is_dir():
        raise CheckpointError(
            f"{name!r} is a file; a checkpoint is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}"
        )
    if not (path / CONFIG_FILE).is_file():
        shadows = name in packaged_names()
        hint = "; to use the packaged checkpoint, run from another folder" if shadows else ""
        raise CheckpointError(f"folder {name!r} holds no {CONFIG_FILE}{hint}")
    return path


def _from_hub(name: str, revision: str | None) -> Path:
    import huggingface_hub  # 0.3 s to import, and only needed here

    try:
        folder = huggingface_hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=[CONFIG_FILE, WEIGHTS_FILE, CARD_FILE, MONITOR_FILE],
        )
    except Exception as error:  # its errors come from several libraries (HTTP, cache, file system)
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"no folder {name!r} here, and the hub repository {name!r} cannot be had: {first[0]}"
        ) from error
    if not (Path(folder) / CONFIG_FILE).is_file():
        raise CheckpointError(f"hub repository {name!r} holds no {CONFIG_FILE}")
    return Path(folder)
