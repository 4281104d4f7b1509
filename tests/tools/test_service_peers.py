"""The tool that puts our round trip beside other projects'."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools import peer_services, service_peers


class _Told:
    """An asker whose steps take what it is told."""

    def __init__(self, trip: int, policy: int) -> None:
        self.trip, self.policy, self.asked = trip, policy, 0

    def ask(self, steps: int) -> list[tuple[int, int]]:
        self.asked += steps
        return [(self.trip, self.policy)] * steps


def test_the_policys_own_time_is_taken_off_and_ratios_are_to_the_first() -> None:
    ours, theirs = _Told(300_000, 100_000), _Told(450_000, 50_000)
    results = service_peers.compare({"ours": ours, "theirs": theirs}, 4, 10)  # type: ignore[dict-item]
    assert results["ours"]["above_step_us"]["p50"] == 200.0
    assert results["theirs"]["above_step_us"]["p50"] == 400.0
    assert results["theirs"]["times_ours"] == [2.0, 2.0, 2.0]
    assert results["ours"]["above_step_us"]["n"] == 40  # those before the first round are left out
    assert ours.asked == theirs.asked == service_peers.WARM_UP + 40


def test_a_client_answers_a_line_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("3\n1\n"))
    peer_services.answer_questions(lambda: (7, 2))
    ready, *answers = capsys.readouterr().out.splitlines()
    assert ready == "ready"
    assert [json.loads(answer) for answer in answers] == [[[7, 2]] * 3, [[7, 2]]]


def test_our_own_arms_are_measured(tmp_path: Path) -> None:
    """In real processes; the peers' need their packages and are left out."""
    file = tmp_path / "peers.json"
    ran = CliRunner().invoke(
        service_peers.command, ["--rounds", "2", "--steps", "5", "--json", str(file)]
    )
    assert ran.exit_code == 0, ran.output
    arms = json.loads(file.read_text("utf-8"))["results"]["arms"]
    assert list(arms) == ["wmrt, WebSocket, TCP", "wmrt, WebSocket, Unix"]
    assert all(arm["above_step_us"]["n"] == 10 for arm in arms.values())
    assert all(arm["above_step_us"]["p50"] > 0 for arm in arms.values())


def test_a_peer_needs_its_python_and_its_checkout(tmp_path: Path) -> None:
    ran = CliRunner().invoke(service_peers.command, ["--openpi", str(tmp_path)])
    assert ran.exit_code == 2 and "go together" in ran.output
