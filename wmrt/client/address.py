"""Where a service is."""

from __future__ import annotations

import re
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

from wmrt.client.line import left
from wmrt.client.lookup import Lookup
from wmrt.core.errors import ServiceError, UsageError

_PATH = "/v1/stream"


class Address:
    """Where a service is: ``ws://host:port``, ``wss://host:port`` or ``unix:/path``.

    Raises:
        UsageError: anything else.
    """

    def __init__(self, text: str) -> None:
        self.text = str(text)
        self.path, self.tls, self.host, self.port = "", False, "", 0
        if not (isinstance(text, str) and (self._is_file(text) or self._is_host(text))):
            raise UsageError(
                f"address {self.text[:200]!r}: ws://host:port, wss://host:port or unix:/path, "
                "ports from 1 to 65535, and nothing after them"
            )
        self._lookup = Lookup(self.host, self.port)

    def _is_file(self, text: str) -> bool:
        """Take ``unix:/path`` or ``unix:///path``; any other name would be another file."""
        scheme, _, path = text.partition(":")
        self.path = path.removeprefix("//") if path.startswith("///") else path
        if scheme.lower() == "unix" and re.match("/[^/]", self.path):
            return True
        self.path = ""
        return False

    def _is_host(self, text: str) -> bool:
        """Take a host and its port."""
        try:
            parts = urlsplit(text)
            port = parts.port
            (parts.hostname or "").encode("idna")
        except ValueError:  # of brackets, no number, or a label that no name has
            return False
        self.tls, self.host = parts.scheme == "wss", parts.hostname or ""
        self.port = (443 if self.tls else 80) if port is None else port
        more = "@" in parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment
        return parts.scheme in ("ws", "wss") and self.host != "" and self.port > 0 and not more

    def socket(self, end: float, context: ssl.SSLContext | None) -> socket.socket:
        """A connected socket.

        Args:
            end: `time.monotonic` seconds until which it has to be there.

        Raises:
            OSError: it cannot be had in time. ServiceError: its certificate is not accepted.
        """
        if self.path:
            own = socket.socket(socket.AF_UNIX)
            try:
                own.settimeout(left(end))
                own.connect(self.path)
            except BaseException:
                own.close()
                raise
            return own
        own = self._lookup.connected(end)
        return self._wrapped(own, context, end) if self.tls else own

    def _wrapped(self, own: Any, context: ssl.SSLContext | None, end: float) -> ssl.SSLSocket:
        try:
            context = context or ssl.create_default_context()
            own.settimeout(left(end))
            return context.wrap_socket(own, server_hostname=self.host)
        except ssl.SSLCertVerificationError as error:
            own.close()
            raise ServiceError(
                f"{self.text}: the certificate is not accepted: {error.verify_message}; an "
                "authority of your own: tls=ssl.create_default_context(cafile=...), SSL_CERT_FILE",
                "certificate",
            ) from None
        except BaseException:
            own.close()
            raise

    @property
    def uri(self) -> str:
        """For the handshake."""
        if self.path:
            return f"ws://localhost{_PATH}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}{_PATH}"
