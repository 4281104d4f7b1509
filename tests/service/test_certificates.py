"""The certificate that clients are shown: what is told of one that they refuse, and a newer one."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.service.doubles import CanarySeat, until
from tools import faults_tls
from tools.service_rig import serving
from wmrt.core.errors import UsageError
from wmrt.service import certificates, operations
from wmrt.service.certificates import SOON, Validity, validity
from wmrt.service.crew import Crew
from wmrt.service.server import Server, listening
from wmrt.service.settings import ServeSettings

if shutil.which("openssl") is None:
    pytest.skip(
        "makes certificates with the program openssl: apt-get install openssl",
        allow_module_level=True,
    )

LOCAL = "IP:127.0.0.1"
Files = tuple[Path, Path]


@pytest.fixture
def own(tmp_path: Path) -> Files:
    return faults_tls.authority(tmp_path, "own")


@contextlib.contextmanager
def served(files: Files) -> Iterator[tuple[Server, int]]:
    """A service with TLS, and its port."""
    settings = ServeSettings(port=0, cpu=-1, tls_cert=files[0], tls_key=files[1])
    with listening(settings) as sockets:
        server = Server(Crew([CanarySeat()], settings), settings)
        thread = threading.Thread(target=server.run_on, args=(sockets,))
        thread.start()
        try:
            until(lambda: server.started and server.host.warm)
            yield server, sockets[0].getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(20.0)


def shown(port: int, name: str | None = None) -> bytes:
    """The certificate that a client is shown who would take any, DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 10.0) as plain:
        with context.wrap_socket(plain, server_hostname=name) as secure:
            found = secure.getpeercert(binary_form=True)
    assert found is not None
    return found


def der(cert: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(cert.read_text())


def rsa(folder: Path, *more: str) -> Files:
    """A self-signed certificate with another kind of key."""
    cert, key = folder / "rsa.pem", folder / "rsa.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
         "-days", "30", "-subj", "/CN=wmrt", "-addext", f"subjectAltName={LOCAL}", *more],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_when_a_certificate_ends_is_read_whether_or_not_it_has(tmp_path: Path, own: Files) -> None:
    begins = datetime(2020, 1, 1, tzinfo=timezone.utc)
    for ended, ends in ((False, datetime(2099, 12, 31, tzinfo=timezone.utc)),
                        (True, datetime(2020, 2, 1, tzinfo=timezone.utc))):  # fmt: skip
        files = faults_tls.certificate(tmp_path, f"c{ended}", own, LOCAL, ended)
        assert validity(*files) == Validity(begins, ends)
    chain = tmp_path / "chain.pem"  # as they usually come: the service's, and whose signed it
    chain.write_text(files[0].read_text() + own[0].read_text())
    assert validity(chain, files[1]) == Validity(begins, ends)
    assert abs(validity(*rsa(tmp_path)).ends - datetime.now(timezone.utc)) < timedelta(days=31)  # type: ignore[operator]


def test_a_certificate_that_no_client_takes_at_any_time_is_told(tmp_path: Path) -> None:
    files = rsa(tmp_path, "-addext", "extendedKeyUsage=clientAuth")
    found = validity(*files)
    assert found.ends is None and "purpose" in found.fault
    assert "refuse the TLS certificate" in found.trouble(datetime.now(timezone.utc))


def test_what_is_said_by_what_time_it_is() -> None:
    begins, ends = (datetime(2030, month, 1, tzinfo=timezone.utc) for month in (1, 3))
    own, second = Validity(begins, ends), timedelta(seconds=1)
    assert own.trouble(begins) == own.trouble(ends - SOON) == ""
    assert "begins 2030-01-01 00:00 UTC, clients refuse it" in own.trouble(begins - second)
    assert "ends 2030-03-01 00:00 UTC, within 14 days" in own.trouble(ends - SOON + second)
    assert "within" in own.trouble(ends)
    late = own.trouble(ends + second)
    assert "ended 2030-03-01 00:00 UTC, clients refuse it" in late
    assert "clock it is 2030-03-01 00:00 UTC" in late


def test_one_that_has_ended_is_served_and_told(
    tmp_path: Path, own: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files = faults_tls.certificate(tmp_path, "ended", own, LOCAL, ended=True)
    with caplog.at_level(logging.INFO), served(files) as (server, port):
        assert shown(port) == der(files[0])
        loud = [one for one in caplog.records if "certificate ended 2020-02-01" in str(one.msg)]
        assert [one.levelname for one in loud] == ["ERROR"]
        (told,) = server.host.warnings()
        assert "ended 2020-02-01" in told
        assert operations.info(server.host)["certificate"] == {
            "begins": "2020-01-01T00:00:00+00:00", "ends": "2020-02-01T00:00:00+00:00",
            "trouble": told,
        }  # fmt: skip
        assert str(tmp_path) not in told  # clients see it


def test_a_certificate_is_renewed_without_a_restart(tmp_path: Path, own: Files) -> None:
    cert, key = faults_tls.certificate(tmp_path, "first", own, LOCAL, ended=True)
    with served((cert, key)) as (server, port):
        before = der(cert)
        assert shown(port) == before
        newer = rsa(tmp_path)  # another kind of key: the old one must not be left beside it

        def renew() -> None:
            done = threading.Event()
            server.host.outbox.loop.call_soon_threadsafe(
                lambda: (server.renew_certificate(), done.set())
            )
            assert done.wait(10.0)

        cert.write_bytes(newer[0].read_bytes())  # and not yet its key
        renew()
        assert shown(port) == before and server.host.warnings()
        key.write_bytes(newer[1].read_bytes())
        renew()
        for name in (None, "127.0.0.1", "robot.example"):
            assert shown(port, name) == der(newer[0])
        assert not server.host.warnings()
        cert.unlink()
        renew()
        assert shown(port) == der(newer[0])


def test_a_failed_renewal_changes_nothing(tmp_path: Path, own: Files) -> None:
    cert, key = faults_tls.certificate(tmp_path, "first", own, LOCAL)
    context = certificates.load(cert, key)
    shows = certificates.Certificate(context, cert, key)
    kept = shows.validity
    key.write_text("none")
    with pytest.raises(UsageError, match="no certificate and key"):
        shows.renew()
    assert shows.validity == kept and shows._newest is None


def test_sighup_renews_it(tmp_path: Path, own: Files) -> None:
    cert, key = faults_tls.certificate(tmp_path, "first", own, LOCAL)
    newer = rsa(tmp_path)
    with serving(robots=1, tls_cert=cert, tls_key=key, audit="audit") as service:
        before = der(cert)
        assert shown(service.port) == before
        for old, new in zip((cert, key), newer, strict=True):
            old.write_bytes(new.read_bytes())
        os.kill(service.pid, signal.SIGHUP)
        until(lambda: shown(service.port) == der(newer[0]), 30.0)
        assert service.process.poll() is None
        audit = service.folder / "audit"
        until(lambda: "certificate_renewed" in audit.read_text(), 30.0)
