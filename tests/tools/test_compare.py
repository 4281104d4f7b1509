"""The comparison of drives, on rows with known answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tools import compare as module
from tools.compare import Drive, compare, expert_check, pair, read_drive, read_drives, score
from wmrt.core.errors import UsageError


def drive(
    name: str,
    returns: Sequence[float],
    *,
    crashed: float = 0.0,
    speed: float = 25.0,
    first: int = 0,
) -> Drive:
    crashes = round(crashed * len(returns))
    rows = {
        first + i: {"seed": first + i, "return": r, "crashed": i < crashes, "mean_speed": speed}
        for i, r in enumerate(returns)
    }
    return Drive(name, "e", rows)


def write(path: Path, rows: Drive, arm: str, recipe: str | None = None) -> str:
    results = {"env": rows.env, "arm": arm, "episodes": list(rows.rows.values())}
    path.write_text(json.dumps({"identity": {"recipe": recipe}, "results": results}))
    return str(path)


def test_score_of_a_constant_shift_is_exact() -> None:
    base = np.linspace(3.0, 9.0, 50)
    random, expert = drive("random", base), drive("expert", base + 20)
    found = score(drive("x", base + 19), random, expert)
    assert found.value == pytest.approx(0.95)
    assert found.low == pytest.approx(0.95) and found.high == pytest.approx(0.95)
    assert found.verdict == "at least 0.90"
    assert score(drive("x", base + 10), random, expert).verdict == "below 0.90"
    assert score(random, random, expert).value == pytest.approx(0.0)
    assert score(expert, random, expert).value == pytest.approx(1.0)


def test_interval_agrees_with_the_normal_one_for_many_seeds(seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, y = generator.normal(20, 3, 800), generator.normal(20, 3, 800)
    found = pair(drive("x", x), drive("y", y))
    half = 1.96 * (x - y).std(ddof=1) / 800**0.5
    # A percentile of 10 000 resamples is off by about 2% of the half-width; 10% never happens.
    assert found.difference_low == pytest.approx(found.difference - half, abs=0.1 * half)
    assert found.difference_high == pytest.approx(found.difference + half, abs=0.1 * half)
    assert pair(drive("x", x), drive("y", y)) == found  # fixed seed


def test_pairing_removes_what_the_seeds_share(seed: int) -> None:
    hard = np.random.default_rng(seed).normal(20, 8, 300)
    found = pair(drive("x", hard - 0.2), drive("y", hard))
    assert found.difference_low == pytest.approx(-0.2) == found.difference_high
    assert found.verdict == "no worse than -5%"


def test_verdicts_of_a_pair(seed: int) -> None:
    generator = np.random.default_rng(seed)
    base = generator.normal(20, 1, 300)
    assert pair(drive("x", base * 0.9), drive("y", base)).verdict == "worse than -5%"
    noise = generator.normal(0, 30, 300)
    noisy = base * 0.95 + noise - noise.mean()  # on the limit itself, and too uncertain to tell
    assert pair(drive("x", noisy), drive("y", base)).verdict == "not resolved"
    few = pair(drive("x", base[:199]), drive("y", base[:199]))
    assert few.verdict == "not resolved: 199 common seeds, 200 needed"


def test_only_common_seeds_count() -> None:
    a, b = drive("a", [1.0, 2.0, 3.0]), drive("b", [10.0, 20.0], first=1)
    assert (pair(a, b).seeds, pair(a, b).difference) == (2, pytest.approx(-12.5))
    with pytest.raises(UsageError, match="no common seed: a, b"):
        pair(a, drive("b", [1.0], first=9))


def test_expert_has_to_earn_its_place() -> None:
    good = {"expert": drive("expert", [1.0] * 20), "rule": drive("rule", [1.0] * 20)}
    assert expert_check(good).startswith("valid")
    crashing = {**good, "expert": drive("expert", [1.0] * 20, crashed=0.15)}
    assert expert_check(crashing) == (
        "void: the expert crashes in 15.0% of episodes at 100.0% of the rule's mean speed"
    )
    slow = {**good, "expert": drive("expert", [1.0] * 20, speed=22.0)}
    assert expert_check(slow).startswith("void") and "88.0%" in expert_check(slow)
    assert expert_check({"expert": good["expert"]}).startswith("missing")


def test_yardstick_without_length_is_void() -> None:
    same = drive("random", [5.0, 6.0])
    assert score(same, same, same).verdict.startswith("void")
    assert score(drive("x", [1.0]), drive("r", [0.0]), drive("e", [2.0])).low is None


def test_without_control_arms_there_is_no_score() -> None:
    found = compare({"a": drive("a", [1.0, 2.0])}, [])
    assert found["arms"][0]["score"] is None and found["expert"].startswith("missing")


def test_names_and_bad_files(tmp_path: Path) -> None:
    rows = drive("x", [1.0])
    model = write(tmp_path / "m.json", rows, "model", "nvfp4")
    assert read_drive(model).name == "nvfp4"
    assert read_drive(f"mine={model}").name == "mine"
    assert read_drive(write(tmp_path / "r.json", rows, "random")).name == "random"
    with pytest.raises(UsageError, match="two drives are named 'nvfp4'"):
        read_drives([model, model])
    other = write(tmp_path / "o.json", Drive("o", "f", rows.rows), "rule")
    with pytest.raises(UsageError, match="different environments: nvfp4 in e, rule in f"):
        read_drives([model, other])
    for content in ("{", "[]", '{"results": {}}', '{"results": {"episodes": [{"seed": 1}]}}'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(UsageError, match=r"bad\.json"):
            read_drive(str(tmp_path / "bad.json"))
    with pytest.raises(UsageError, match="holds no episode"):
        read_drive(write(tmp_path / "none.json", drive("x", []), "rule"))


def test_command_prints_the_table_and_writes_json(tmp_path: Path) -> None:
    base = np.linspace(2.0, 8.0, 210)
    files = [
        write(tmp_path / f"{name}.json", drive(name, base + shift), arm, recipe)
        for name, shift, arm, recipe in [
            ("random", 0.0, "random", None),
            ("expert", 20.0, "expert", None),
            ("rule", 15.0, "rule", None),
            ("bf16", 19.9, "model", "bf16"),
            ("nvfp4", 19.8, "model", "nvfp4"),
        ]
    ]
    out = tmp_path / "deep" / "compare.json"
    options = [*files, "--pair", "nvfp4:bf16", "--json", str(out)]
    done = CliRunner().invoke(module.command, options, env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    assert "nvfp4 - bf16, 210 seeds: -0.100" in done.output and "no worse than -5%" in done.output
    assert "0.990 [0.990, 0.990]" in done.output
    arms: list[dict[str, Any]] = json.loads(out.read_text())["results"]["arms"]
    assert [arm["name"] for arm in arms] == ["random", "expert", "rule", "bf16", "nvfp4"]
    bad = CliRunner().invoke(module.command, [*files, "--pair", "nvfp4:w4a8"])
    assert isinstance(bad.exception, UsageError) and "'w4a8'" in str(bad.exception)
