"""Which executor steps a model: the native one in a single call, fused operators on a GPU, or torch
operator by operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wmrt.core import machine
from wmrt.core.errors import MissingExtraError, UnsupportedError, UsageError
from wmrt.kernels import linear as pick
from wmrt.kernels.native import step as abi
from wmrt.kernels.native.library import ACTIVATIONS, FORMATS, Pool, check_threads, isa, library
from wmrt.kernels.state_arguments import KINDS
from wmrt.kernels.triton.library import require_kernels
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.network import Network
from wmrt.quant import Recipe, get_recipe
from wmrt.runtime import triton_model
from wmrt.runtime.build import Built, build_network, running_recipe
from wmrt.runtime.native_model import NativeModel
from wmrt.runtime.native_pages import ResolvedPages, check_pages, place
from wmrt.runtime.native_state import NativeExecutor, state_bytes
from wmrt.runtime.report import layouts
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_state import TritonState

EXECUTORS = ("auto", "native", "triton", "eager")


@dataclass(frozen=True)
class ResolvedExecutor:
    """What steps, on how many threads, and why; `isa` is the native one's instruction set, `pages`
    where its weights lie."""

    name: str
    reason: str
    threads: int
    isa: str | None = None
    native: NativeExecutor | None = None
    pages: ResolvedPages | None = None
    triton: TritonModel | None = None

    @property
    def implementation(self) -> str:
        """Of the linear operators."""
        return "reference" if self.name == "eager" else self.name


def default_threads() -> int:
    """All processors this process may use but one, which watchdogs and I/O keep; at least 1."""
    return max(1, machine.usable_cpus() - 1)


def check_executor(executor: str, threads: int | None, cpus: Sequence[int] | None = None) -> None:
    """Raise `UsageError` for a name or a number that is none, or processors not ours."""
    if executor not in EXECUTORS:
        raise UsageError(f"executor {executor!r} is unknown; allowed: {', '.join(EXECUTORS)}")
    usable = machine.usable_cpus()
    if threads is not None and not (type(threads) is int and 1 <= threads <= usable):
        raise UsageError(
            f"threads={threads!r}: whole, 1 to {usable}, the processors this process may use"
        )

    if cpus is None:
        return
    if executor in ("eager", "triton"):
        raise UsageError(f"cpus pins the native executor's threads; executor={executor} has none")
    if not isinstance(cpus, list | tuple | range) or {type(cpu) for cpu in cpus} - {int}:
        raise UsageError(f"cpus={cpus!r}: a list of processor numbers, one for each thread")
    check_threads(len(cpus) if threads is None else threads, cpus)


def native_refusal(recipe: Recipe, selector: str, device: torch.device) -> str | None:
    """Why the native executor cannot step such a model here; None if it can.

    Raises `UsageError` or `UnsupportedError` for a WMRT_ISA that is none, or absent here.
    """
    if device.type != "cpu":
        return f"it runs on the CPU, and the device is {device}; give device=cpu"
    if selector not in abi.SELECTORS:
        return f"it has no {selector} selector, only {', '.join(abi.SELECTORS)}"
    try:
        library()
    except UnsupportedError as error:
        return str(error)
    chosen = isa()  # one that WMRT_ISA names and is not there is an error, not a reason
    try:
        for own in (recipe, get_recipe("bf16")):
            form, activation = own.weight_format, own.activation
            pick(form, activation, "native")
            numbers = FORMATS.get(form), ACTIVATIONS.get(activation)
            if None in numbers or abi.kernel_isa(chosen.number, *numbers) is None:  # type: ignore[arg-type]
                return f"{chosen.name} has no kernel for {form} weights with {activation}"
    except UnsupportedError as error:
        return str(error)
    return None


def build_native(
    network: Network,
    checkpoint: Checkpoint,
    threads: int | None,
    cpus: Sequence[int] | None,
    pages: str,
) -> ResolvedExecutor:
    """The native executor of a network built with its operators from `checkpoint`.

    Raises `UnsupportedError` for sizes, values or pages it does not take.
    """
    placed = place(network, checkpoint, pages)
    if threads is None:
        threads = default_threads() if cpus is None else len(cpus)
    model, chosen = NativeModel(network), isa()
    pool = None if threads == 1 else Pool(threads, cpus)
    native = NativeExecutor(model, chosen, threads, pool)
    state_bytes(native)  # refuses what no state can be made for
    return ResolvedExecutor("native", "", threads, chosen.name, native, placed)


def triton_refusal(recipe: Recipe, selector: str, device: torch.device) -> str | None:
    """Why the fused operators cannot step such a model there; None if they can."""
    if device.type != "cuda":
        return f"it runs on a CUDA device, and the device is {device}; give device=cuda"
    if selector not in KINDS:
        return f"it has no {selector} selector, only {', '.join(KINDS)}"
    try:
        require_kernels(device)
        pick(recipe.weight_format, recipe.activation, "triton")
    except (UnsupportedError, MissingExtraError) as error:
        return str(error)
    if not recipe.packs or recipe.activation != triton_model.ACTIVATION:
        return (
            f"its trunk multiplies 4-bit weights by {triton_model.ACTIVATION} activations, and "
            f"{recipe.name} is {recipe.weight_format} with {recipe.activation}"
        )
    return None


def build_triton(network: Network) -> ResolvedExecutor:
    """The fused operators on a network built for them. Raises `UnsupportedError` for sizes they do
    not take."""
    model = TritonModel(network)
    TritonState(network, model)  # refuses what no state can be made for
    return ResolvedExecutor("triton", "", torch.get_num_threads(), triton=model)


def eager(reason: str, threads: int | None) -> ResolvedExecutor:
    """Torch, on `threads` threads if given: a setting of the whole process."""
    if threads is not None:
        torch.set_num_threads(threads)
    return ResolvedExecutor("eager", reason, torch.get_num_threads())


def build(
    checkpoint: Checkpoint,
    recipe: str | Recipe | None,
    device: torch.device,
    executor: str,
    threads: int | None,
    cpus: Sequence[int] | None = None,
    pages: str = "auto",
) -> tuple[Built, ResolvedExecutor]:
    """The network and what steps it: with ``auto`` the native executor unless something stands
    against it; `UnsupportedError` says what if ``native``, or its ``pages`` or ``cpus``, were asked
    for."""
    check_executor(executor, threads, cpus)
    check_pages(pages, executor)
    if executor == "eager":
        used = eager("asked for", threads)
        return build_network(checkpoint, recipe, device), used
    wanted, selector = running_recipe(checkpoint, recipe), str(checkpoint.model.get("selector"))
    name = _candidate(executor, device)
    refuses = triton_refusal if name == "triton" else native_refusal
    reason = refuses(wanted, selector, device)
    if reason is None:
        try:
            built = build_network(checkpoint, recipe, device, name)
            if name == "triton":
                return built, build_triton(built.network)
            return built, build_native(built.network, checkpoint, threads, cpus, pages)
        except UnsupportedError as error:
            reason = str(error)
    if executor != "auto" or pages != "auto" or cpus is not None:
        asked = f"executor={executor}" + f" with pages={pages}" * (pages != "auto")
        asked += f" with cpus={cpus}" * (cpus is not None)
        raise UnsupportedError(f"{asked} cannot be had: {reason}")
    return build_network(checkpoint, recipe, device), eager(reason, threads)


def _candidate(executor: str, device: torch.device) -> str:
    """What is asked for, or what ``auto`` would have on this device."""
    if executor != "auto":
        return executor
    return "triton" if device.type == "cuda" else "native"


def resolve(built: Built, used: ResolvedExecutor) -> dict[str, Any]:
    """What runs, as the run report says it."""
    return {
        "recipe": built.recipe.name,
        "weight_format": built.recipe.weight_format,
        "activation": built.recipe.activation,
        "layout": layouts(built.network)["running"],
        "executor": used.name,
        "executor_reason": used.reason,
        "isa": used.isa,
        "pages": None if used.pages is None else used.pages.name,
        "pages_reason": None if used.pages is None else used.pages.reason,
        "threads": used.threads,
        "cpus": None if used.native is None or not used.native.pool else used.native.pool.cpus,
        "torch": torch.__version__,
    }
