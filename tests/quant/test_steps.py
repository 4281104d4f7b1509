"""Steps: typed, ordered, the same after JSON, refused where they exclude each other."""

from __future__ import annotations

import json

import pytest

from wmrt.core.errors import QuantizationError
from wmrt.quant.steps import (
    STEPS,
    Awq,
    Clip,
    FourOverSix,
    Gptq,
    Hadamard,
    Rescale,
    SmoothQuant,
    Step,
    check_steps,
    parse_steps,
    step_from_json,
)


@pytest.mark.parametrize("step", [kind() for kind in STEPS.values()] + [Gptq(0.2, False), Clip(7)])
def test_json_round_trip(step: Step) -> None:
    assert step_from_json(json.loads(json.dumps(step.to_json()))) == step


def test_the_command_line_names_every_step() -> None:
    assert parse_steps("hadamard, clip,gptq") == (Hadamard(), Clip(), Gptq())
    assert parse_steps("rtn") == ()
    with pytest.raises(QuantizationError, match=r"'gptqq'.*hadamard, awq"):
        parse_steps("clip,gptqq")
    with pytest.raises(QuantizationError, match="'rtn'"):
        parse_steps("rtn,gptq")


@pytest.mark.parametrize(
    "steps",
    [
        (Gptq(), Clip()),
        (Gptq(), Gptq()),
        (Awq(), Hadamard()),
        (Awq(), SmoothQuant()),
        (FourOverSix(), Clip()),
        (Clip(), Awq()),
        (Rescale(), Gptq()),
    ],
)
def test_steps_out_of_order_or_of_one_kind(steps: tuple[Step, ...]) -> None:
    with pytest.raises(QuantizationError, match="in this order"):
        check_steps(steps, "nvfp4")


def test_steps_for_the_wrong_format() -> None:
    check_steps((Hadamard(), Awq(), FourOverSix(), Gptq()), "nvfp4")
    with pytest.raises(QuantizationError, match="four-over-six is for nvfp4 weights, not mxfp4"):
        check_steps((FourOverSix(),), "mxfp4")
    with pytest.raises(QuantizationError, match="name gptq before it"):
        check_steps((Clip(), Rescale()), "nvfp4")
    with pytest.raises(QuantizationError, match="bf16 rounds none"):
        check_steps((Gptq(),), "bf16")


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "gptq", "damp": 0.0},
        {"kind": "gptq", "dampp": 0.1},
        {"kind": "clip", "grid": 1},
        {"kind": "clip", "lowest": 1.5},
        {"kind": "clip", "highest": 0.9},
        {"kind": "clip", "highest": 2.5},
        {"kind": "gptq", "passes": -1},
        {"kind": "rescale", "passes": 0},
        {"kind": "rescale", "reach": 0},
        {"kind": "rescale", "reach": 17},
        {"kind": "four-over-six", "metric": "max"},
        {"kind": "four-over-six", "largest": 300.0},
        {"kind": "awq", "grid": 0},
        {"kind": "smoothquant", "alpha": 2.0},
        {"kind": "magic"},
        "gptq",
        None,
    ],
)
def test_refusals(data: object) -> None:
    with pytest.raises(QuantizationError):
        step_from_json(data)
