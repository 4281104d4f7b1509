"""The certificate that a service shows: until when clients accept it, and a newer one in its place.

A machine's clock may be wrong as it boots, so a certificate that has ended, or has not begun, keeps
no service from starting. It is told, and renewed without a restart.
"""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from wmrt.core.errors import UsageError
from wmrt.service.logs import log

#: How long before its end it is told that a certificate ends.
SOON = timedelta(days=14)
#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for.
_ANY_TIME = ssl.VerifyFlags(0x200000)


class Validity(NamedTuple):
    """What a client would find.

    Attributes:
        begins, ends: UTC; None where ``fault`` says why it is refused at any time.
    """

    begins: datetime | None
    ends: datetime | None
    fault: str = ""

    def trouble(self, now: datetime) -> str:
        """Why clients refuse it, or will soon; empty if they do not."""
        if self.begins is None or self.ends is None:
            return f"clients refuse the TLS certificate: {self.fault}"
        clock = f"by this machine's clock it is {_text(now)}"
        if now > self.ends:
            return f"the TLS certificate ended {_text(self.ends)}, clients refuse it; {clock}"
        if now < self.begins:
            return f"the TLS certificate begins {_text(self.begins)}, clients refuse it; {clock}"
        if now > self.ends - SOON:
            return f"the TLS certificate ends {_text(self.ends)}, within {SOON.days} days"
        return ""


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M UTC")


class Certificate:
    """What clients of a server are shown.

    Args:
        context: the server's; it has the files already.
        cert, key: PEM files.

    Attributes:
        validity: of the certificate that is shown.
    """

    def __init__(self, context: ssl.SSLContext, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._newest: ssl.SSLContext | None = None
        self.validity = validity(cert, key)
        context.sni_callback = self._show
        self._tell()

    def trouble(self) -> str:
        """See `Validity.trouble`, now."""
        return self.validity.trouble(datetime.now(timezone.utc))

    def renew(self) -> None:
        """Read the files again; whoever connects from now on is shown what they hold. 2 ms.

        Raises:
            UsageError: they are none, or do not go together; what was shown before is shown still.
        """
        found = load(self._cert, self._key)
        self.validity = validity(self._cert, self._key)
        self._newest = found
        self._tell()

    def _show(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        """A client has said hello, with or without a host's name. Loading a renewed certificate
        into the server's own context would leave one with another kind of key beside it."""
        if self._newest is not None:
            connection.context = self._newest

    def _tell(self) -> None:
        trouble, ends = self.trouble(), self.validity.ends
        if trouble:
            log.error(trouble, certificate=str(self._cert))
        else:
            log.info("certificate", certificate=str(self._cert), ends=str(ends))

    def described(self) -> dict[str, Any]:
        """For people; plain data."""
        begins, ends = (None if at is None else at.isoformat() for at in self.validity[:2])
        return {"begins": begins, "ends": ends, "trouble": self.trouble()}


def load(cert: Path, key: Path) -> ssl.SSLContext:
    """A server's context with the certificate and its key, in PEM files.

    An encrypted key is refused: OpenSSL would ask the terminal for its password, and wait.

    Raises:
        UsageError: says what is wrong with which file.
    """
    for name, path in (("tls_cert", cert), ("tls_key", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise UsageError(f"{name} {path}: {error.strerror or error}") from None
    asked: list[bool] = []

    def password() -> str:
        asked.append(True)
        return ""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password)
    except (OSError, ssl.SSLError, ValueError) as error:
        why = f"they are no certificate and key in PEM ({error})"
        if asked:
            why = "the key is encrypted; decrypt it (openssl pkey) into a file of its owner's alone"
        elif "KEY_VALUES_MISMATCH" in str(error):
            why = "the key is another certificate's"
        raise UsageError(f"tls_cert {cert}, tls_key {key}: {why}") from None
    return context


def validity(cert: Path, key: Path) -> Validity:
    """What a client that trusts this very certificate, at any time, finds in it: a handshake in
    memory, for Python reads no certificate that it has not accepted.

    Raises:
        UsageError: as of `load`.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cert)
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _ANY_TIME
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up)
    theirs = load(cert, key).wrap_bio(up, down, server_side=True)
    try:
        for _ in range(2):  # hello, and all the rest
            for side in (ours, theirs):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        told: Any = ours.getpeercert()
        return Validity(_at(told["notBefore"]), _at(told["notAfter"]))
    except ssl.SSLError as error:
        return Validity(None, None, getattr(error, "verify_message", "") or str(error))


def _at(told: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(told), timezone.utc)
