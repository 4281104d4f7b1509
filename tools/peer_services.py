"""Servers and clients of other projects with a policy that does nothing, for `service_peers.py`.

Runs under a Python that has them, not under wmrt's: ``peer_services.py NAME serve|ask PORT``.
``ask`` reads numbers of steps from its input, a line each, and writes as a line of JSON, for each
step, nanoseconds of the round trip and of the policy's own step.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from concurrent import futures
from types import SimpleNamespace
from typing import Any

#: Nanoseconds of a round trip and of the policy in it.
Ask = Callable[[], tuple[int, int]]
#: Numbers of a state and of an action, those of the shipped model.
STATE, ACTION = 20, 2


def openpi_serve(port: int) -> None:
    """openpi's `WebsocketPolicyServer`, from the checkout at OPENPI; it is in no package."""
    import numpy as np

    path = os.path.join(os.environ["OPENPI"], "src/openpi/serving/websocket_policy_server.py")
    spec = importlib.util.spec_from_file_location("websocket_policy_server", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    action = np.zeros((1, ACTION), np.float32)
    policy = SimpleNamespace(infer=lambda observation: {"actions": action})
    module.WebsocketPolicyServer(policy, "127.0.0.1", port).serve_forever()


def openpi_ask(port: int) -> Ask:
    """openpi's own client."""
    import numpy as np
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    client = WebsocketClientPolicy("127.0.0.1", port)
    state = np.zeros(STATE, np.float32)

    def step() -> tuple[int, int]:
        began = time.perf_counter_ns()
        answer = client.infer({"observation/state": state})
        took = time.perf_counter_ns() - began
        assert answer["actions"].shape == (1, ACTION)
        return took, round(answer["server_timing"]["infer_ms"] * 1e6)

    return step


def lerobot_serve(port: int) -> None:
    """LeRobot's `PolicyServer` with its own preparation of observations, without its sleep."""
    import grpc
    import torch
    from lerobot.async_inference.configs import PolicyServerConfig
    from lerobot.async_inference.policy_server import PolicyServer
    from lerobot.transport import services_pb2_grpc

    logging.disable(logging.INFO)  # its log of every step costs it milliseconds on a terminal
    server = PolicyServer(PolicyServerConfig("127.0.0.1", port, inference_latency=0.0))
    chunk = torch.zeros(1, 1, ACTION)
    names = [f"s{i}" for i in range(STATE)]
    feature = {"dtype": "float32", "shape": (STATE,), "names": names}
    server.lerobot_features = {"observation.state": feature}
    server.policy = SimpleNamespace(
        predict_action_chunk=lambda observation: chunk, config=SimpleNamespace(image_features={})
    )
    server.preprocessor = server.postprocessor = lambda value: value
    server.actions_per_chunk, server.device = 1, "cpu"
    listening = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(server, listening)
    listening.add_insecure_port(f"127.0.0.1:{port}")
    listening.start()
    listening.wait_for_termination()


def lerobot_ask(port: int) -> Ask:
    """What LeRobot's `RobotClient` does for a step: its `send_observation`, then its request for
    actions, whose bytes are not decoded here."""
    import threading

    import grpc
    from lerobot.async_inference.helpers import TimedObservation
    from lerobot.async_inference.robot_client import RobotClient
    from lerobot.transport import services_pb2, services_pb2_grpc

    logging.disable(logging.INFO)
    client: Any = object.__new__(RobotClient)  # its constructor wants a robot that is connected
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    grpc.channel_ready_future(channel).result(60.0)
    client.stub = services_pb2_grpc.AsyncInferenceStub(channel)
    client.shutdown_event = threading.Event()
    client.stub.Ready(services_pb2.Empty())
    state = {f"s{i}": 0.0 for i in range(STATE)}
    count = 0

    def step() -> tuple[int, int]:
        nonlocal count
        count += 1
        began = time.perf_counter_ns()
        client.send_observation(
            TimedObservation(timestamp=count / 30, timestep=count, observation=state, must_go=True)
        )
        answer = client.stub.GetActions(services_pb2.Empty())
        took = time.perf_counter_ns() - began
        assert len(answer.data) > 0
        return took, 0

    return step


SERVERS: dict[str, Callable[[int], None]] = {"openpi": openpi_serve, "lerobot": lerobot_serve}
CLIENTS: dict[str, Callable[[int], Ask]] = {"openpi": openpi_ask, "lerobot": lerobot_ask}


def answer_questions(step: Ask) -> None:
    """Say ``ready``, then step as many times as each line of the input says, until it ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps([step() for _ in range(int(line))]), flush=True)


def main(name: str, role: str, port: str) -> None:
    """See the module."""
    if role == "serve":
        SERVERS[name](int(port))
    else:
        answer_questions(CLIENTS[name](int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
