"""deploy/kubernetes: manifests that the schemas take, that fit each other and `wmrt serve`."""

from __future__ import annotations

import math
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.deploy.dockerfile import USER
from tests.deploy.manifests import FOLDER, Document, container, documents, kustomized, one
from tests.deploy.settings import options, settings
from wmrt import __version__
from wmrt.core.errors import UsageError
from wmrt.service.security import OPEN_PATHS
from wmrt.service.settings import ServeSettings, read_settings

OVERLAYS = ("base", "gpu")
TOKENS = {"token": "t" * 32, "operator_token": "o" * 32}


@pytest.fixture(params=OVERLAYS)
def found(request: pytest.FixtureRequest) -> list[Document]:
    return kustomized(FOLDER / request.param)


def served(found: list[Document], monkeypatch: pytest.MonkeyPatch) -> ServeSettings:
    return settings(one(found, "ConfigMap")["data"], monkeypatch, **TOKENS)


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("source", [*OVERLAYS, "secret.example.yaml", "rayservice.yaml"])
def test_the_schemas_take_them(source: str, version: str) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="there are no schemas: make test-deploy installs them"
    )
    path = FOLDER / source
    for document in kustomized(path) if path.is_dir() else documents(path):
        if document["kind"] != "RayService":  # see test_rayservice.py
            validate.validate(document, version, strict=True)
            document["spec" if "spec" in document else "data"] = {"nonsense": {}}
            with pytest.raises(validate.ValidationError):
                validate.validate({**document, "nonsense": 1}, version, strict=True)


def test_the_service_takes_its_settings(
    found: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = served(found, monkeypatch)
    pod = container(one(found, "StatefulSet"))
    given = options(pod["args"])
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["volumeMounts"]}
    assert str(made.snapshots) == mounts["snapshots"]
    for name in ("token", "operator-token"):
        path = given[f"{name.replace('-', '_')}_file"]
        assert str(path) == f"{mounts['tokens']}/{name}"
    (named,) = (source["configMapRef"]["name"] for source in pod["envFrom"])
    assert named == one(found, "ConfigMap")["metadata"]["name"]
    on_gpu = "nvidia.com/gpu" in pod["resources"]["limits"]
    assert (made.device == "cuda") == on_gpu and made.open and made.host == "0.0.0.0"
    assert made.cpu == -1  # or every pod of a node would keep its threads on the node's last one


def test_names_and_ports_fit(found: list[Document], monkeypatch: pytest.MonkeyPatch) -> None:
    state, service = one(found, "StatefulSet"), one(found, "Service")
    pod, made = container(state), served(found, monkeypatch)
    (port,) = pod["ports"]
    assert port["containerPort"] == made.tcp_port == service["spec"]["ports"][0]["port"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    policy = one(found, "NetworkPolicy")["spec"]
    assert policy["ingress"][0]["ports"] == [{"port": port["name"]}] and policy["egress"] == []
    assert state["spec"]["serviceName"] == service["metadata"]["name"]
    labels = state["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == policy["podSelector"]["matchLabels"]
    assert state["spec"]["selector"]["matchLabels"] == labels
    assert one(found, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert {document["metadata"]["namespace"] for document in found} == {"robots"}
    volumes = {volume["name"]: volume for volume in state["spec"]["template"]["spec"]["volumes"]}
    claims = {claim["metadata"]["name"] for claim in state["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in pod["volumeMounts"]} == volumes.keys() | claims
    (secret,) = documents(FOLDER / "secret.example.yaml")
    assert volumes["tokens"]["secret"]["secretName"] == secret["metadata"]["name"]
    assert secret["metadata"]["namespace"] == "robots"
    assert pod["image"] == f"wmrt:{__version__}"


def test_a_robot_has_one_pod(found: list[Document]) -> None:
    """No address spreads requests, and a latched robot's pod can be reached."""
    state = one(found, "StatefulSet")["metadata"]
    (port,) = container(one(found, "StatefulSet"))["ports"]
    host = f"{state['name']}-0.{one(found, 'Service')['metadata']['name']}.{state['namespace']}"
    address = f"ws://{host}.svc.cluster.local:{port['containerPort']}"
    assert address in (FOLDER / "base/wmrt.yaml").read_text()
    service = one(found, "Service")["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True
    assert one(found, "StatefulSet")["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"] == [
        "ReadWriteOnce"
    ]
    assert not any(document["kind"] == "HorizontalPodAutoscaler" for document in found)


def test_no_proxy_sends_a_robot_to_a_pod_without_its_latch(
    found: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    """deploy/haproxy relies on one folder for all; here each pod has its own."""
    assert not served(found, monkeypatch).shared
    assert "haproxy" not in (FOLDER / "base/wmrt.yaml").read_text()


def test_the_probes(found: list[Document]) -> None:
    pod = container(one(found, "StatefulSet"))
    asked = {name: pod[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {urlsplit(probe["path"]).path for probe in asked.values()} == OPEN_PATHS
    assert all(probe["port"] == pod["ports"][0]["name"] for probe in asked.values())
    # A pod whose robot comes back latched must not be ended for it, over and over.
    assert asked["startup"]["path"] == "/readyz?for=routing"
    assert asked["liveness"]["path"] == "/healthz" and asked["readiness"]["path"] == "/readyz"
    startup = pod["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300


def test_it_may_do_little(found: list[Document]) -> None:
    spec = one(found, "StatefulSet")["spec"]["template"]["spec"]
    pod, own = spec["securityContext"], container(one(found, "StatefulSet"))["securityContext"]
    assert pod["runAsNonRoot"] and f"{pod['runAsUser']}:{pod['runAsGroup']}" == USER
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False


def test_times_and_processors_fit(found: list[Document], monkeypatch: pytest.MonkeyPatch) -> None:
    made, state = served(found, monkeypatch), one(found, "StatefulSet")
    # Steps in work, uvicorn's 5 s for connections, the crew's 5 s, snapshots.
    grace = state["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > made.drain + 10.0
    resources = container(state)["resources"]
    assert resources["requests"].items() <= resources["limits"].items()
    cpus = float(resources["limits"]["cpu"])
    assert cpus == math.floor(cpus) and cpus > (made.threads or 0)


def test_a_secret_of_ones_own_is_made_as_the_example_says(tmp_path: Path) -> None:
    """No token among arguments, which every user of a machine can read, nor with a line's end,
    which no service takes from its environment."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl: make setup-system installs it")
    comments = re.findall(r"^#   (.*)$", (FOLDER / "secret.example.yaml").read_text(), re.MULTILINE)
    own, given = tmp_path / "bin", tmp_path / "given"
    own.mkdir()
    kubectl = own / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {given}\ncp -p token* operator* {own}\n')
    kubectl.chmod(0o755)
    path = f"{own}:{os.environ['PATH']}"
    environment = {"PATH": path, "TMPDIR": str(tmp_path)}
    subprocess.run(["sh", "-ec", "\n".join(comments)], env=environment, check=True)
    (secret,) = documents(FOLDER / "secret.example.yaml")
    files = [f"--from-file={name}" for name in secret["stringData"]]
    name, space = secret["metadata"]["name"], secret["metadata"]["namespace"]
    assert given.read_text().split() == ["-n", space, "create", "secret", "generic", name, *files]
    tokens = {key: (own / key).read_text() for key in secret["stringData"]}
    assert all(stat.S_IMODE((own / key).stat().st_mode) == 0o600 for key in tokens)
    made = read_settings(**{key.replace("-", "_"): text for key, text in tokens.items()})
    assert made.token is not None and made.token.get_secret_value() == tokens["token"]


def test_the_example_secret_opens_nothing() -> None:
    (secret,) = documents(FOLDER / "secret.example.yaml")
    for name, value in secret["stringData"].items():
        given: dict[str, Any] = {name.replace("-", "_"): value}
        with pytest.raises(UsageError, match="at least 16"):
            read_settings(**given)
