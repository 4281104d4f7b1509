"""What machine code may cost: limits with their reasons, and issue budgets of devices."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from wmrt.core.errors import UsageError
from wmrt.kernels.triton import library
from wmrt.kernels.triton.aot_cases import AotCase

#: Written by hand, before what it judges is compiled; every limit with its reason.
PATH = Path(__file__).parents[1] / "tuned" / "aot_limits.json"
#: More than kept results by this much is a regression; compilers are deterministic.
SLACK = {"instructions_per_weight": 0.02, "registers": 0.0, "instructions": 0.05}


class Limits:
    """The limits of a file for one release of triton. `violations` lists what a case breaks, each
    with the reason.

    Args:
        triton: major and minor, such as ``3.7``: exceptions that name other releases do not count.
            None: the release that is installed.
    """

    def __init__(self, document: Mapping[str, Any], triton: str | None = None) -> None:
        self._budget = document["budget"]
        self._limits: Mapping[str, Any] = document["limits"]
        self.triton = triton or ".".join(map(str, library.triton_version()))
        every: Sequence[Mapping[str, Any]] = document["exceptions"]
        self._exceptions = [r for r in every if self.triton in r.get("triton", [self.triton])]
        for rule in (*self._limits.values(), *every):
            if not rule.get("reason") or len({"at_most", "at_least"} & rule.keys()) != 1:
                raise UsageError(f"limit {dict(rule)}: give at_most or at_least, and a reason")
        for rule in every:
            if rule["metric"] not in self._limits:
                raise UsageError(f"exception {dict(rule)}: limits are {', '.join(self._limits)}")
            unknown = sorted(set(rule.get("triton", [])) - set(library.releases()))
            if unknown:
                known = ", ".join(library.releases())
                raise UsageError(f"exception {dict(rule)}: triton {unknown[0]}, there are {known}")

    @classmethod
    def read(cls, path: Path = PATH, triton: str | None = None) -> Limits:
        """The limits of ``path``; `UsageError` where one lacks a reason or a bound."""
        return cls(json.loads(path.read_text("utf-8")), triton)

    def unused(self, cases: Sequence[AotCase]) -> list[str]:
        """Patterns of exceptions that no case has."""
        names = [case.name for case in cases]
        return [
            rule["cases"]
            for rule in self._exceptions
            if not any(fnmatchcase(name, rule["cases"]) for name in names)
        ]

    def budget(self, capability: int, weight_bits: float) -> float:
        """Lane instructions a weight may cost on the tightest device of ``capability``.

        Raises:
            UsageError: no device of the table has it.
        """
        table = self._budget
        held = (weight_bits + table["scale_bits"]) / 8
        rates = [
            device["multiprocessors"] * table["lanes"] * device["ghz"] * held / device["gb_per_s"]
            for device in table["devices"]
            if device["capability"] == capability
        ]
        if not rates:
            known = sorted({device["capability"] for device in table["devices"]})
            raise UsageError(f"no device of compute capability {capability} in {PATH}: {known}")
        return float(min(rates) * table["share"])

    def of(self, case: AotCase, capability: int) -> dict[str, tuple[str, float, str]]:
        """By metric: at_most or at_least, the bound, its reason."""
        found = {}
        for metric, rule in self._limits.items():
            for exception in self._exceptions:
                fits = capability in exception.get("capabilities", [capability])
                named = exception["metric"] == metric and fnmatchcase(case.name, exception["cases"])
                if fits and named:
                    rule = exception
            kind = "at_most" if "at_most" in rule else "at_least"
            bound = rule[kind]
            if bound == "budget":
                bound = self.budget(capability, case.weight_bits)
            found[metric] = (kind, float(bound), str(rule["reason"]))
        return found

    def violations(self, case: AotCase, capability: int, figures: Mapping[str, Any]) -> list[str]:
        """What ``figures`` (of `measure`) break, in words; empty if nothing."""
        broken = []
        for metric, (kind, bound, reason) in self.of(case, capability).items():
            value = figures[metric]
            if value is None:
                continue
            if value > bound if kind == "at_most" else value < bound:
                says = f"{metric} {value:g}, {kind.replace('_', ' ')} {bound:.4g}: {reason}"
                broken.append(says)
        for name, times in figures["found"].items():
            if not times:
                broken.append(f"no {name} among its instructions, which it is written for")
        for name in sorted(set(figures["early_reads"]) - set(case.early)):
            broken.append(f"{name} is read before the launch that writes it was waited for")
        if case.weights_per_program:
            broken += _weights(case, figures)
        return broken


def _weights(case: AotCase, figures: Mapping[str, Any]) -> list[str]:
    """Whether all loads of weights were recognised, without which the figures mean nothing."""
    loaded, total = figures["weights_loaded"], case.weights_per_program
    if not loaded:
        return ["no load of weights found: load them with eviction_policy='evict_first'"]
    if not figures["looped"] and loaded < total:
        return [f"loads {loaded} weights of {total}: load all with eviction_policy='evict_first'"]
    if figures["looped"] and loaded > total:
        return [f"one pass of the loop loads {loaded} weights, the whole program should {total}"]
    return []


def regressions(figures: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    """Where ``figures`` are worse than those kept of the same case and compiler."""
    worse = []
    for metric, slack in SLACK.items():
        value, before = figures[metric], kept[metric]
        if value is not None and before is not None and value > before * (1 + slack):
            worse.append(f"{metric} {value:g}, was {before:g}")
    return worse
