"""Ray itself: started on this machine, for itself alone, and told what it has no option for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from wmrt.core.errors import UsageError, WmrtError
from wmrt.core.extras import require

#: Ray's own settings, before it is imported; what the user has set stays.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it would report to its makers
    "RAY_AUTH_MODE": "token",  # whoever reaches its gRPC ports runs code
    # The name is history. Without clusters, every process of Ray listens on 127.0.0.1 only; with
    # them, all of them listen on every interface, whatever address init is given.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # Seconds until a proxy that starts is killed. Of Ray's 5, a machine that is busy, as with the
    # replicas' own start, needs more; the whole fleet then ended.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # uvicorn, in Ray's own proxy, would believe a client on this machine that names another
    # address. Empty: nobody is believed.
    "FORWARDED_ALLOW_IPS": "",
    # Seconds, 20 days; HAProxy takes 24. Where a replica is replaced, another HAProxy takes over,
    # and the WebSockets of the other replicas' robots go on through the one before; after Ray's
    # 120 s they were cut. It ends by itself with the last of them.
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "1728000",
    # Ray adds 30 s to that for a replica's port to be used again, and has 1000 ports: a replica
    # that cannot start would soon use them up. What it is with Ray's 120 s.
    "RAY_SERVE_PORT_QUARANTINE_S": "150",
}
#: Whether HAProxy, which comes with Ray Serve, stands before the replicas instead of Ray's own.
_HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
#: Seconds from the order to stop a replica to its beginning: proxies send nothing more by then.
_DEREGISTERED = 1.0
#: Bytes for objects that Ray's processes share; requests are not among them.
_STORE = 80 << 20


def prepare_environment(haproxy: dict[str, str] | None = None) -> None:
    """Set `ENVIRONMENT` where the user has not. Before Ray is imported.

    Args:
        haproxy: of `fleet_haproxy.environment`; None for Ray's own proxy.

    Raises:
        UsageError: the user has switched Ray's authentication off.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ[_HAPROXY] = "0" if haproxy is None else "1"
    os.environ.update(haproxy or {})
    if os.environ["RAY_AUTH_MODE"] != "token":
        raise UsageError(
            f"RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']}: without a token, whoever reaches Ray's "
            "ports runs code as this user; unset it"
        )


def routing() -> dict[str, Any]:
    """Options of a deployment that send a robot's requests to one replica. None for HAProxy, which
    is told by its own configuration (`fleet_haproxy`)."""
    if os.environ.get(_HAPROXY) == "1":
        return {}
    config = require("ray.serve.config", "fleet")
    router = config.RequestRouterConfig(
        request_router_class="ray.serve.experimental.consistent_hash_router.ConsistentHashRouter",
        request_router_kwargs={"num_fallback_replicas": 0},
    )
    return {"request_router_config": router}


class Cluster:
    """Ray on this machine, with Serve's proxy, until `stop`; after `prepare_environment`.

    Args:
        host, port: of the proxy; of HAProxy only the port, see `fleet_haproxy`. processes: of the
            fleet. tls: PEM files of certificate and key, for Ray's own proxy.

    Raises:
        MissingExtraError: without Ray. WmrtError: Ray does not start.
    """

    def __init__(
        self, host: str, port: int, processes: int, tls: tuple[str | None, str | None]
    ) -> None:
        ray, self._serve = require("ray", "fleet"), require("ray.serve", "fleet")
        self._ray = ray
        if os.environ.get(_HAPROXY) == "1":  # the replicas' own servers listen on this host
            host, tls = "127.0.0.1", (None, None)
        options = require("ray.serve.config", "fleet").HTTPOptions(
            host=host, port=port, ssl_certfile=tls[0], ssl_keyfile=tls[1]
        )
        try:
            ray.init(
                address="local",
                namespace="wmrt",
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                num_cpus=max(os.cpu_count() or 1, processes + 1),
                object_store_memory=_STORE,
                _node_ip_address="127.0.0.1",
            )
            self._serve.start(http_options=options, proxy_location="HeadOnly")
        except Exception as error:  # whatever Ray raises
            ray.shutdown()
            raise WmrtError(f"Ray does not start: {str(error)[:500]}") from error

    def deploy(self, application: Any, name: str) -> None:
        """Run an application, or replace the one that runs, replica by replica.

        Raises:
            WmrtError: it does not become ready.
        """
        try:
            self._serve.run(application, name=name, route_prefix="/")
        except Exception as error:  # whatever Ray raises
            raise WmrtError(f"the fleet does not become ready: {str(error)[-500:]}") from error

    def stop(self) -> None:
        """Stop the replicas, which keep their robots first, and Ray."""
        self._serve.shutdown()
        self._ray.shutdown()


def prepare_replica(stop: Callable[[], Awaitable[None]]) -> None:
    """In a replica, before Serve has finished making it: two things that Serve 2.60 has no option
    for, both checked by tests/service/test_fleet.py.

    Its server for calls between deployments listens on every interface, whatever Ray's own
    processes do. And a replica learns that it is to stop when its last request has ended, which a
    robot's WebSocket never does: after the time to stop it would be killed, its robots not kept.

    Args:
        stop: called first when the replica is to stop, in the caller's event loop.
    """
    replica: Any = require("ray.serve._private.replica", "fleet")
    loop = asyncio.get_running_loop()
    add_port, shut_down = (
        replica.add_port_to_grpc_server,
        replica.Replica._perform_graceful_shutdown,
    )

    def add_own_port(server: Any, address: str) -> Any:
        clusters = os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") != "0"
        return add_port(server, address if clusters else address.replace("[::]", "127.0.0.1"))

    async def stop_first(self: Any) -> None:
        await asyncio.sleep(_DEREGISTERED)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_call(stop), loop))
        await shut_down(self)

    replica.add_port_to_grpc_server = add_own_port
    replica.Replica._perform_graceful_shutdown = stop_first


async def _call(stop: Callable[[], Awaitable[None]]) -> None:
    await stop()
