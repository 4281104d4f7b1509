"""Every way of finding codes, for every 4-bit format, on one model: errors, next states, returns.

    python tools/quantization.py --model highway --data data/highway --out runs/quantization

Packs the model by each method under the same activation format, measures on episodes that
calibration does not see, and drives each result and the bf16 model on the same held-out seeds
without breakers, which would mask the difference. Finished parts are kept; a second run continues.

Falls short where the best steps cut the output error of round to nearest by less than 30%.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from wmrt.cli.common import console, falls_short, json_option, track, write_result
from wmrt.core.errors import UsageError
from wmrt.core.files import replacing
from wmrt.core.measure import mean_ci95
from wmrt.core.seeds import HELD_OUT

FORMATS = ("nvfp4", "mxfp4", "w4a8")
#: What is compared within each format; `best` is the product's own choice.
METHODS = ("rtn", "best", "gptq", "clip,gptq", "clip", "awq", "smoothquant", "hadamard")
#: Methods of one format only.
OWN = {"nvfp4": ("four-over-six",)}
ARMS = (
    *((form, method) for method in METHODS for form in FORMATS),
    *((form, method) for form, methods in OWN.items() for method in methods),
)
#: What `best` has to cut off the output error of `rtn`.
CUT = 0.30


def run(file: Path, *arguments: str) -> None:
    """One `wmrt` command or tool that writes the result ``file``, in a process of its own.

    Nothing is done where the file is there already. Status 1 with a file is a result that falls
    short, which the table shows; without one it is an error as any other, and ours.
    """
    if file.exists():
        return
    command = [sys.executable, *arguments, "--json", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1) or not file.exists():
        raise UsageError(f"{' '.join(command[1:])}: {result.stderr.strip()[-400:]}")


def read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))["results"]


class Arm:
    """One packed checkpoint, or the bf16 model itself, and its result files."""

    def __init__(self, out: Path, recipe: str, method: str) -> None:
        self.recipe, self.method = recipe, method
        self.folder = out / f"{recipe}-{method.replace(',', '+')}"

    def file(self, kind: str) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{kind}.json")

    def quantize(self, model: str, data: Path, windows: int) -> None:
        run(
            self.file("quantize"), "-m", "wmrt", "quantize", model, "--recipe", self.recipe,
            "--steps", self.method, "--data", str(data), "--windows", str(windows),
            "--out", str(self.folder),
        )  # fmt: skip

    def drive(self, model: str, episodes: int) -> None:
        run(
            self.file("drive"), "-m", "wmrt", "drive", "--model", model, "--recipe", self.recipe,
            "--no-breakers", "--jobs", "1", "--episodes", str(episodes),
            "--seed", str(HELD_OUT[0]),
        )  # fmt: skip

    def returns(self, episodes: int) -> list[float]:
        """Return of every seed, in their order."""
        rows = {row["seed"]: row["return"] for row in read(self.file("drive"))["episodes"]}
        if sorted(rows) != list(HELD_OUT[:episodes]):
            raise UsageError(f"{self.file('drive')} is of other seeds; delete it")
        return [rows[seed] for seed in sorted(rows)]

    def errors(self) -> dict[str, Any]:
        """Of weights, layers and the whole model, as `wmrt quantize` measured them."""
        packed = read(self.file("quantize"))
        layers = [row for row in packed["layers"] if row["output_error"] is not None]
        worst = max(layers, key=lambda row: float(row["output_error"] / row["nearest_error"]))
        return {
            "steps": self.steps(),
            "weight_sqnr_db": sum(row["sqnr_db"] for row in layers) / len(layers),
            "output_error": packed["output_error"],
            "cut": 1 - packed["output_error"] / packed["nearest_error"],
            "worst_layer": worst["layer"],
            "worst_cut": 1 - worst["output_error"] / worst["nearest_error"],
            "hidden_error": packed["error"]["hidden"],
            "action_error": packed["error"]["action"],
            "bytes": packed["bytes"]["after"],
            "seconds": packed["seconds"],
        }

    def steps(self) -> list[dict[str, Any]]:
        document = json.loads(self.file("quantize").read_text("utf-8"))
        found: list[dict[str, Any]] = document["identity"]["resolved"]["steps"]
        return found

    def row(self, base: Sequence[float], states: dict[int, float]) -> dict[str, Any]:
        """Everything in the table; errors are relative where `wmrt quantize` says so."""
        mine = self.returns(len(base))
        mean, spread = mean_ci95(mine)
        gap, half = mean_ci95([value - other for value, other in zip(mine, base, strict=True)])
        return {
            "recipe": self.recipe, "method": self.method, **self.errors(), "next_state": states,
            "return": mean, "return_ci95": spread, "gap_to_bf16": gap, "gap_ci95": half,
        }  # fmt: skip


def next_states(model: str, arms: Sequence[Arm], file: Path, episodes: int) -> list[dict[int, Any]]:
    """Error by steps ahead, of the bf16 model and then of every arm, on the same drives."""
    models = [model, *(str(arm.folder) for arm in arms)]
    named = [word for name in models for word in ("--model", name)]
    run(file, "tools/next_state.py", *named, "--episodes", str(episodes))
    found = read(file)
    wanted = models, [HELD_OUT[0], HELD_OUT[episodes - 1]]
    if ([result["model"] for result in found["models"]], found["seeds"]) != wanted:
        raise UsageError(f"{file} is of other models or seeds; delete it")
    return [
        {row["steps"]: row["model"] for row in result["horizons"]} for result in found["models"]
    ]


def one_calibration(arms: Sequence[Arm]) -> dict[str, Any]:
    """The windows that all arms were calibrated and measured on; `UsageError` if not the same."""
    data: list[dict[str, Any]] = [read(arm.file("quantize"))["data"] for arm in arms]
    other = [arm.file("quantize") for arm, held in zip(arms, data, strict=True) if held != data[0]]
    if other:
        raise UsageError(f"{other[0]} was calibrated on other windows; delete it")
    return data[0]


def settle(out: Path, **settings: Any) -> None:
    """Refuse to go on in a folder that holds parts made under other settings."""
    file = out / "settings.json"
    if file.exists() and json.loads(file.read_text("utf-8")) != settings:
        raise UsageError(f"{out} holds parts made under other settings; give another --out")
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(settings, indent=1) + "\n", "utf-8")


def work(
    model: str,
    reference: Arm,
    arms: Sequence[Arm],
    data: Path,
    windows: int,
    episodes: int,
    jobs: int,
) -> list[dict[int, Any]]:
    """Everything that takes time, errors before drives; returns what `next_states` does."""

    def drive(arm: Arm) -> None:
        arm.drive(model if arm is reference else str(arm.folder), episodes)

    with ThreadPoolExecutor(jobs) as pool:
        packed = pool.map(lambda arm: arm.quantize(model, data, windows), arms)
        for _ in track(packed, "packing", total=len(arms)):
            pass
        file = reference.folder.with_name("next_state.json")
        states = next_states(model, arms, file, episodes)
        for _ in track(pool.map(drive, [reference, *arms]), "driving", total=len(arms) + 1):
            pass
    return states


@click.command()
@click.option("--model", default="highway", show_default=True)
@click.option("--data", type=click.Path(path_type=Path), default=Path("data/highway"))
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/quantization"))
@click.option("--episodes", default=30, type=click.IntRange(2), show_default=True)
@click.option("--windows", default=512, type=click.IntRange(1), show_default=True)
@click.option("--jobs", default=2, type=click.IntRange(1), show_default=True)
@json_option
def main(
    model: str,
    data: Path,
    out: Path,
    episodes: int,
    windows: int,
    jobs: int,
    json_path: Path | None,
) -> None:
    from wmrt.model.checkpoint import load_checkpoint

    out.mkdir(parents=True, exist_ok=True)
    sha256 = load_checkpoint(model).weights_sha256
    settle(out, model_sha256=sha256, data=str(data), episodes=episodes, windows=windows)
    arms = [Arm(out, recipe, method) for recipe, method in ARMS]
    reference = Arm(out, "bf16", "none")

    first, *others = work(model, reference, arms, data, windows, episodes, jobs)
    base = reference.returns(episodes)
    rows = [arm.row(base, states) for arm, states in zip(arms, others, strict=True)]
    mean, half = mean_ci95(base)
    bf16 = {"return": mean, "return_ci95": half, "next_state": first}
    verdict = verdicts(rows)
    results = {
        "bf16": bf16, "arms": rows, "episodes": episodes, "data": one_calibration(arms),
        "verdicts": verdict,
    }  # fmt: skip
    _show(results)
    write_result(json_path, results, model=model, model_sha256=sha256)
    short = [form for form, found in verdict.items() if not found["enough"]]
    if short:
        falls_short(f"best cuts the output error by less than {CUT:.0%} for {', '.join(short)}")


def verdicts(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per format what `best` cuts off the mean layer output error of `rtn`, and if it is enough."""
    error = {(row["recipe"], row["method"]): float(row["output_error"]) for row in rows}
    cut = {form: 1 - error[form, "best"] / error[form, "rtn"] for form in FORMATS}
    return {form: {"cut": cut[form], "enough": cut[form] >= CUT} for form in FORMATS}


def _show(results: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(
        "format", "method", "weight SQNR dB", "output error", "cut", "worst layer", "hidden",
        "action", "next state 1/5/15", "return", "minus bf16",
    )  # fmt: skip
    for row in results["arms"]:
        table.add_row(
            row["recipe"],
            row["method"],
            f"{row['weight_sqnr_db']:.1f}",
            f"{row['output_error']:.4f}",
            f"{row['cut']:.0%}",
            f"{row['worst_cut']:.0%}",
            f"{row['hidden_error']:.4f}",
            f"{row['action_error']:.4f}",
            "/".join(f"{value:.3f}" for value in row["next_state"].values()),
            f"{row['return']:.2f} ±{row['return_ci95'] or 0:.2f}",
            f"{row['gap_to_bf16']:+.2f} ±{row['gap_ci95'] or 0:.2f}",
        )
    bf16 = results["bf16"]
    console().print(
        table,
        f"{results['episodes']} held-out seeds without breakers; bf16 {bf16['return']:.2f} "
        f"±{bf16['return_ci95'] or 0:.2f}, next state "
        + "/".join(f"{value:.3f}" for value in bf16["next_state"].values()),
    )
    for form, verdict in results["verdicts"].items():
        enough = "at least" if verdict["enough"] else "less than"
        console().print(f"{form}: best cuts {verdict['cut']:.0%}, {enough} {CUT:.0%}")


if __name__ == "__main__":
    main()
