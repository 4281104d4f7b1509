"""Kubernetes manifests as data, with kustomize's patches applied."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from tests.house.tree import ROOT

FOLDER = ROOT / "deploy/kubernetes"
Document = dict[str, Any]


def documents(path: Path) -> list[Document]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def kustomized(folder: Path) -> list[Document]:
    """What `kubectl apply -k` would apply: resources and JSON patches, no more is used."""
    (own,) = documents(folder / "kustomization.yaml")
    assert set(own) <= {"apiVersion", "kind", "namespace", "resources", "patches"}
    found: list[Document] = []
    for name in own["resources"]:
        path = folder / name
        found += kustomized(path) if path.is_dir() else documents(path)
    for patch in own.get("patches", []):
        (document,) = (each for each in found if named(each) == tuple(patch["target"].values()))
        for step in yaml.safe_load(patch["patch"]):
            apply(document, step)
    for document in found:
        if "namespace" in own:
            document["metadata"]["namespace"] = own["namespace"]
    return found


def named(document: Document) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def apply(document: Document, step: dict[str, Any]) -> None:
    """One operation of RFC 6902; fails where there is nothing to do it to."""
    *way, last = [part.replace("~1", "/") for part in step["path"].split("/")[1:]]
    place: Any = document
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place[part]
    assert isinstance(place, dict) and (last in place) == (step["op"] != "add"), step
    if step["op"] == "remove":
        del place[last]
    else:
        place[last] = copy.deepcopy(step["value"])


def one(found: list[Document], kind: str) -> Document:
    (document,) = (each for each in found if each["kind"] == kind)
    return document


def container(document: Document) -> Document:
    (only,) = document["spec"]["template"]["spec"]["containers"]
    found: Document = only
    return found
