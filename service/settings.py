"""Settings of a service: arguments of `wmrt serve`, else ``WMRT_SERVE_...`` in the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from wmrt.core.errors import UsageError
from wmrt.kernels.native.step import ROBOTS

#: Of the settings' names in the environment.
PREFIX = "WMRT_SERVE_"

LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: Shorter bearer tokens can be guessed.
TOKEN_CHARACTERS = 16


class ServeSettings(BaseSettings):
    """What one process serves, to whom, and within which limits.

    Attributes:
        model, recipe, device, executor, threads: as of `WorldModel.from_pretrained`.
        robots: how many, on one read of the weights.
        period: of the control loop, seconds; default the one the model was trained at, else 0.1.
        resample: see `Controller`. deadline: of a step, seconds; default the period.
        clock: ``system``, or ``step`` for simulators that do not run in real time: every
            observation then counts as one period, and capture times are not looked at.
        max_age: seconds an observation may be old.
        consensus: second opinion that votes with the model, 2 of 3: another recipe of it, an
            earlier checkpoint, or ``auto`` (bf16, or nvfp4 beside bf16); default none. It takes a
            step's time again, within the same deadline, and memory for its weights.
        consensus_rule: the third vote: ``hold`` (the last action), or ``module:function``, a
            function (state, previous action) -> action. consensus_every: steps between two votes.
        socket: path of a Unix socket. host, port: of TCP; port None for none when there is a
            socket, else 8420.
        open: allow a host that other machines reach, and requests under any name (see ``names``);
            needs a token, whatever the host.
        token: every request carries it as a bearer token. operator_token: what resets breakers.
        metrics_token: one that opens `/metrics` and nothing else.
        on_second_client: what happens to a second client for a robot that one holds.
        hold: seconds for which a client that is not connected any more still holds its robot.
        idle: seconds without a client after which a robot gives its place to another one.
        snapshots: folder of the robots' memories. snapshot_every: seconds between two; 0: only when
            the service stops. A latch is kept at once.
        shared: other services use the folder too, and hand robots over.
        label: how other processes and people know this one.
        route_by: header that has to be the robot's name: a fleet finds the robot's process by it.
        max_body: bytes of a request or message. The event loop reads JSON, and 1 MiB of small
            lists kept it for 0.4 s on a busy machine. connections: at one time, with requests.
        rate: messages a second of one connection; requests a second of one address.
        stuck_after: seconds that one step may run before `/healthz` calls for a restart.
        ping: seconds between two questions whether a client is still there; it has as long again.
        cpu: processor of the inference thread, -1 for any; default the last one there is.
            priority: its SCHED_FIFO priority, 0 for none. Either is had, or an error says why not.
        websocket: ``owned`` has the policy's thread read its robot's socket while it has nothing to
            do; ``direct`` takes binary messages in the event loop's own callback; ``asgi`` takes
            each through a queue and a task. Each is what the one before it is compared with, and
            what it falls to where it cannot be: `/v1/info` says so.
        http: ``httptools`` parses requests in C; ``h11``, what it is compared with, in Python.
        spin: microseconds for which an ``owned`` socket is looked at again and again after a step,
            before its thread sleeps: waking it takes 50 us. It keeps its processor busy.
        deadline_by: ``timer`` decides a step in the policy's thread, or in that of an alarm;
            ``thread``, what it is compared with, in a third one that waits for both. Models that
            share no read of the weights are stepped one after the other, which takes ``thread``.
        drain: seconds that steps in work get when the service stops.
        audit: file that gets a JSON line for everything that concerns access and breakers.
        tls_cert, tls_key: PEM files.
        log_format, log_level: of what is logged to standard error.
        otel: send traces of the control plane; default: if the environment names a collector.
        names: further names under which clients reach this host; in the environment with commas or
            spaces between them.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    model: str = "highway"
    recipe: str | None = None
    device: str = "cpu"
    executor: Literal["auto", "native", "triton", "eager"] = "auto"
    threads: int | None = Field(None, ge=1)
    robots: int = Field(1, ge=1, le=ROBOTS)
    period: float | None = Field(None, gt=0, allow_inf_nan=False)
    resample: Literal["linear"] | None = None
    deadline: float | None = Field(None, gt=0, allow_inf_nan=False)
    clock: Literal["system", "step"] = "system"
    max_age: float | None = Field(None, gt=0, allow_inf_nan=False)
    consensus: str | None = None
    consensus_rule: str | None = None
    consensus_every: int = Field(1, ge=1)
    socket: Path | None = None
    host: str = "127.0.0.1"
    port: int | None = Field(None, ge=0, le=65535)
    open: bool = False
    token: SecretStr | None = None
    operator_token: SecretStr | None = None
    metrics_token: SecretStr | None = None
    on_second_client: Literal["refuse", "takeover"] = "refuse"
    hold: float = Field(10.0, gt=0, allow_inf_nan=False)
    idle: float = Field(600.0, ge=0, allow_inf_nan=False)
    snapshots: Path | None = None
    snapshot_every: float = Field(5.0, ge=0, allow_inf_nan=False)
    shared: bool = False
    label: str = "wmrt"
    route_by: str | None = None
    max_body: int = Field(1 << 17, ge=1024)
    rate: float = Field(2000.0, ge=1, allow_inf_nan=False)  # a burst is two: a message has to fit
    connections: int = Field(256, ge=1)
    stuck_after: float = Field(10.0, gt=0, allow_inf_nan=False)
    ping: float = Field(20.0, gt=0, allow_inf_nan=False)
    cpu: int | None = Field(None, ge=-1)
    priority: int = Field(0, ge=0, le=99)
    deadline_by: Literal["timer", "thread"] = "timer"
    websocket: Literal["owned", "direct", "asgi"] = "owned"
    http: Literal["httptools", "h11"] = "httptools"
    spin: float = Field(0.0, ge=0, le=1e6, allow_inf_nan=False)
    drain: float = Field(5.0, ge=0, allow_inf_nan=False)
    audit: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    otel: bool | None = None
    names: Annotated[tuple[str, ...], NoDecode] = ()

    @field_validator("names", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """The environment has them as one text."""
        return value.replace(",", " ").split() if isinstance(value, str) else value

    @field_validator("names")
    @classmethod
    def _as_sent(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        """As a request's Host header is compared: another name would never match."""
        sent = tuple(name.strip().lower().removeprefix("[").removesuffix("]") for name in names)
        for given, name in zip(names, sent, strict=True):
            if not re.fullmatch(r"[a-z0-9_][a-z0-9_.-]*|[0-9a-f.]*:[0-9a-f:.]+", name):
                raise ValueError(
                    f"{given!r} is no host name; give one as in a URL, without port (ASCII, other "
                    "letters in punycode), or an address"
                )
        return sent

    @field_validator("token", "operator_token", "metrics_token")
    @classmethod
    def _long(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and (fault := token_fault(value.get_secret_value())):
            raise ValueError(fault)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ServeSettings:
        if self.tcp_port is not None and self.host not in LOOPBACK and not self.open:
            raise ValueError(
                f"host {self.host} is reached by other machines; pass --open to mean it"
            )
        if self.open and self.token is None:  # else any site's page could speak for its reader
            raise ValueError(
                "open serves requests under any name, whatever the host, and needs a token: "
                "--token-file, or WMRT_SERVE_TOKEN"
            )
        if self.shared and self.snapshots is None:
            raise ValueError("shared is about the folder of snapshots; name it with --snapshots")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together; give both or none")
        if self.tls_cert is not None and self.socket is not None:
            raise ValueError("TLS is for TCP; a service on a Unix socket has none, leave one out")
        self._require_effect()
        self._require_different_tokens()
        self._require_three_votes()
        return self

    def _require_effect(self) -> None:
        """Nothing is accepted that changes nothing, or cannot work."""
        if self.snapshots is None and "snapshot_every" in self.model_fields_set:
            raise ValueError(
                "snapshot_every without snapshots: nothing is kept; name a folder with --snapshots"
            )
        if self.max_age is not None and self.clock == "step":
            raise ValueError(
                "max_age with clock step: capture times are not looked at there; leave one out"
            )
        deadline = self.period if self.deadline is None else self.deadline
        if deadline is not None and deadline > self.stuck_after:
            raise ValueError(
                f"a step has a deadline of {deadline:g} s, and /healthz would call for a restart "
                f"after {self.stuck_after:g} s: let stuck_after be at least the deadline"
            )

    def _require_three_votes(self) -> None:
        if self.consensus is None:
            if self.consensus_rule is not None or self.consensus_every != 1:
                raise ValueError("consensus_rule, consensus_every: they belong to consensus")
            return
        if self.consensus_rule is None:
            raise ValueError(
                "consensus is a vote of three; name the third with consensus_rule: hold, or "
                "module:function"
            )
        if self.robots != 1:
            raise ValueError(
                f"consensus: the second opinion has one memory, and robots is {self.robots}; serve "
                "each robot from a process of its own"
            )

    def _require_different_tokens(self) -> None:
        if self.metrics_token is not None and self.token is None:
            raise ValueError("metrics_token without token: then /metrics is open to all anyway")
        known: dict[str, str] = {}
        for name in ("token", "operator_token", "metrics_token"):
            token = getattr(self, name)
            if (
                token is not None
                and (other := known.setdefault(token.get_secret_value(), name)) != name
            ):
                who = "an operator" if name == "operator_token" else "whoever reads metrics"
                raise ValueError(f"{other} and {name} are one; {who} has one of its own")

    @property
    def tcp_port(self) -> int | None:
        """Port to listen on; None for none."""
        return 8420 if self.port is None and self.socket is None else self.port


def token_fault(text: str) -> str:
    """Why a text is no token, without it; empty if it is one."""
    if len(text) >= TOKEN_CHARACTERS and re.fullmatch(r"[\x21-\x7e]+", text):
        return ""
    return (
        f"a token has at least {TOKEN_CHARACTERS} visible ASCII characters; make one with: "
        "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
    )


def read_settings(**given: Any) -> ServeSettings:
    """Settings from arguments (None is not given) and the environment.

    Raises:
        UsageError: the first thing that is wrong, with the name of its setting.
    """
    try:
        return ServeSettings(**{key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        said = first["msg"].removeprefix("Value error, ")
        value = first.get("input")
        shown = "" if "token" in name or name == "settings" else f", got {str(value)[:80]!r}"
        raise UsageError(f"{name}: {said}{shown}") from None


def unknown_names(environment: Iterable[str]) -> list[str]:
    """Names that look like a setting's and are none: a misspelled one would go unnoticed."""
    return sorted(
        name
        for name in environment
        if name.upper().startswith(PREFIX)
        and name[len(PREFIX) :].lower() not in ServeSettings.model_fields
    )
