"""Every way of finding codes, for every 4-bit format, on one model: errors, next states, returns.

    python tools/quantization.py --model highway --data data/highway --out runs/quantization

Packs the model by each method under the same activation format, measures on episodes that
calibration does not see, and drives each result and the bf16 model on the same held-out seeds
without breakers, which would mask the difference. Finished parts are kept; a second run continues.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from wmrt.cli.common import console, json_option, track, write_result
from wmrt.core.errors import UsageError
from wmrt.core.measure import mean_ci95
from wmrt.core.seeds import HELD_OUT

#: What is compared within each format; `best` is the product's own choice.
METHODS = ("rtn", "clip", "awq", "smoothquant", "hadamard", "gptq", "hadamard,gptq", "best")
ARMS = [
    *(("nvfp4", method) for method in (*METHODS[:2], "four-over-six", *METHODS[2:])),
    *(("mxfp4", method) for method in METHODS),
    *(("w4a8", method) for method in METHODS),
]


def run(*arguments: str) -> None:
    """One `wmrt` command or tool in a process of its own; its error is ours."""
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if result.returncode not in (0, 1):  # 1: the result falls short, which the table shows
        raise UsageError(f"{' '.join(arguments)}: {result.stderr.strip()[-400:]}")


class Arm:
    """One packed checkpoint and its result files, made once."""

    def __init__(self, out: Path, recipe: str, method: str) -> None:
        self.recipe, self.method = recipe, method
        self.folder = out / f"{recipe}-{method.replace(',', '+')}"

    def result(self, kind: str) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self._file(kind).read_text())["results"]
        return read

    def _file(self, kind: str) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{kind}.json")

    def quantize(self, model: str, data: Path) -> None:
        if not self._file("quantize").exists():
            run(
                "-m", "wmrt", "quantize", model, "--recipe", self.recipe, "--steps", self.method,
                "--data", str(data), "--out", str(self.folder),
                "--json", str(self._file("quantize")),
            )  # fmt: skip

    def drive(self, model: str, episodes: int) -> None:
        if not self._file("drive").exists():
            run(
                "-m", "wmrt", "drive", "--model", model, "--no-breakers", "--jobs", "1",
                "--episodes", str(episodes), "--seed", str(HELD_OUT[0]),
                "--out", str(self.folder.with_name(f"{self.folder.name}-drive")),
                "--json", str(self._file("drive")),
            )  # fmt: skip

    def returns(self) -> dict[int, float]:
        return {row["seed"]: row["return"] for row in self.result("drive")["episodes"]}

    def row(self, reference: Arm, states: dict[int, float]) -> dict[str, Any]:
        """Everything in the table, errors relative where the table says so."""
        packed = self.result("quantize")
        sqnr = [r["sqnr_db"] for r in packed["layers"] if r["sqnr_db"] is not None]
        base = reference.returns()
        gap, half = mean_ci95([value - base[seed] for seed, value in self.returns().items()])
        mean, spread = mean_ci95(list(self.returns().values()))
        return {
            "recipe": self.recipe, "method": self.method,
            "weight_sqnr_db": sum(sqnr) / len(sqnr),
            "output_error": packed["output_error"], "rtn_output_error": packed["nearest_error"],
            "hidden_error": packed["error"]["hidden"], "action_error": packed["error"]["action"],
            "next_state": states, "return": mean, "return_ci95": spread,
            "gap_to_bf16": gap, "gap_ci95": half, "bytes": packed["bytes"]["after"],
            "seconds": packed["seconds"],
        }  # fmt: skip


def next_states(model: str, arms: list[Arm], file: Path) -> list[dict[int, float]]:
    """Error by steps ahead, of the bf16 model and then of every arm, on the same drives."""
    models = [model, *(str(arm.folder) for arm in arms)]
    if not file.exists():
        named = [word for name in models for word in ("--model", name)]
        run("tools/next_state.py", *named, "--json", str(file))
    found = json.loads(file.read_text())["results"]["models"]
    if [result["model"] for result in found] != models:
        raise UsageError(f"{file} is of other models; delete it")
    return [{row["steps"]: row["model"] for row in result["horizons"]} for result in found]


@click.command()
@click.option("--model", default="highway", show_default=True)
@click.option("--data", type=click.Path(path_type=Path), default=Path("data/highway"))
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/quantization"))
@click.option("--episodes", default=30, show_default=True)
@click.option("--jobs", default=2, show_default=True)
@json_option
def main(
    model: str, data: Path, out: Path, episodes: int, jobs: int, json_path: Path | None
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    arms = [Arm(out, recipe, method) for recipe, method in ARMS]
    reference = Arm(out, "bf16", "none")

    def work(arm: Arm) -> None:
        if arm is not reference:
            arm.quantize(model, data)
        arm.drive(model if arm is reference else str(arm.folder), episodes)

    with ThreadPoolExecutor(jobs) as pool:
        for _ in track(pool.map(work, [reference, *arms]), "methods", total=len(arms) + 1):
            pass
    first, *others = next_states(model, arms, out / "next_state.json")
    rows = [arm.row(reference, states) for arm, states in zip(arms, others, strict=True)]
    mean, half = mean_ci95(list(reference.returns().values()))
    bf16 = {"return": mean, "return_ci95": half, "next_state": first}
    _show(rows, bf16, episodes)
    write_result(json_path, {"bf16": bf16, "arms": rows, "episodes": episodes}, model=model)


def _show(rows: list[dict[str, Any]], bf16: dict[str, Any], episodes: int) -> None:
    from rich.table import Table

    table = Table(
        "format", "method", "weight SQNR dB", "layer output error", "cut", "hidden", "action",
        "next state 1/5/15", "return", "minus bf16",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row["recipe"],
            row["method"],
            f"{row['weight_sqnr_db']:.1f}",
            f"{row['output_error']:.4f}",
            f"{1 - row['output_error'] / row['rtn_output_error']:.0%}",
            f"{row['hidden_error']:.4f}",
            f"{row['action_error']:.4f}",
            "/".join(f"{value:.3f}" for value in row["next_state"].values()),
            f"{row['return']:.2f} ±{row['return_ci95'] or 0:.2f}",
            f"{row['gap_to_bf16']:+.2f} ±{row['gap_ci95'] or 0:.2f}",
        )
    console().print(
        table,
        f"{episodes} held-out seeds without breakers; bf16 {bf16['return']:.2f} "
        f"±{bf16['return_ci95'] or 0:.2f}, next state "
        + "/".join(f"{value:.3f}" for value in bf16["next_state"].values()),
    )


if __name__ == "__main__":
    main()
