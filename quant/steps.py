"""Steps of a recipe: how its 4-bit codes are found, one typed record a method.

Three phases, always in this order, however many of each the phase allows:

1. transforms rewrite the float network without changing what it computes, so that it rounds better:
   `Hadamard` once, then one of `Awq` and `SmoothQuant`
2. scale choices pick each block's scale: `FourOverSix` or `Clip`, at most one; without one the
   format's own rule holds
3. rounding picks the codes under those scales: `Gptq`; without it every element goes to nearest.
   `Rescale` behind it lets GPTQ move the scales as well

No step at all is round to nearest (RTN). What a step needs beyond the weights, recorded episodes,
`needs_data` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from wmrt.core.errors import QuantizationError
from wmrt.quant.formats import block_format


@dataclass(frozen=True)
class Step:
    """Base of all steps. `kind` is its name in JSON and on the command line."""

    kind: ClassVar[str]
    phase: ClassVar[int]
    rank: ClassVar[int] = 0

    @property
    def needs_data(self) -> bool:
        """Whether it reads recorded episodes."""
        return True

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Hadamard(Step):
    """Rotate the residual stream and each value head by a Hadamard matrix with random signs,
    absorbed into the weights on both sides (QuaRot, Ashkboos et al. 2024, section 4.1: R1 and the
    offline half of the value rotation). Nothing is added at run time."""

    kind: ClassVar[str] = "hadamard"
    phase: ClassVar[int] = 1

    seed: int = 0

    @property
    def needs_data(self) -> bool:
        return False


@dataclass(frozen=True)
class Awq(Step):
    """Per-channel scales by mean activation magnitude to a searched power, folded into what writes
    the channel (AWQ, Lin et al. 2024). `grid` powers between 0 and 1 are tried."""

    kind: ClassVar[str] = "awq"
    phase: ClassVar[int] = 1
    rank: ClassVar[int] = 1

    grid: int = 20

    def __post_init__(self) -> None:
        if self.grid < 1:
            raise QuantizationError(f"awq grid must be at least 1, got {self.grid}")


@dataclass(frozen=True)
class SmoothQuant(Step):
    """Per-channel scales amax(x)^alpha / amax(w)^(1 - alpha), folded the same way (SmoothQuant,
    Xiao et al. 2023, equation 4); alpha None tries 0.05 to 0.95 and keeps the best per fold."""

    kind: ClassVar[str] = "smoothquant"
    phase: ClassVar[int] = 1
    rank: ClassVar[int] = 1

    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0.0 <= self.alpha <= 1.0:
            raise QuantizationError(f"smoothquant alpha must be 0 to 1, got {self.alpha}")


@dataclass(frozen=True)
class FourOverSix(Step):
    """Per block, the scale that maps its largest magnitude to 6 or the one that maps it to 4,
    whichever leaves the smaller error; nvfp4 only (Cook et al. 2025).

    `metric` is that error, squared (mse) or absolute (mae). `largest` is what the largest block
    scale is stored as: 448, the end of E4M3, leaves the largest blocks no room to be raised; 256
    does."""

    kind: ClassVar[str] = "four-over-six"
    phase: ClassVar[int] = 2

    metric: str = "mse"
    largest: float = 448.0

    def __post_init__(self) -> None:
        if self.metric not in ("mse", "mae") or self.largest not in (448.0, 256.0):
            raise QuantizationError(
                "four-over-six needs metric mse or mae, and largest 448 or 256, "
                f"got {self.metric!r} and {self.largest}"
            )

    @property
    def needs_data(self) -> bool:
        return False


@dataclass(frozen=True)
class Clip(Step):
    """Per block, the scale between `lowest` and `highest` times the format's own with the smallest
    squared error; with `weighted`, errors count by mean squared activation, which needs data.

    Only scales the format can store are tried: every E4M3 number in between, `grid` float16 ones
    evenly apart, and for E8M0 half and twice the own one whatever the limits. Above 1 the largest
    magnitude lands on a lower level, as in `FourOverSix`."""

    kind: ClassVar[str] = "clip"
    phase: ClassVar[int] = 2

    grid: int = 24
    lowest: float = 0.6
    highest: float = 1.6
    weighted: bool = True

    def __post_init__(self) -> None:
        if self.grid < 2 or not 0.0 < self.lowest < 1.0 <= self.highest <= 2.0:
            raise QuantizationError(
                "clip needs grid of at least 2, lowest between 0 and 1 and highest from 1 to 2, "
                f"got {self.grid}, {self.lowest} and {self.highest}"
            )

    @property
    def needs_data(self) -> bool:
        return self.weighted


@dataclass(frozen=True)
class Gptq(Step):
    """Round column by column, each error spread over the columns still to come by the inverse
    Hessian of the layer's inputs (GPTQ, Frantar et al. 2023, algorithm 1). `damp` is added to the
    Hessian's diagonal as a share of its mean; `ordered` visits columns by falling diagonal.
    `passes` times over, each column is then rounded once more to what is best given all others
    (coordinate descent, as in QuantEase, Behdin et al. 2023)."""

    kind: ClassVar[str] = "gptq"
    phase: ClassVar[int] = 3

    damp: float = 0.01
    ordered: bool = True
    passes: int = 2

    def __post_init__(self) -> None:
        if not 0.0 < self.damp < 1.0:
            raise QuantizationError(f"gptq damp must be between 0 and 1, got {self.damp}")
        if self.passes < 0:
            raise QuantizationError(f"gptq passes must be 0 or more, got {self.passes}")


@dataclass(frozen=True)
class Rescale(Step):
    """Between the first rounding of `Gptq` and its further passes, choose every block's scale once
    more, together with its codes and given all other blocks, `passes` times over. Tried are the
    scale the block has and its neighbours on both sides: `reach` E4M3 or (4% apart) float16
    numbers, one E8M0."""

    kind: ClassVar[str] = "rescale"
    phase: ClassVar[int] = 4

    passes: int = 2
    reach: int = 4

    def __post_init__(self) -> None:
        if self.passes < 1 or not 1 <= self.reach <= 16:
            raise QuantizationError(
                "rescale needs passes of at least 1 and reach of 1 to 16, "
                f"got {self.passes} and {self.reach}"
            )


STEPS: dict[str, type[Step]] = {
    kind.kind: kind for kind in (Hadamard, Awq, SmoothQuant, FourOverSix, Clip, Gptq, Rescale)
}


def step_from_json(data: object) -> Step:
    """Inverse of `Step.to_json`; `QuantizationError` names what is unknown."""
    if not isinstance(data, dict) or data.get("kind") not in STEPS:
        raise QuantizationError(f"not a step: {data!r:.200}; steps are {', '.join(STEPS)}")
    try:
        return STEPS[data["kind"]](**{k: v for k, v in data.items() if k != "kind"})
    except TypeError as error:
        raise QuantizationError(f"step {data['kind']}: {error}") from None


def parse_steps(text: str) -> tuple[Step, ...]:
    """``hadamard,clip,gptq`` -> steps with their defaults; ``rtn`` is none of them."""
    names = [name.strip() for name in text.split(",")]
    if names == ["rtn"]:
        return ()
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        raise QuantizationError(
            f"unknown steps {', '.join(map(repr, unknown))}; give rtn or best alone, "
            f"or some of {', '.join(STEPS)}"
        )
    return tuple(STEPS[name]() for name in names)


def check_steps(steps: Sequence[Step], weight_format: str) -> None:
    """Raise `QuantizationError` unless the steps are in order, allowed together, and for the
    format."""
    kinds = [step.kind for step in steps]
    order = [(step.phase, step.rank) for step in steps]
    if order != sorted(set(order)):
        raise QuantizationError(
            f"steps {', '.join(kinds)}: at most one each of hadamard; awq or smoothquant; "
            "four-over-six or clip; gptq; rescale; in this order"
        )
    if "rescale" in kinds and "gptq" not in kinds:
        raise QuantizationError("rescale is a part of gptq; name gptq before it")
    if "four-over-six" in kinds and weight_format != "nvfp4":
        raise QuantizationError(f"four-over-six is for nvfp4 weights, not {weight_format}")
    if kinds and weight_format == "bf16":
        raise QuantizationError(f"steps {', '.join(kinds)} round weights; bf16 rounds none")
    chosen = [step.kind for step in steps if step.phase > 1]
    if chosen and block_format(weight_format).bits != 4:
        raise QuantizationError(
            f"steps {', '.join(chosen)} choose 4-bit codes; {weight_format} rounds to nearest"
        )
