"""deploy/kubernetes/rayservice.yaml: what Serve is given is what `wmrt fleet` takes."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.dockerfile import USER
from tests.deploy.manifests import FOLDER, Document, documents, one
from tests.deploy.settings import settings
from wmrt import __version__

FOUND = documents(FOLDER / "rayservice.yaml")
SPEC: Document = one(FOUND, "RayService")["spec"]
HEAD = SPEC["rayClusterConfig"]["headGroupSpec"]
(WORKERS,) = SPEC["rayClusterConfig"]["workerGroupSpecs"]
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
    assert service in made.names and f"{service}.robots.svc.cluster.local" in made.names


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


def test_ray_is_the_one_that_the_fleet_has() -> None:
    pinned = (FOLDER.parents[1] / "constraints-fleet.txt").read_text().splitlines()
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
