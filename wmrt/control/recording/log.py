"""What the writing thread does with entries: encode, write, and stop for good when that fails.

A full disk and a file that is gone are OSErrors; that anything else ends recording as well keeps
the thread alive to empty the ring and to count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wmrt.control.recording import messages
from wmrt.control.recording.parts import PartWriter
from wmrt.control.recording.ring import Entry, StepEntry
from wmrt.control.recording.topics import COMMANDS, EVENTS, GAPS, STEPS


class Log:
    """Writes entries to a `PartWriter`. Nothing it calls gets an exception out of it.

    Attributes:
        stopped: why nothing is written any more; None while all is well.
    """

    def __init__(self, writer: PartWriter) -> None:
        self._writer = writer
        self._counts = dict.fromkeys(("steps", "events", "commands", "gaps"), 0)
        self._safe = dict(self._counts)  # of what the operating system has
        self._unsafe = self._lost = 0  # entries that it has not yet, or will never have
        self._dropped = self._step = self._now_ns = 0
        self.stopped: str | None = None

    def start(self, head: Mapping[str, str]) -> None:
        """Begin the file. Raises OSError: nobody drives yet."""
        self._writer.start(head)

    def write(self, entry: Entry) -> None:
        """One entry with its events, and before it a gap if entries were dropped since the last."""
        if self.stopped is not None:
            self._lost += 1
            return
        self._unsafe += 1
        try:
            self._write(entry)
            if self._writer.full:
                self._flush()
        except Exception as error:
            self._stop(error)

    def _write(self, entry: Entry) -> None:
        self._gap(entry.dropped - self._dropped, "the ring was full")
        self._dropped = max(entry.dropped, self._dropped)
        if isinstance(entry, StepEntry):
            self._write_step(entry)
        else:
            command = (entry.name, entry.arguments, entry.now_ns, entry.after_step)
            self._put(COMMANDS, "commands", messages.command_message(*command))
        for event in entry.events:
            self._put(EVENTS, "events", messages.event_message(event))

    def _write_step(self, entry: StepEntry) -> None:
        number, now = entry.outcome.step, entry.outcome.now_ns
        self._now_ns = now if type(now) is int else self._now_ns
        try:
            message = messages.step_message(entry.outcome, entry.inputs)
            text = messages.text(message)
        except Exception as error:  # none is known; the file says what is missing, and goes on
            self._unsafe -= 1
            self._lost += 1
            self._gap(1, f"step {number} could not be encoded: {type(error).__name__}")
            return
        self._step = number
        self._writer.write(STEPS, text, self._now_ns, number)
        self._counts["steps"] += 1

    def _gap(self, missing: int, reason: str) -> None:
        if missing > 0:
            gap = {"after_step": self._step, "missing": missing, "reason": reason}
            self._put(GAPS, "gaps", gap)

    def _put(self, topic: str, count: str, message: Mapping[str, Any]) -> None:
        self._counts[count] += 1
        self._writer.write(topic, messages.text(message), self._now_ns, self._counts[count])

    def flush(self) -> None:
        """Hand what was written to the operating system."""
        if self.stopped is None:
            try:
                self._flush()
            except Exception as error:
                self._stop(error)

    def _flush(self) -> None:
        self._writer.flush()
        self._safe, self._unsafe = dict(self._counts), 0

    def end(self, dropped: int) -> None:
        """Finish the file; ``dropped`` is the ring's last word."""
        if self.stopped is None:
            try:
                self._gap(dropped - self._dropped, "the ring was full")
                tail = {**self._counts, "lost": self._lost, "dropped": dropped}
                self._writer.end({key: str(count) for key, count in tail.items()})
                self._safe, self._unsafe = dict(self._counts), 0
            except Exception as error:
                self._stop(error)

    def abandon(self) -> None:
        """Close the file as it is."""
        self._writer.abandon()

    def _stop(self, error: Exception) -> None:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        self._counts, self._lost = self._safe, self._lost + self._unsafe
        self.stopped = f"{self._writer.path}: {said}"
        self._writer.abandon()

    def stats(self) -> dict[str, Any]:
        """Counters, bytes and files so far, and why it stopped."""
        return {
            **self._counts,
            "lost": self._lost,
            "bytes": self._writer.bytes,
            "files": self._writer.part,
            "stopped": self.stopped,
        }
