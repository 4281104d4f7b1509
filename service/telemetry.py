"""Traces of the control plane, by OpenTelemetry: opening, resets, operators, snapshots, warming up.

Off unless asked for; never a control step. Spans are handed to a thread that sends them, and are
dropped where nobody takes them: no robot waits for a collector. The provider is this process's own
and not the global one, so that no other library's spans come along.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from wmrt import __version__
from wmrt.core.extras import require
from wmrt.service.refusals import Refusal
from wmrt.service.settings import ServeSettings

#: Environment that asks for traces, as OpenTelemetry's specification names it.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
#: Seconds at the end for spans that were not sent yet.
PARTING = 2.0
_NOTHING = nullcontext()


class Telemetry:
    """Makes spans, or does nothing.

    Args:
        processor: a `SpanProcessor` of OpenTelemetry, which gets every span that has ended; None
            for no spans at all.

    Raises:
        MissingExtraError: a processor, and no OpenTelemetry.
    """

    def __init__(self, processor: Any = None) -> None:
        self._tracer: Any = None
        if processor is None:
            return
        api = require("opentelemetry.trace", "otel")
        propagation = require("opentelemetry.trace.propagation.tracecontext", "otel")
        self._status, self._code = api.Status, api.StatusCode
        self._provider = _provider(processor)
        self._tracer = self._provider.get_tracer("wmrt.service", __version__)
        self._context = require("opentelemetry.context", "otel")
        self._propagator = propagation.TraceContextTextMapPropagator()

    def span(
        self, name: str, **attributes: str | int | float | bool | None
    ) -> AbstractContextManager[None]:
        """What happens in the block, as a span ``wmrt.<name>``. A refusal is told by its name, any
        other error by its type; neither tokens nor sessions belong in attributes."""
        return _NOTHING if self._tracer is None else self._span(name, attributes)

    @contextlib.contextmanager
    def _span(
        self, name: str, attributes: Mapping[str, str | int | float | bool | None]
    ) -> Iterator[None]:
        given = {f"wmrt.{key}": value for key, value in attributes.items() if value is not None}
        with self._tracer.start_as_current_span(
            f"wmrt.{name}", attributes=given, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                said = error.name if isinstance(error, Refusal) else type(error).__name__
                span.set_attribute("error.type", said)
                span.set_status(self._status(self._code.ERROR))
                raise

    def incoming(self, headers: Any) -> AbstractContextManager[None]:
        """Spans of the block belong to the trace that a request names (W3C ``traceparent``).

        Args:
            headers: pairs of bytes, as ASGI has them.
        """
        return _NOTHING if self._tracer is None else self._incoming(headers)

    @contextlib.contextmanager
    def _incoming(self, headers: Any) -> Iterator[None]:
        named = {name.decode("latin-1").lower(): v.decode("latin-1") for name, v in headers}
        token = self._context.attach(self._propagator.extract(named))
        try:
            yield
        finally:
            self._context.detach(token)

    def close(self, seconds: float = PARTING) -> None:
        """Send what is left, for so long: a collector that hangs must not keep the process."""
        if self._tracer is not None:
            thread = threading.Thread(target=self._provider.shutdown, daemon=True)
            thread.start()
            thread.join(seconds)


def _provider(processor: Any) -> Any:
    trace = require("opentelemetry.sdk.trace", "otel")
    resources = require("opentelemetry.sdk.resources", "otel")
    own = {"service.name": "wmrt", "service.version": __version__}
    # What the environment says goes first: OTEL_SERVICE_NAME, or OTEL_RESOURCE_ATTRIBUTES.
    said = resources.OTELResourceDetector().detect().attributes
    resource = resources.Resource.create({**own, **said})
    provider = trace.TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider


def wanted(settings: ServeSettings) -> bool:
    """Whether the settings, or else the environment, ask for traces."""
    if settings.otel is not None:
        return settings.otel
    return any(os.environ.get(name) for name in ENDPOINTS)


def telemetry_of(settings: ServeSettings) -> Telemetry:
    """That of a process: sends OTLP over HTTP to where ``OTEL_EXPORTER_OTLP_ENDPOINT`` says, else
    port 4318 of this machine.

    Raises:
        MissingExtraError: it is asked for, and a package is missing.
    """
    if not wanted(settings):
        return Telemetry()
    otlp = require("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otel")
    export = require("opentelemetry.sdk.trace.export", "otel")
    return Telemetry(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
