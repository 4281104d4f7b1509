"""TLS: a certificate of one's own authority, and those that must not be accepted."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path

from tools.fault_case import STATE, Scene, Seen, case
from tools.service_rig import fetch, serving
from tools.wire import dial, heard, request
from wmrt.client import connect
from wmrt.core.errors import DeadlineError, ServiceError, WmrtError


def authority(folder: Path, name: str) -> tuple[Path, Path]:
    """Certificate and key of a new authority."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", key, "-out", cert, "-days", "2", "-subj", f"/CN={name}"),
        *("-addext", "keyUsage=critical,keyCertSign"),
    )
    return cert, key


def certificate(
    folder: Path, name: str, signer: tuple[Path, Path], host: str, ended: bool = False
) -> tuple[Path, Path]:
    """Certificate and key of a service that is reached as ``host``."""
    cert, key, asked, extra = (folder / f"{name}{end}" for end in (".pem", ".key", ".csr", ".ext"))
    extra.write_text(f"subjectAltName={host}\nbasicConstraints=CA:FALSE\n")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", key, "-out", asked, "-subj", "/CN=wmrt"),
    )
    (folder / "index").write_text("")
    (folder / "ca.cnf").write_text(
        f"[ca]\ndefault_ca=own\n[own]\ndatabase={folder}/index\nnew_certs_dir={folder}\n"
        "rand_serial=yes\ndefault_md=sha256\npolicy=any\n[any]\ncommonName=supplied\n"
    )
    span = ("20200101000000Z", "20200201000000Z" if ended else "20991231000000Z")
    _openssl(
        *("ca", "-batch", "-notext", "-config", folder / "ca.cnf", "-cert", signer[0]),
        *("-keyfile", signer[1], "-in", asked, "-out", cert, "-extfile", extra),
        *("-startdate", span[0], "-enddate", span[1]),
    )
    return cert, key


def _openssl(*arguments: object) -> None:
    binary = shutil.which("openssl")
    if binary is None:
        raise WmrtError("certificates are made by the program openssl, which is not installed")
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise WmrtError(f"openssl {arguments[0]}: {done.stderr[-300:]}")


@case(
    "TLS: good, unknown authority, expired, other host", "served; else refused by the client, named"
)
def tls(scene: Scene) -> Seen:
    said = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own, other = authority(folder, "own"), authority(folder, "other")
        trust = ssl.create_default_context(cafile=str(own[0]))
        kinds = {
            "good": certificate(folder, "good", own, "IP:127.0.0.1"),
            "unknown authority": certificate(folder, "foreign", other, "IP:127.0.0.1"),
            "expired": certificate(folder, "ended", own, "IP:127.0.0.1", ended=True),
            "other host": certificate(folder, "host", own, "DNS:robot.example"),
        }
        for kind, (cert, key) in kinds.items():
            with serving(robots=1, tls_cert=cert, tls_key=key) as service:
                where = f"wss://127.0.0.1:{service.port}"
                if kind == "good":
                    with connect(where, "r", tls=trust, opening=20.0, deadline=10.0) as robot:
                        for _ in range(20):
                            scene.expect(robot.act(STATE).source == "policy", "no answer")
                        robot.send(STATE)
                        scene.expect(robot.receive().sequence == 20, "not the newest")
                    said.append(_not_tls(scene, service.port, where))
                    continue
                try:
                    connect(where, "r", tls=trust, opening=20.0)
                    scene.expect(False, f"{kind}: accepted")
                except ServiceError as error:
                    scene.expect(error.name == "certificate", f"{kind}: {error.name}")
                    said.append(f"{kind}: {str(error).rpartition(': ')[2]}")
                scene.expect(service.status("/healthz") == 200, f"{kind}: the service stands")
    return Seen("; ".join(said))


def _not_tls(scene: Scene, port: int, where: str) -> str:
    """What is no TLS at a port that is, and a client that trusts nobody in particular."""
    with dial(port) as plain:
        plain.sendall(request("GET", "/v1/info") * 3)
        scene.expect("HTTP/1.1 2" not in heard(plain, 2.0), "served without TLS")
    try:
        connect(where.replace("wss", "ws"), "r", opening=0.5)
        scene.expect(False, "served without TLS")
    except DeadlineError:
        pass
    scene.expect(fetch(port, "/healthz", scheme="https")[0] == 200, "not healthy")
    return "good: 21 steps, nothing without TLS"


CASES = [tls]
