"""One process: sockets, uvicorn, a stop that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from wmrt.core.errors import UsageError, WmrtError
from wmrt.service import interpreter
from wmrt.service.acceptor import Acceptor
from wmrt.service.admission import Admission
from wmrt.service.app import make_app
from wmrt.service.audit import Audit, audit_of
from wmrt.service.certificates import Certificate, load
from wmrt.service.crew import Crew
from wmrt.service.host import Host
from wmrt.service.logs import log
from wmrt.service.notify import Herald, Notifier
from wmrt.service.peer import sweep
from wmrt.service.protocols import SPARE, protocols
from wmrt.service.refusals import Refusal
from wmrt.service.settings import ServeSettings
from wmrt.service.telemetry import Telemetry

#: Connections that wait to be accepted.
BACKLOG = 512


class Server(uvicorn.Server):
    """Answers what is in work before it closes a connection.

    Args:
        options, telemetry: see `Host`. dropped: log records that were lost.
        audit: default that of the settings. Closed when it has run.

    Attributes:
        host: the robots. gate: the application. herald: tells systemd.
        stopped_by: the signal that ended it, if one did. failure: why it ended by itself.
    """

    def __init__(
        self,
        crew: Crew,
        settings: ServeSettings,
        options: dict[str, Any] | None = None,
        dropped: Callable[[], int] = lambda: 0,
        telemetry: Telemetry | None = None,
        audit: Audit | None = None,
    ) -> None:
        notifier = Notifier(os.environ)
        audit = audit or audit_of(settings)
        self.host = Host(crew, settings, audit, options, telemetry)
        self.herald = Herald(self.host, notifier)
        self.stopped_by: int | None = None
        self.failure: BaseException | None = None
        self.gate = make_app(self.host, self._failed, dropped)
        config = _configuration(self.gate, settings, self._tell)
        super().__init__(config)
        if config.ssl and settings.tls_cert is not None and settings.tls_key is not None:
            own = Certificate(config.ssl, settings.tls_cert, settings.tls_key)
            self.host.certificate = own

    def _failed(self, error: BaseException) -> None:
        self.failure, self.should_exit = error, True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second Ctrl-C does not wait for anything."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.stopped_by, self.should_exit = sig, True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # which accepts nothing
        admission = None if self.config.is_ssl else Admission(self.host, self.gate)
        self.acceptor = Acceptor(sockets or [], admission, self._connect, self._room)
        self.acceptor.start()
        if not self.should_exit:
            self.herald.start()
        if threading.current_thread() is threading.main_thread():  # others get no signals
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, self.renew_certificate)

    def renew_certificate(self) -> None:
        """Show what the certificate's files hold now to whoever connects. In the event loop.

        Without TLS there is nothing to do, and that is told: unhandled, the signal (a terminal that
        was closed, too) would end the process, without a word, a drain or a snapshot.
        """
        if self.host.certificate is None:
            log.warning("SIGHUP came, and there is no certificate to renew; the service goes on")
            return
        try:
            self.host.certificate.renew()
        except WmrtError as error:
            log.error("the certificate was not renewed", reason=str(error))
            self.host.audit.note("certificate_not_renewed", reason=str(error))
        else:
            self.host.audit.note("certificate_renewed")

    async def _connect(self, own: socket.socket) -> None:
        """A connection of an accepted socket."""
        kind: Any = self.config.http_protocol_class
        make = partial(
            kind, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        with contextlib.suppress(OSError):  # it is gone, or does not speak TLS
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(make, own, ssl=self.config.ssl)

    def _room(self) -> int:
        """Connections that may be had besides those that are there."""
        return self.host.settings.connections + SPARE - len(self.server_state.connections)

    def _tell(self, name: str) -> None:
        self.host.refuse(Refusal(name, "a connection that waited for too long, or one too many"))

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second
            now = asyncio.get_running_loop().time()
            sweep(self.server_state.connections, now, self._tell)
        self.acceptor.sweep()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.herald.stop()
        if not self.force_exit:
            await self.host.drain()
        self.acceptor.stop()
        await super().shutdown(sockets)
        # uvicorn would have the application cancelled by a second Ctrl-C, and log where it stood.
        if self.force_exit and not self.lifespan.shutdown_event.is_set():
            await self.lifespan.shutdown()

    def run_on(self, sockets: list[socket.socket]) -> None:
        """Serve until a signal comes. `WmrtError` if the model fails as it is warmed up."""
        self.host.settle = interpreter.settle  # the process is this service's alone
        self.run(sockets)
        self.host.audit.close()
        if self.failure is not None:
            if isinstance(self.failure, WmrtError):
                raise self.failure
            raise WmrtError(f"the model cannot be stepped: {self.failure}") from self.failure


def _configuration(
    app: Any, settings: ServeSettings, tell: Callable[[str], object]
) -> uvicorn.Config:
    fast = settings.http == "httptools"
    http, websocket = protocols(settings.connections, tell, settings.websocket, fast)
    config = uvicorn.Config(
        app,
        http=http,
        ws=websocket,
        # uvicorn would take uvloop where it is installed: of its transports it is not known when
        # they write, and a step over a WebSocket took 1.4 times as long.
        loop="asyncio",
        ws_max_size=settings.max_body,
        ws_per_message_deflate=False,  # 200 bytes are not worth the time
        ws_ping_interval=settings.ping,
        ws_ping_timeout=settings.ping,
        lifespan="on",
        log_config=None,
        access_log=False,  # neither a line a step, nor one a probe
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
        backlog=BACKLOG,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    require_certificate(settings)
    config.load()
    return config


def require_certificate(settings: ServeSettings) -> None:
    """Raise `UsageError`, which says what is wrong with which file, unless TLS can be spoken."""
    if settings.tls_cert is not None and settings.tls_key is not None:
        load(settings.tls_cert, settings.tls_key)


@contextlib.contextmanager
def listening(settings: ServeSettings) -> Iterator[list[socket.socket]]:
    """The sockets of the settings, bound. A Unix socket is its owner's alone (mode 600), and its
    file is removed at the end. Raises `UsageError` for an address or a certificate that cannot be
    had."""
    require_certificate(settings)
    with contextlib.ExitStack() as stack:
        sockets = []
        if settings.socket is not None:
            sockets.append(stack.enter_context(_unix(settings.socket)))
        if settings.tcp_port is not None:
            sockets.append(stack.enter_context(_tcp(settings.host, settings.tcp_port)))
        yield sockets


@contextlib.contextmanager
def _unix(path: Path) -> Iterator[socket.socket]:
    _remove_left_over(path)
    own = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        own.bind(str(path))
    except OSError as error:
        own.close()
        why = error.strerror or error
        if isinstance(error, FileNotFoundError):
            why = f"there is no folder {path.parent}; make it first"
        raise UsageError(f"socket {path}: {why}") from None
    finally:
        os.umask(before)
    try:
        own.listen(BACKLOG)
        yield own
    finally:
        own.close()
        path.unlink(missing_ok=True)


def _remove_left_over(path: Path) -> None:
    """Remove the socket of a process that was killed; `UsageError` if it lives, or is no socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"socket {path}: there is something else of that name")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise UsageError(f"socket {path}: {error.strerror or error}") from None
    raise UsageError(f"socket {path}: another process listens there")


@contextlib.contextmanager
def _tcp(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        own = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        hint = "; another process listens there" if error.errno == errno.EADDRINUSE else ""
        raise UsageError(f"{host}, port {port}: {error.strerror or error}{hint}") from None
    with own:
        # Accepted sockets have it from here: asyncio sets it only where the protocol number is not
        # 0. Without it the second part of an HTTP answer waited 40 ms for the first one's ACK.
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield own


def addresses(sockets: list[socket.socket], settings: ServeSettings) -> list[str]:
    """Where clients reach it, as `wmrt.client.connect` takes it."""
    scheme = "ws" if settings.tls_cert is None else "wss"
    found = []
    for own in sockets:
        name = own.getsockname()
        if own.family == socket.AF_UNIX:
            found.append(f"unix:{name}")
        else:
            host = f"[{name[0]}]" if ":" in name[0] else name[0]
            found.append(f"{scheme}://{host}:{name[1]}")
    return found
