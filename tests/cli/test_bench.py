"""``wmrt bench``: its result file, its report, its gates, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.calls import line, run
from wmrt.cli.benching import fresh as parts
from wmrt.cli.benching import request as asking
from wmrt.cli.benching import show
from wmrt.cli.main import main
from wmrt.core import machine
from wmrt.runtime.bench import fresh

QUICK = ("--threads", "1", "--steps", "12", "--rounds", "2")
BARE = (*QUICK, "--no-cold", "--no-memory")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A floor's buffer of 10 MiB."""
    monkeypatch.setattr(machine, "last_level_cache_bytes", lambda: 2**20)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, fresh.Subject, str]]:
    """Fresh processes replaced by calls in this one: imports would be most of their time."""
    asked: list[tuple[str, fresh.Subject, str]] = []

    def ask(what: str, subject: fresh.Subject, how: str) -> dict[str, Any]:
        asked.append((what, subject, how))
        fields = {"what": what, "how": how, "started_ns": 0, **vars(subject)}
        return fresh.main(json.dumps(fields))

    monkeypatch.setattr(fresh, "_ask", ask)
    return asked


def test_everything_of_one_model(
    folder: Path,
    tmp_path: Path,
    children: list[tuple[str, fresh.Subject, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    document = run(
        tmp_path / "r.json",
        *("bench", str(folder), "--recipe", "nvfp4", "--recipe", "bf16", "--rate", "200", *QUICK),
        *("--executor", "eager", "--no-memory", "--out", str(out)),
    )
    identity, results = document["identity"], document["results"]
    assert identity["model"] == str(folder) and len(identity["model_sha256"]) == 64
    assert identity["recipe"] == "nvfp4, bf16"
    what = identity["resolved"]
    assert what["executors"] == ["eager"] and what["threads"] == [1]
    assert "linear_nvfp4_a8.reference" in what["kernels"]
    assert {"governor", "transparent_huge_pages", "isa", "isolation", "weights"} <= what.keys()
    arms = results["arms"]
    assert [(a["recipe"], a["mode"]) for a in arms] == [
        ("nvfp4", "back-to-back"),
        ("nvfp4", "paced"),
        ("bf16", "back-to-back"),
        ("bf16", "paced"),
    ]
    for arm in arms:
        check_arm(arm)
    assert [r["comparable"] for r in results["ratios"]] == [True, True]
    assert len(results["ratios"][0]["iqr"]) == 2
    figures = [c["figure"] for c in results["cold_start"]]
    assert figures == list(parts.FIGURES) * 2
    assert all("missing" in c for c in results["cold_start"] if c["figure"] == "other layout")
    assert results["noise"]["stamp"] in ("quiet", "noisy")
    said = " ".join(capsys.readouterr().out.split())
    assert "eager nvfp4 1t" in said and "cold start, s" in said and "report.html" in said
    check_page(out / "report.html", results)


def check_arm(arm: dict[str, Any]) -> None:
    """One row has what the result file promises."""
    times = arm["step_ms"]
    assert times["n"] == 12 and times["p999"] is None
    assert 0 < times["p50"] <= times["p90"] <= times["p99"] <= times["max"]
    assert arm["ratio_to_floor"] == pytest.approx(times["p50"] / arm["floor_ms"])
    assert arm["resident_bytes"] is None and arm["read_bytes"] > 0
    assert set(arm["segments_ms"]) == {"encode", "network", "decode"}
    parts = sum(arm["segments_ms"][name]["p50"] for name in arm["segments_ms"])
    assert 0 < parts < 2 * times["max"]
    assert len(arm["round_ms"]) == 2
    if arm["mode"] == "paced":
        assert arm["deadline"] == 5.0 and arm["deadline_misses"] >= 0
        assert arm["wake_up_ms"]["max"] >= 0
    else:
        assert arm["deadline"] is None and arm["wake_up_ms"] is None


def check_page(path: Path, results: dict[str, Any]) -> None:
    """The page is one well-formed document with the figures in it, and needs nothing else."""
    html = path.read_text("utf-8")
    root = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    assert len(root.findall(f".//{SVG}svg")) == 3 * len(results["arms"])
    assert "{{" not in html and "<script" not in html
    assert "src=" not in html and "href=" not in html and "url(" not in html
    words = "".join(root.itertext())
    for arm in results["arms"]:
        assert (
            f"p50 {show.ms(arm['step_ms']['p50'])}, p99 {show.ms(arm['step_ms']['p99'])}" in words
        )
    assert "deadline 5 ms" in words and "p99" in words and results["noise"]["stamp"] in words
    assert root.findall(f".//{SVG}line[@class='deadline']")


def test_a_preset_is_random_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = run(tmp_path / "r.json", "bench", "--preset", "tiny", *BARE)
    assert "random weights, for speed only" in capsys.readouterr().out
    assert first["identity"]["model"] == "preset tiny"
    assert first["identity"]["resolved"]["weights"]["nvfp4"]["origin"] == "random, for speed only"
    again = run(tmp_path / "r.json", "bench", "--preset", "tiny", *BARE)
    assert again["identity"]["model_sha256"] == first["identity"]["model_sha256"]
    assert len(list((tmp_path / "wmrt/bench").iterdir())) == 1


def test_packed_weights_start_in_another_layout_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    children: list[tuple[str, fresh.Subject, str]],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    document = run(tmp_path / "r.json", "bench", "--preset", "tiny", *QUICK, "--no-memory")
    starts = {c["figure"]: c for c in document["results"]["cold_start"]}
    assert [starts[f]["layout"] for f in parts.FIGURES] == ["cpu_interleaved"] * 2 + ["canonical"]
    assert starts["full verification"]["verified"] is False
    for start in starts.values():
        both = start["load_s"] + start["first_step_s"]
        # The medians of 3 runs need not come from one of them.
        assert 0 < start["first_action_s"] < 2 * both
    assert len({subject.folder for _, subject, _ in children}) == 2
    assert len(list((tmp_path / "wmrt/bench").iterdir())) == 1  # the copy is gone


def test_memory_is_read_in_a_fresh_process(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("/proc/self/smaps").exists():
        pytest.skip("this system keeps no account of resident memory")
    arguments = ("--no-cold", "--flat", "80", "--recipe", "nvfp4")
    results = run(tmp_path / "r.json", "bench", str(folder), *QUICK, *arguments)["results"]
    (found,), (arm,) = results["memory"], results["arms"]
    assert found["steps"] == 100 and found["arm"].endswith("nvfp4, 1 thread")
    assert found["resident"]["bytes"] == arm["resident_bytes"] > 0
    assert found["ratio_to_ledger"] == arm["resident_bytes"] / found["ledger_bytes"] > 0.5
    # 80 steps leak 8 kB, which fit into two pages: nothing is proven unless they are new ones.
    assert found["flat"]["verdict"] in ("flat", "growing", "not proven")
    said = capsys.readouterr().out
    assert "memory, MB" in said and "with the planted leak" in " ".join(said.split())


def test_what_fails_in_a_fresh_process_is_told() -> None:
    fields = {"folder": "nowhere", "recipe": None, "executor": "eager", "threads": 1}
    asked = json.dumps({"what": "cold", "how": "cached", "started_ns": 0, **fields})
    assert "no checkpoint 'nowhere'" in fresh.main(asked)["error"]


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        (("--deadline", "0.0001"), "deadline 0.0001: missed"),
        (("--max-ratio", "0.0001"), "max_ratio 0.0001: ratio to the floor"),
    ],
)
def test_a_gate_that_is_not_kept_is_status_1(
    gate: tuple[str, ...], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(folder), *BARE, *gate]) == 1
    assert said in capsys.readouterr().err


def test_a_noisy_run_passes_no_gate(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import wmrt.runtime.bench.noise as noise

    arguments = ["bench", str(folder), *BARE, "--deadline", "1e6"]
    monkeypatch.setattr(noise, "SPREAD", -1.0)
    assert main([*arguments, "--json", str(tmp_path / "r.json")]) == 1
    assert "deadline 1e+06: noisy, which is no pass" in capsys.readouterr().err
    gates = json.loads((tmp_path / "r.json").read_text())["results"]["gates"]
    assert gates["deadline"]["verdict"] == "noisy"
    monkeypatch.setattr(noise, "SPREAD", 1e9)
    monkeypatch.setattr(noise, "CALM", -1.0)
    assert main(arguments) == 0


def test_isolation_says_what_it_got(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from wmrt.core import realtime

    before = os.sched_getaffinity(0), os.sched_getscheduler(0)
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:  # real time would keep the machine from the other tests
        refuse = PermissionError(1, "Operation not permitted")
        for name in ("_fifo", "_lock"):
            patched.setattr(realtime, name, lambda *_: (_ for _ in ()).throw(refuse))
        assert main(["bench", str(folder), *BARE, "--isolate"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "isolation: affinity to" in said and "no SCHED_FIFO: Operation not permitted" in said
    assert (os.sched_getaffinity(0), os.sched_getscheduler(0)) == before


def test_what_cannot_be_is_told_before_anything_runs(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    cores = machine.usable_cpus()
    for arguments, said in [
        (("--preset", "2b"), "'2b' is not one of"),
        (("--rate", "0"), "0 is not in the range x>0"),
        (("--rate", "-5"), "is not in the range x>0"),
        (("--deadline", "0"), "is not in the range x>0"),
        (("--steps", "0"), "is not in the range x>=1"),
        (("--batch", "1,x"), "whole numbers with commas"),
        (("--batch", "17"), "1 to 16 robots"),
        (("--threads", str(cores + 1)), f"1 to {cores} cores"),
        (("--recipe", "nvfp5"), "unknown recipe 'nvfp5'"),
        (("--preset", "tiny", str(folder)), "give a model, or a preset"),
        (("--executor", "cuda"), "'cuda' is not one of"),
        (("--device", "tpu"), "device 'tpu' is unknown"),
        (("nowhere",), "no checkpoint 'nowhere'"),
    ]:
        assert said in line(capsys, "bench", *arguments), arguments
    monkeypatch.setattr(asking.machine, "available_bytes", lambda: 10**9)
    error = line(capsys, "bench", "--preset", "1.3b")
    assert "preset 1.3b needs" in error and "1.0 GB are available" in error
    assert not (tmp_path / "empty" / "wmrt" / "bench").exists()


def test_a_file_that_is_cut_off_and_an_instruction_set_that_is_absent(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(folder, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    assert "truncated" in line(capsys, "bench", str(tmp_path / "cut"), *BARE)
    monkeypatch.setenv("WMRT_ISA", "sse9")
    assert "WMRT_ISA='sse9' is no instruction set" in line(capsys, "bench", str(folder), *BARE)


def test_the_native_executor_beside_its_control_arm(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--recipe", "nvfp4", "--executor", "native", "--executor", "eager")
    document = run(tmp_path / "r.json", "bench", str(folder), *BARE, *arguments, "--batch", "1,3")
    results, what = document["results"], document["identity"]["resolved"]
    arms = results["arms"]
    assert [(a["name"], a["batch"], a["role"]) for a in arms] == [
        ("native", 1, "own"),
        ("native", 3, "own"),
        ("eager", 1, "control"),
    ]
    (missing,) = results["missing"]
    assert missing["name"] == "eager nvfp4 1t b3" and "native executor" in missing["reason"]
    one, three, eager = arms  # whose bytes differ: the layout pads narrow rows
    ring = three["read_bytes"] - one["read_bytes"]
    assert 0 < ring < one["read_bytes"] and ring % 2 == 0  # two more robots' rings
    assert 0 < one["compute_floor_ms"] and eager["compute_floor_ms"] is None
    assert [a["threads"] for a in arms] == [1, 1, 1]
    assert len(what["isa"]) == 1 and "linear_nvfp4_a8.native" in what["kernels"]
    scaling, against = results["ratios"][:2]
    assert scaling["arm"].endswith("batch 3") and scaling["comparable"] and against["comparable"]
    assert "control arms, judged by no gate: eager" in " ".join(capsys.readouterr().out.split())
