"""Options of `wmrt serve` and `wmrt fleet`: what their help shows, and files of tokens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wmrt.cli.main import main

SERVE = ("Model", "Control loop", "Address", "Access", "Memory", "Process", "Limits", "Logs")
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
