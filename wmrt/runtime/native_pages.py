"""Where the weights of the native executor lie: in the file's mapping, or in huge pages.

Pages of a mapped file are 4 KiB, cost nothing at start and are shared by all processes that run the
file. Huge pages (2 MiB) are memory of this process, to which the weights are copied.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wmrt.core import machine
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.network import Network
from wmrt.quant.ledger import MISSING, Figure
from wmrt.runtime.build import linears

PAGES = ("auto", "mapped", "huge")
HUGE = 2 << 20
_ALIGNED = 64
_MADV_COLLAPSE = 25  # Python has no name for it
_SMAPS = Path("/proc/self/smaps")
_HEADER = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ", re.MULTILINE)


@dataclass(frozen=True)
class ResolvedPages:
    """``mapped``, ``huge``, or ``private``: memory that torch's allocator gave; and why."""

    name: str
    reason: str


def check_pages(pages: str, executor: str) -> None:
    """Raise `UsageError` for a name that is none, or a choice that the executor does not have."""
    if pages not in PAGES:
        raise UsageError(f"pages {pages!r} is unknown; allowed: {', '.join(PAGES)}")
    if executor in ("eager", "triton") and pages != "auto":
        raise UsageError(
            f"pages={pages} says where the native executor's weights lie; with "
            f"executor={executor} leave it at auto"
        )


def place(network: Network, checkpoint: Checkpoint, pages: str) -> ResolvedPages:
    """Put the weights of a network, just built from `checkpoint`, where `pages` says.

    Raises `UnsupportedError` for what cannot be had: ``mapped`` of weights that were rearranged or
    packed when they were loaded, ``huge`` where the system gives no huge pages.
    """
    elsewhere = _not_in_file(network, checkpoint)
    if pages == "huge":
        return _to_huge(network)
    if elsewhere is None:
        why = "asked for" if pages == "mapped" else "read in place: no copy, shared by processes"
        return ResolvedPages("mapped", why)
    if pages == "mapped":
        raise UnsupportedError(
            f"{elsewhere}; store them in the layout that is read "
            "(wmrt quantize --layout cpu_interleaved)"
        )
    return ResolvedPages("private", elsewhere)


def _not_in_file(network: Network, checkpoint: Checkpoint) -> str | None:
    """Why the linears' weights are not read from the checkpoint's file; None: they are."""
    if checkpoint.path is None:
        return "the checkpoint is in memory, not in a file"
    stored = {tensor.data_ptr() for tensor in checkpoint.tensors.values()}
    for module in linears(network).values():
        held = [*module.parameters(), *module.buffers()]
        if max(held, key=Tensor.numel).data_ptr() not in stored:
            if module.stored_layout is None:
                return "weights were packed when they were loaded"
            return (
                f"weights are stored in layout {module.stored_layout} and were rearranged for "
                f"{module.layout}"
            )
    return None


def _to_huge(network: Network) -> ResolvedPages:
    setting = machine.huge_pages()
    if setting not in ("always", "madvise"):
        raise UnsupportedError(
            f"transparent huge pages are {setting or 'not there'} on this system "
            "(/sys/kernel/mm/transparent_hugepage/enabled); use pages=auto"
        )
    held = (*network.parameters(), *network.buffers())
    arena = Arena(sum(-(-t.nbytes // _ALIGNED) * _ALIGNED for t in held))
    network._apply(arena.take)  # type: ignore[no-untyped-call]
    arena.collapse()
    got = arena.huge_bytes().bytes
    if got == 0:
        raise UnsupportedError("the system gave no huge page, memory is too scattered; use auto")
    share = "" if got is None else f", {min(1, got / arena.used):.0%} of the weights lie in them"
    return ResolvedPages("huge", f"asked for{share}")


class Arena:
    """Memory for which huge pages are asked, handed out front to back."""

    def __init__(self, size: int) -> None:
        whole = -(-size // HUGE) * HUGE + HUGE
        # Private: shared anonymous memory, Python's default, has a setting of its own.
        block = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        block.madvise(mmap.MADV_HUGEPAGE)
        memory = torch.frombuffer(block, dtype=torch.uint8)  # keeps the block
        start = -memory.data_ptr() % HUGE
        self._memory, self.used = memory[start : start + size], 0
        self._block = block

    def take(self, tensor: Tensor) -> Tensor:
        """A copy of a CPU tensor in this memory."""
        part = self._memory[self.used : self.used + tensor.nbytes]
        self.used += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
        stored = tensor.detach().contiguous().view(-1).view(torch.uint8)
        np.copyto(part.numpy(), stored.numpy())
        return part.view(tensor.dtype).view(tensor.shape)

    def collapse(self) -> None:
        """Join what small pages hold into huge ones (Linux 6.1 and newer; before, they stay).

        Where `mlockall` covers future memory, as real-time programs have it, the system fills a
        mapping with small pages before huge ones can be asked for.
        """
        huge = self.huge_bytes().bytes
        if huge is None or huge < self.used:
            with contextlib.suppress(OSError):
                self._block.madvise(_MADV_COLLAPSE)

    def huge_bytes(self, smaps: Path = _SMAPS) -> Figure:
        """How much of it huge pages hold; missing where the system does not tell."""
        try:
            text = smaps.read_text("utf-8", "replace")
        except OSError:
            return MISSING
        at = self._memory.data_ptr()
        for header in _HEADER.finditer(text):
            if int(header[1], 16) <= at < int(header[2], 16):
                size = re.compile(r"^AnonHugePages:\s*(\d+) kB", re.MULTILINE).search(
                    text, header.end()
                )
                return MISSING if size is None else Figure(int(size[1]) * 1024, "measured")
        return MISSING
