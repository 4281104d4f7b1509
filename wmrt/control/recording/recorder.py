"""Records what a controller does, so that `wmrt.control.recording.replay` can do it again."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from wmrt.control.protocol import Outcome, StepInputs
from wmrt.control.recording.frozen import IMMUTABLE, freeze, freeze_observation, freeze_times
from wmrt.control.recording.head import head_of
from wmrt.control.recording.log import Log
from wmrt.control.recording.parts import PartWriter
from wmrt.control.recording.ring import CommandEntry, Ring, StepEntry
from wmrt.core import realtime
from wmrt.core.errors import UsageError
from wmrt.safety import Event, EventRing

if TYPE_CHECKING:
    from wmrt.control.controller import Controller

#: Seconds between two looks of the writing thread at the ring.
_LOOK = 0.05
#: Presses of the emergency stop that may wait to be written.
_STOPS = 64


class FileRecorder:
    """Writes every step, event and command of one controller to MCAP files.

    The loop puts a step into a bounded ring, 10 us or so, and never waits: what finds no room is
    counted, and the file says where it is missing. Another thread encodes and writes, and hands the
    file to the operating system once a second. When the disk is full or the file is gone,
    recording stops for good, the loop goes on, and `stats` says why. Memory stays flat: after 64 MB
    or 1024 seconds another file follows (``drive.2.mcap``), and a replay takes them all.

    Give it to one controller: ``with FileRecorder("drive.mcap") as recorder:`` and
    ``Controller(model, recorder=recorder)``.

    Args:
        path: ends in ``.mcap``; must not be there yet.
        facts: what else to note, text by name, such as the model's name and a seed.
        capacity: steps that may wait to be written.
        part_bytes, part_chunks: when another file follows; see `PartWriter`.
        flush: seconds between two chunks, of which the last is lost when the process is killed.

    Raises:
        UsageError: a path that is taken or cannot be written.
        MissingExtraError: the package mcap is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        facts: Mapping[str, str] | None = None,
        capacity: int = 4096,
        part_bytes: int = 64 << 20,
        part_chunks: int = 1024,
        flush: float = 1.0,
    ) -> None:
        self.path = Path(path)
        self._facts = dict(facts or {})
        self._ring = Ring(capacity)
        self._stops: deque[CommandEntry] = deque()
        self._flush_ns = round(flush * 1e9)
        writer = PartWriter(self.path, part_bytes=part_bytes, part_chunks=part_chunks)
        self._log = Log(writer)
        self._events: EventRing | None = None  # of the controller's breakers
        self._nested = True
        self._seen = self._step = 0  # events and steps so far
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        atexit.register(self.close)

    def attach(self, controller: Controller) -> None:
        """Called by the controller when it is built.

        Raises:
            UsageError: it has one already, or is closed; or the file cannot be written.
        """
        if self._events is not None or self._done.is_set():
            raise UsageError(f"{self.path} records another controller or is closed; make a new one")
        self._events = controller.breakers.events
        self._nested = "state" not in controller.model.schema.fields
        self._seen = self._events.total
        head = head_of(controller, self._facts)
        try:
            self._log.start(head)
        except OSError as error:
            why = error.strerror or str(error)
            raise UsageError(f"{self.path} cannot be written: {why}") from None
        self._thread = threading.Thread(target=self._run, name="wmrt recorder", daemon=True)
        self._thread.start()

    def record(self, outcome: Outcome, inputs: StepInputs) -> None:
        """Note a step. Copies what may change later."""
        self._step = outcome.step
        if not self._ring.has_room():
            return
        given = freeze_observation(inputs.observation, nested=self._nested)
        captured = inputs.captured_ns
        if type(captured) not in IMMUTABLE:
            captured = freeze_times(captured)
        inputs = inputs._replace(observation=given, captured_ns=captured)
        self._ring.put(StepEntry(outcome, inputs, self._new_events(), self._ring.dropped))

    def command(self, name: str, arguments: Mapping[str, Any], now_ns: int) -> None:
        """Note what was done between steps; an emergency stop from any thread."""
        if name == "estop":
            # Beside the ring, which has one writer at a time. A step's inputs say where it latched.
            if len(self._stops) < _STOPS:
                entry = CommandEntry(name, dict(arguments), now_ns, self._step, (), 0)
                self._stops.append(entry)
            return
        if self._ring.has_room():
            kept = {key: freeze(value) for key, value in arguments.items()}
            events, dropped = self._new_events(), self._ring.dropped
            self._ring.put(CommandEntry(name, kept, now_ns, self._step, events, dropped))

    def _new_events(self) -> tuple[Event, ...]:
        """The breakers' events since the last entry."""
        events = self._events
        assert events is not None  # a controller calls, and introduced itself first
        new, self._seen = events.total - self._seen, events.total
        return events.latest(new) if new else ()

    def _run(self) -> None:
        """The writing thread: an ordinary one, also where a real-time thread started it.

        No nicer than that: it holds the interpreter's lock for 0.1 ms at a time, and if the machine
        does not run it meanwhile, the loop waits with it. With 40 processes on two cores a thread
        of the lowest priority wrote nothing for 30 s.
        """
        realtime.leave()
        flushed = time.monotonic_ns()
        while not self._done.wait(_LOOK):
            self._write_waiting()
            now = time.monotonic_ns()
            if now - flushed >= self._flush_ns:
                flushed = now
                self._log.flush()
        self._write_waiting()
        self._log.end(self._ring.dropped)

    def _write_waiting(self) -> None:
        while self._stops:
            self._log.write(self._stops.popleft())
        while (entry := self._ring.take()) is not None:
            self._log.write(entry)
            time.sleep(0)  # the loop gets the interpreter after every entry, not after 5 ms

    def close(self) -> None:
        """Write what waits and finish the file. May be called again."""
        atexit.unregister(self.close)
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        else:
            self._log.abandon()

    def __enter__(self) -> FileRecorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def stats(self) -> dict[str, Any]:
        """Counters as plain data: ``steps``, ``events``, ``commands`` written, ``dropped`` for want
        of room, ``lost`` after recording had stopped or that could not be encoded, ``bytes``,
        ``files``, and ``stopped``, why it stopped, else None."""
        return {**self._log.stats(), "dropped": self._ring.dropped, "waiting": len(self._ring)}
