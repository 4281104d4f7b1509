"""A robot's side of the service: numpy and websockets, no torch.

from wmrt.client import connect

with connect("unix:/run/wmrt.sock", "r2") as robot:
    answer = robot.act({"ego_speed": 25.0, "lane": "left"}, deadline=0.05)
    send(answer.action)  # float32[A], normalised
"""

from __future__ import annotations

from wmrt.client.backoff import Backoff
from wmrt.client.client import Client, connect
from wmrt.client.reply import Answer

__all__ = ["Answer", "Backoff", "Client", "connect"]
