"""deploy/kubernetes/rayservice.yaml: what Serve is given is what `wmrt fleet` takes."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.dockerfile import USER
from tests.deploy.manifests import FOLDER, Document, documents, one
from tests.deploy.settings import settings
from tests.house.tree import ROOT
from wmrt import __version__
from wmrt.service.fleet_ray import ENVIRONMENT

FOUND = documents(FOLDER / "rayservice.yaml")
SPEC: Document = one(FOUND, "RayService")["spec"]
HEAD = SPEC["rayClusterConfig"]["headGroupSpec"]
(WORKERS,) = SPEC["rayClusterConfig"]["workerGroupSpecs"]
#: What a service's name may end in, for a pod of the cluster.
ZONES = (".robots", ".robots.svc", ".robots.svc.cluster.local")
CRD = os.environ.get("WMRT_RAYSERVICE_CRD", "")


def application() -> Document:
    (found,) = yaml.safe_load(SPEC["serveConfigV2"])["applications"]
    own: Document = found
    return own


def pods() -> list[Document]:
    return [group["template"]["spec"] for group in (HEAD, WORKERS)]


def test_a_fleet_takes_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    module, name = application()["import_path"].split(":")
    fleet = importlib.import_module(module)
    assert callable(getattr(fleet, name))
    own, values = fleet.read_fleet(application()["args"])
    settings({}, monkeypatch)  # and nothing of the environment here counts
    made = fleet.replica_settings(values)
    assert own.token and own.operator_token and own.replicas == WORKERS["replicas"]
    assert own.cpus <= float(
        WORKERS["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    )
    assert own.cpus > (made.threads or 0)
    for pod in pods():
        (container,) = pod["containers"]
        assert str(made.snapshots) in {mount["mountPath"] for mount in container["volumeMounts"]}
        names = {each["name"] for each in container["env"]}
        assert names >= {"WMRT_SERVE_TOKEN", "WMRT_SERVE_OPERATOR_TOKEN"}
    service = f"{one(FOUND, 'RayService')['metadata']['name']}-serve-svc"
    assert set(made.names) == {service + end for end in ("", *ZONES)}


def test_names_fit() -> None:
    (claim,) = (document for document in FOUND if document["kind"] == "PersistentVolumeClaim")
    (secret,) = documents(FOLDER / "secret.example.yaml")
    for pod in pods():
        (container,), (volume,) = pod["containers"], pod["volumes"]
        assert container["image"] == f"wmrt-fleet:{__version__}"
        claimed = volume["persistentVolumeClaim"]["claimName"]
        assert claimed == claim["metadata"]["name"]
        for variable in container["env"]:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference is not None:
                assert reference["name"] == secret["metadata"]["name"]
                assert reference["key"] in secret["stringData"]
        identity = pod["securityContext"]
        assert identity["runAsNonRoot"]
        assert f"{identity['runAsUser']}:{identity['runAsGroup']}" == USER
    assert {document["metadata"]["namespace"] for document in FOUND} == {"robots"}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    policy = one(FOUND, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    assert all(group["template"]["metadata"]["labels"] == policy for group in (HEAD, WORKERS))
    port = yaml.safe_load(SPEC["serveConfigV2"])["http_options"]["port"]
    assert one(FOUND, "NetworkPolicy")["spec"]["ingress"][1]["ports"] == [{"port": port}]
    assert HEAD["rayStartParams"]["num-cpus"] == "0"  # which the loss of a replica needs none of
    assert SPEC["rayClusterConfig"]["authOptions"] == {"mode": "token"}


def test_the_operator_is_let_in_however_it_was_installed() -> None:
    """Its pods are named ``kuberay`` by kustomize, and ``kuberay-operator`` by Helm."""
    (operator,) = (
        peer["podSelector"]["matchLabels"]
        for peer in one(FOUND, "NetworkPolicy")["spec"]["ingress"][0]["from"]
        if "namespaceSelector" in peer
    )
    assert operator == {"app.kubernetes.io/component": "kuberay-operator"}


def test_the_least_version_knows_the_field_that_asks_for_a_token() -> None:
    """`authOptions`: with 1.5.0, a cluster that whoever reaches it runs code in."""
    told = [FOLDER / "rayservice.yaml", ROOT / "deploy/README.md"]
    found = [re.findall(r"KubeRay \(?([\d.]+) or later", path.read_text()) for path in told]
    assert found == [["1.5.1"]] * 2


def probes() -> list[tuple[str, Document]]:
    return [
        (f"{pod['containers'][0]['name']} {kind}", pod["containers"][0][f"{kind}Probe"])
        for pod in pods()
        for kind in ("liveness", "readiness")
    ]


def test_no_probe_needs_a_program() -> None:
    """KubeRay gives wget to whatever has no probe of its own; the image has none."""
    asked = {name: probe.get("httpGet") for name, probe in probes()}
    agent, proxy = {"path": "/api/healthz", "port": 52365}, {"path": "/-/healthz", "port": 8000}
    assert asked == {
        "ray-head liveness": agent,
        "ray-head readiness": agent,
        "ray-worker liveness": agent,
        "ray-worker readiness": proxy,
    }
    assert proxy["port"] == yaml.safe_load(SPEC["serveConfigV2"])["http_options"]["port"]
    for name, probe in probes():
        patience = probe["periodSeconds"] * probe["failureThreshold"]
        # A node that is busy with a model's start is no dead one.
        assert patience >= (600 if name.endswith("liveness") else 4), name


def test_the_probes_are_answered_without_a_token() -> None:
    pytest.importorskip("ray", reason="there is no Ray: make test-fleet installs it")
    agent = importlib.import_module("ray.dashboard.http_server_agent")
    constants = importlib.import_module("ray._private.ray_constants")
    for name, probe in probes():
        if name != "ray-worker readiness":
            assert probe["httpGet"]["path"] in agent.PUBLIC_EXACT_PATHS
            assert probe["httpGet"]["port"] == constants.DEFAULT_DASHBOARD_AGENT_LISTEN_PORT


def test_a_proxy_gets_the_time_that_a_fleet_gives_it() -> None:
    name = "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"
    for pod in pods():
        (own,) = (each for each in pod["containers"][0]["env"] if each["name"] == name)
        assert own["value"] == ENVIRONMENT[name]


def test_ray_is_the_one_that_the_fleet_has() -> None:
    pinned = (ROOT / "constraints-fleet.txt").read_text().splitlines()
    assert f"ray=={SPEC['rayClusterConfig']['rayVersion']}" in pinned


def strict(schema: Any) -> Any:
    """As the API server has it: an unknown field is an error, not something to leave out."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(part) for name, part in schema.items()}
    if made.get("x-kubernetes-int-or-string") is True:
        made.pop("type", None)
    if isinstance(made.get("properties"), dict) and "type" in made:
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.skipif(not CRD, reason="no CRD of KubeRay: make test-deploy CRD=FILE")
def test_kuberay_takes_it() -> None:
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    versions = yaml.safe_load(Path(CRD).read_text())["spec"]["versions"]
    (own,) = (each for each in versions if each["name"] == "v1")
    schema = strict(own["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    check = jsonschema_rs.Draft7Validator(schema)
    document = one(FOUND, "RayService")
    assert [error.message for error in check.iter_errors(document)] == []
    document = {**document, "spec": {**SPEC, "serveConfig": ""}}
    assert not check.is_valid(document)
