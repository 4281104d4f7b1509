"""A robot's side of the service: numpy and websockets, no torch.

from wmrt.client import connect

with connect("unix:/run/wmrt.sock", "r2") as robot:
    state = {"ego_speed": 25.0, "lane_offset": 0.0, "heading": 0.0, "lane": "middle"}
    answer = robot.act(state, deadline=0.05)  # a field that is required and missing: the fallback
    send(answer.action)  # float32[A], normalised
"""

from __future__ import annotations

from wmrt.client.backoff import Backoff
from wmrt.client.client import Client, connect
from wmrt.client.reply import Answer

__all__ = ["Answer", "Backoff", "Client", "connect"]
