"""The fault matrix, run: the quick faults in every run, all of them with the patience of a service
that is served in the long form. And a rig that sees what is wrong."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tools import service_faults, service_load, service_soak
from tools.fault_case import Case, Scene, Seen, run
from tools.service_rig import Robot, robot, serving
from tools.wire import frame, frames_of
from wmrt.core.errors import WmrtError

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc: Linux only")
QUICK = (
    "a second client for a robot",
    "duplicate, old and foreign messages",
    "a reset while a step is in work",
    "frames that are none",
    "messages that are none",
    "100 MB at once",
    "half-open: the client's side vanishes",
    "kill -9 in the middle of a stream",
    "the disk is full",
)


@linux
def test_quick_faults_are_survived() -> None:
    cases = [one for one in service_faults.CASES if one.fault in QUICK]
    assert len(cases) == len(QUICK)
    rows = service_faults.matrix(cases, 1.0, False)
    assert {row.fault: row.wrong for row in rows} == dict.fromkeys(QUICK, "")
    assert all(row.mixed == row.unsafe == 0 and row.bystander_answers > 0 for row in rows)
    by_name = {row.fault: row for row in rows}
    assert by_name["kill -9 in the middle of a stream"].recovery_s is not None


@linux
@pytest.mark.full
def test_every_fault_is_survived(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("makes certificates with the program openssl: apt-get install openssl")
    path = tmp_path / "faults.json"
    done = CliRunner().invoke(service_faults.main, ["--json", str(path)], catch_exceptions=False)
    rows = json.loads(path.read_text())["results"]["rows"]
    assert done.exit_code == 0, done.output
    assert [row["wrong"] for row in rows] == [""] * len(service_faults.CASES)


@linux
def test_what_is_wrong_is_seen() -> None:
    def lies(scene: Scene) -> Seen:
        scene.by.mixed.append("another robot's")
        scene.by.unsafe.append("2.0")
        scene.replies.append('{"error": "Traceback (most recent call last)"}')
        scene.expect(False, "the fault itself")
        return Seen("nothing")

    def ends(scene: Scene) -> Seen:
        scene.service.kill()
        return Seen("killed")

    with serving(robots=2, snapshots="robots", snapshot_every=0.2) as service:
        with robot(service.unix, "by") as by:
            scene = Scene(service, by, 1.0)
            row = run(Case("lies", "", lies), scene)
            for said in ("1 mixed", "1 unsafe", "a path in a reply", "the fault itself"):
                assert said in row.wrong
            by.mixed.clear()
            by.unsafe.clear()
            by.counts["steps_apart"], by.apart = 1, "7 after 3"
            assert run(Case("again", "", lambda _: Seen("")), scene).wrong == (
                "steps that do not follow: 7 after 3"
            )
            assert run(Case("ends", "", ends), scene).wrong == "the process ended"
            by.client.close()


def test_a_robot_counts_what_is_not_its_own() -> None:
    one = object.__new__(Robot)
    one.mixed, one.unsafe, one.counts = [], [], Counter()

    class Answer:
        source, late, action = "policy", False, (0.5, 0.0)

    one._look(Answer, 0.5)
    assert not one.mixed and not one.unsafe
    one._look(Answer, 0.25)
    Answer.action = (float("nan"), 1.5)
    one._look(Answer, 0.25)
    assert len(one.mixed) == 1 and len(one.unsafe) == 1


def test_frames_are_read_as_they_were_written() -> None:
    sizes = (0, 1, 125, 126, 65_535, 65_536, 70_000)
    data = b"".join(frame(2, bytes(size), mask=False) for size in sizes)
    assert [len(payload) for _, payload in frames_of(data)] == list(sizes)
    assert frames_of(data[:-1])[-1][1] == bytes(65_536)


@linux
@pytest.mark.full
def test_load_tells_mixed_from_own(tmp_path: Path) -> None:
    """The canary form, briefly: its judgement of a busy machine's latencies is not looked at."""
    path = tmp_path / "load.json"
    arguments = ["--seconds", "6", "--no-model", "--json", str(path)]
    CliRunner().invoke(service_load.main, arguments, catch_exceptions=False)
    found = json.loads(path.read_text())["results"]["canary"]
    assert found["counts"]["answers"] == 16 * 10 * 20  # ten windows are the least
    assert (found["counts"]["mixed"], found["counts"]["unsafe"]) == (0, 0)
    for refused in found["refused"].values():
        assert refused["said"] == {"too_many_robots": 2 * 184}


def test_a_load_that_falls_short_is_told() -> None:
    refused = {"said": {"too_many_robots": 9}, "later_than_100_ms": 0}
    fine: dict[str, Any] = {
        "counts": {"mixed": 0, "unsafe": 0},
        "refused": {"decoy even": refused | {"later_than_100_ms": 1}, "true burst": refused},
        "p99_unchanged": {"even": True, "burst": True},
        "noisy": False,
    }
    context = click.Context(service_load.main)
    with context:
        service_load._judge([fine])
    for change in (
        {"counts": {"mixed": 1, "unsafe": 0}},
        {"refused": {"true even": refused | {"said": {"too_many_robots": 8, "served": 1}}}},
        {"refused": {"true even": refused | {"later_than_100_ms": 1}}},
        {"p99_unchanged": {"even": True, "burst": False}},
        {"noisy": True},
        {"single_robot": {"different": 1}},
    ):
        with context, pytest.raises(click.exceptions.Exit):
            service_load._judge([fine | change])


@linux
@pytest.mark.full
def test_a_soak_of_five_minutes_is_flat_and_a_leak_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "soak.json"
    arguments = ["--seconds", "240", "--proof", "60", "--hz", "0", "--every", "4"]
    done = CliRunner().invoke(
        service_soak.main, [*arguments, "--json", str(path)], catch_exceptions=False
    )
    found = json.loads(path.read_text())["results"]
    assert found["verdict"] == "flat" and done.exit_code == 0, done.output
    assert found["planted_bytes_per_1000_steps"] > 50_000
    assert found["counts"].get("mixed", 0) == 0 and found["alive"]


@linux
def test_a_service_that_cannot_start_is_told() -> None:
    with pytest.raises(WmrtError, match="the service ended"):
        with serving(robots=17):
            raise AssertionError
