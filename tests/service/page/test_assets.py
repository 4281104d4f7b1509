"""The page's files: who gets them, with which headers, and that they ask for nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.service.doubles import service
from wmrt.service.page.assets import PATHS, POLICY

TOKEN = "client-" + "t" * 16


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("page")
    with (
        service(folder, tcp=True, token=TOKEN) as running,
        httpx.Client(base_url=running.tcp, trust_env=False) as client,
    ):
        yield client


@pytest.mark.parametrize("path", sorted(PATHS))
def test_every_file_is_served_without_a_token(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 200 and answer.content == PATHS[path].read_bytes()
    kind = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
    assert answer.headers["content-type"] == f"{kind[PATHS[path].suffix]}; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
    again = http.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    assert http.get(path, headers={"If-None-Match": '"another"'}).status_code == 200
    assert http.post(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 405


def test_the_policy_lets_in_nothing_foreign() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["form-action"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert "unsafe" not in POLICY and "http" not in POLICY and "*" not in POLICY


def test_there_is_nothing_beside_them(http: httpx.Client) -> None:
    for path in (
        "/page/",
        "/page/__init__.py",
        "/page/..%2fapp.py",
        "/page/none.js",
        "/index.html",
    ):
        assert http.get(path).status_code == 401, path  # as any other path without a token
        assert http.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 404


def test_a_foreign_name_gets_no_page(http: httpx.Client) -> None:
    assert http.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_files_name_no_other_place() -> None:
    for path in PATHS.values():
        text = path.read_text("utf-8")
        found = set(re.findall(r"https?://[^\s\"'<>)]+", text)) | set(re.findall(r"wss?://", text))
        assert found <= {"http://www.w3.org/2000/svg"}, path.name  # a name, never fetched
        assert not re.search(r"@import|url\(|innerHTML|outerHTML|insertAdjacentHTML|eval\(", text)
        assert not re.search(r"<style|<script>|\sstyle=|\son[a-z]+=", text), path.name


def test_scripts_ask_only_for_each_other() -> None:
    scripts = {path.name for path in PATHS.values() if path.suffix == ".js"}
    wanted = {"main.js", "theme.js"}
    for path in PATHS.values():
        wanted |= set(re.findall(r'from "\./([a-z]+\.js)"', path.read_text("utf-8")))
    assert wanted == scripts


def test_no_script_computes_a_percentile() -> None:
    for path in PATHS.values():
        if path.suffix == ".js":
            code = re.sub(r"//.*", "", path.read_text("utf-8"))
            assert not re.search(r"percentile|quantile|median|rank|\* 0?\.99?\b", code), path.name


def test_files_are_small() -> None:
    for path in PATHS.values():
        assert len(path.read_text("utf-8").splitlines()) <= 300, path.name
    assert sum(path.stat().st_size for path in PATHS.values()) < 100_000


def test_they_are_in_the_package() -> None:
    folder = Path(__file__).parents[3] / "service/page"
    names = {path.name for path in folder.iterdir() if path.suffix in {".html", ".css", ".js"}}
    assert {path.name for path in PATHS.values()} == names
