"""Recordings: what a controller did, in MCAP files, and doing it again bit for bit."""

from wmrt.control.recording.recorder import FileRecorder

__all__ = ["FileRecorder"]
