"""Traces: which spans there are, where they go, and what happens when they go nowhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.doubles import CanarySeat, Running, service, until
from wmrt import __version__
from wmrt.cli.main import main
from wmrt.core.errors import MissingExtraError
from wmrt.service import telemetry
from wmrt.service.settings import ServeSettings, read_settings
from wmrt.service.telemetry import Telemetry, telemetry_of, wanted

INSTALL = "run: pip install 'wmrt[otel]'"
export = pytest.importorskip("opentelemetry.sdk.trace.export", reason=INSTALL)
memory = pytest.importorskip(
    "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=INSTALL
)
TOKEN, OPERATOR = "client-" + "t" * 16, "operator-" + "o" * 16


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*telemetry.ENDPOINTS, "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)


class Sink(ThreadingHTTPServer):
    """A collector: keeps what it is sent, and answers with a status."""

    daemon_threads = True

    def __init__(self, status: int) -> None:
        self.status = status
        self.got: list[tuple[str, bytes]] = []
        self.hang = threading.Event()
        self.hang.set()
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    server: Sink

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, body))
        self.server.hang.wait(30.0)
        with contextlib.suppress(OSError):
            self.send_response(self.server.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def sink(status: int) -> Iterator[Sink]:
    server = Sink(status)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.hang.set()
        server.shutdown()
        server.server_close()
        thread.join(10.0)


@contextlib.contextmanager
def traced(tmp_path: Path, own: Telemetry, **changes: Any) -> Iterator[Running]:
    with service(tmp_path, tcp=True, telemetry=own, **changes) as running:
        yield running


def everything(running: Running) -> None:
    """What the control plane has, and a few steps."""
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    with httpx.Client(base_url=running.tcp, headers=headers, trust_env=False) as http:
        raw = running.raw(TOKEN)
        raw.open("r1")
        for sequence in range(5):
            raw.acted(sequence)
        raw.say({"kind": "reset", "version": 1, "robot": "r1"})
        raw.opened = raw.hear()
        raw.acted(5)
        person = {"robot": "r1", "operator": "A. Person"}
        trace = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
        assert http.post("/v1/breakers/disengage", json=person, headers=trace).status_code == 200
        assert http.post("/v1/breakers/reset", json=person).status_code == 409
        assert http.post("/v1/reset", json={"robot": "r2"}).status_code == 429


def test_the_control_plane_has_spans_and_a_step_has_none(tmp_path: Path) -> None:
    kept = memory.InMemorySpanExporter()
    own = Telemetry(export.SimpleSpanProcessor(kept))
    tokens = {"token": TOKEN, "operator_token": OPERATOR}
    changes = {"snapshots": tmp_path / "kept", "snapshot_every": 0.0}
    with traced(tmp_path, own, **tokens, **changes) as running:
        everything(running)
    own.close()
    finished = kept.get_finished_spans()
    # What an operator does is kept at once, beside what goes on; on stop, what is new since.
    assert "wmrt.snapshot" in [span.name for span in finished[4:]]
    spans = [span for span in finished if span.name != "wmrt.snapshot"]
    assert [span.name for span in spans] == [
        "wmrt.warm_up", "wmrt.open", "wmrt.reset", "wmrt.operate", "wmrt.operate", "wmrt.open",
    ]  # fmt: skip
    opened, reset, disengaged, refused, full = spans[1:6]
    assert opened.attributes["wmrt.robot"] == "r1" and opened.attributes["wmrt.resumes"] is False
    assert reset.attributes["wmrt.epoch"] == 1 and reset.status.is_unset
    assert disengaged.attributes["wmrt.action"] == "disengage"
    assert f"{disengaged.context.trace_id:x}" == "ab" * 16  # the caller's trace goes on
    assert f"{disengaged.parent.span_id:x}" == "cd" * 8
    assert refused.parent is None
    assert not refused.status.is_ok and refused.attributes["error.type"] == "refused"
    assert full.attributes["error.type"] == "too_many_robots"
    resource = spans[0].resource.attributes
    assert resource["service.name"] == "wmrt" and resource["service.version"]
    session = f"{running.host.registry.places['r1'].session.id:016x}"
    for span in spans:
        text = span.to_json()
        assert TOKEN not in text and OPERATOR not in text and session not in text
        assert "Traceback" not in text


def test_no_other_library_s_spans_come_along(tmp_path: Path) -> None:
    """The global provider stays what it was: FastAPI traces every request with that one."""
    from opentelemetry import trace

    before = trace.get_tracer_provider()
    own = Telemetry(export.SimpleSpanProcessor(memory.InMemorySpanExporter()))
    assert trace.get_tracer_provider() is before
    own.close()


def test_spans_go_over_http_to_a_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sink(200) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "arm-7")
        own = telemetry_of(ServeSettings())
        with traced(tmp_path, own) as running:
            running.raw().open("r1")
        own.close(30.0)
        assert {path for path, _ in collector.got} == {"/v1/traces"}
        sent = b"".join(body for _, body in collector.got)
    assert b"wmrt.open" in sent and b"arm-7" in sent and b"wmrt.warm_up" in sent


@pytest.mark.parametrize(
    ("said", "service_name"),
    [
        ({}, "wmrt"),
        ({"OTEL_SERVICE_NAME": "arm-7"}, "arm-7"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=arm-7,site=hall%203"}, "arm-7"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "site=hall%203"}, "wmrt"),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=other", "OTEL_SERVICE_NAME": "arm-7"},
            "arm-7",
        ),
    ],
)
def test_the_environment_names_the_service(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], service_name: str
) -> None:
    for key, value in said.items():
        monkeypatch.setenv(key, value)
    kept = memory.InMemorySpanExporter()
    own = Telemetry(export.SimpleSpanProcessor(kept))
    with own.span("open"):
        pass
    (span,) = kept.get_finished_spans()
    told = span.resource.attributes
    assert told["service.name"] == service_name and told["service.version"] == __version__
    assert told.get("site") == ("hall 3" if "site" in str(said) else None)
    own.close()


@pytest.mark.parametrize("fault", ["refuses", "hangs", "nobody"])
def test_a_collector_that_fails_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")  # ms: it fails while robots are served
    with sink(503 if fault == "refuses" else 200) as collector:
        url = "http://127.0.0.1:9" if fault == "nobody" else collector.url
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        if fault == "hangs":
            collector.hang.clear()
        own = telemetry_of(ServeSettings())
        with traced(tmp_path, own, deadline=1.0) as running:
            raw = running.raw()
            raw.open("r1")
            for sequence in range(30):
                assert not raw.acted(sequence).late
                time.sleep(0.01)
            if fault != "nobody":
                until(lambda: collector.got)
            assert running.host.reasons() == []
        began = time.monotonic()
        own.close(1.0)
        assert time.monotonic() - began < 10.0


def test_off_costs_nothing_and_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.sdk")]:
        monkeypatch.setitem(sys.modules, name, None)
    own = telemetry_of(ServeSettings())
    with own.span("open", robot="r1"), own.incoming([]):
        pass
    own.close()


def test_who_asks_for_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not wanted(ServeSettings()) and wanted(ServeSettings(otel=True))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert wanted(ServeSettings()) and not wanted(ServeSettings(otel=False))
    monkeypatch.setenv("WMRT_SERVE_OTEL", "false")
    assert not wanted(read_settings())


def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "opentelemetry.exporter", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'wmrt\[otel\]'"):
        telemetry_of(ServeSettings(otel=True))
    assert main(["serve", "--otel", "--socket", str(tmp_path / "s")]) == 2
    assert "pip install 'wmrt[otel]'" in capsys.readouterr().err


def test_an_error_of_ours_is_told_by_its_type() -> None:
    kept = memory.InMemorySpanExporter()
    own = Telemetry(export.SimpleSpanProcessor(kept))
    with pytest.raises(ZeroDivisionError), own.span("snapshot", robot=None):
        raise ZeroDivisionError("a secret")
    (span,) = kept.get_finished_spans()
    assert span.attributes == {"error.type": "ZeroDivisionError"}
    assert "secret" not in span.to_json()
    own.close()


def test_a_model_that_fails_as_it_warms_up_has_its_span(tmp_path: Path) -> None:
    kept = memory.InMemorySpanExporter()
    own = Telemetry(export.SimpleSpanProcessor(kept))

    class Broken(CanarySeat):
        def step(self, state: Any, previous_action: Any) -> Any:
            raise ValueError("no such thing")

    with traced(tmp_path, own, seats=[Broken()]) as running:
        until(lambda: running.server.failure is not None)
    assert [s.attributes["error.type"] for s in kept.get_finished_spans()] == ["ValueError"]
    own.close()
