"""What an operator does, and what the audit log says of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.service.doubles import service
from wmrt.service.messages import OperatorMessage
from wmrt.service.operations import operate


def test_what_failed_is_not_told_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = tmp_path / "audit.jsonl"
    with service(tmp_path, audit=audit) as running:
        raw = running.raw()
        raw.open()
        controller = running.host.registry.places["r1"].desk.controller

        def fails(*_: object) -> None:
            raise RuntimeError("a fault of ours")

        message = OperatorMessage(robot="r1", operator="A. Person")
        with monkeypatch.context() as patch:
            patch.setattr(controller, "disengage", fails)
            done = operate(running.host, "disengage", message, False, "test")
            with pytest.raises(RuntimeError, match="a fault of ours"):
                asyncio.run_coroutine_threadsafe(done, running.host.outbox.loop).result(20.0)
        done = operate(running.host, "disengage", message, False, "test")
        asyncio.run_coroutine_threadsafe(done, running.host.outbox.loop).result(20.0)
    told = [json.loads(line) for line in audit.read_text().splitlines()]
    told = [line.get("refused") for line in told if line["event"] == "breakers_disengage"]
    assert told == ["a fault of ours", None]
