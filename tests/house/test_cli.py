"""The command line as a whole: verbs, exit statuses, one-line errors, result files."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import sys
import types
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import wmrt
from tests.house.tree import ROOT
from wmrt.cli import common, doctor
from wmrt.cli.main import FALLS_SHORT, INTERRUPTED, OK, USAGE, VERBS, cli, main
from wmrt.core.errors import CheckpointError


def only_line(text: str) -> str:
    """The single line of an error, after checking that it is one."""
    assert text.endswith("\n") and text.count("\n") == 1, text
    assert "Traceback" not in text
    return text.strip()


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers ``wmrt fake`` running the function it is given."""

    def register(function: Any) -> None:
        module = types.ModuleType("wmrt.cli.fake")
        module.command = click.command()(function)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "wmrt.cli.fake", module)
        monkeypatch.setitem(VERBS, "fake", "A verb of the tests.")

    return register


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, line in VERBS.items():
        assert name in text
        assert line.split(".")[0][:40] in text


@pytest.mark.parametrize("name", list(VERBS))
def test_a_verb_has_help_with_an_example_and_json(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: wmrt {name}")
    assert "Example" in text and f"wmrt {name}" in text.split("Example", 1)[1]
    assert "--json FILE" in text


@pytest.mark.parametrize("name", list(VERBS))
def test_a_wrong_option_is_one_line_and_status_2(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--no-such-option"]) == 2
    line = only_line(capsys.readouterr().err)
    assert line == f"wmrt {name}: error: No such option '--no-such-option' (see wmrt {name} --help)"


def test_an_unknown_verb_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drvie"]) == 2
    line = only_line(capsys.readouterr().err)
    assert "no verb 'drvie'" in line
    assert all(name in line for name in VERBS)


def test_no_verb_shows_the_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Verbs:" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"wmrt {wmrt.__version__}\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CheckpointError("weights\n  are damaged"), "weights are damaged"),
        (FileNotFoundError(2, "No such file", "x.bin"), "error: 'x.bin': No such file"),
        (OSError(28, "No space left on device"), "error: No space left on device"),
        (click.ClickException("not so"), "not so"),
    ],
)
def test_a_user_error_is_one_line_and_status_2(
    error: Exception, said: str, verb: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    verb(fails)
    assert main(["fake"]) == 2
    assert said in only_line(capsys.readouterr().err)


def test_a_user_error_keeps_its_traceback_on_request(
    verb: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise CheckpointError("damaged")

    verb(fails)
    monkeypatch.setenv("WMRT_TRACEBACK", "1")
    with pytest.raises(CheckpointError):
        main(["fake"])


def test_a_fault_of_ours_is_not_dressed_as_the_users(verb: Any) -> None:
    def fails() -> None:
        raise RuntimeError("a bug")

    verb(fails)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["fake"])


def test_interrupted(verb: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise KeyboardInterrupt

    verb(fails)
    assert main(["fake"]) == 130
    assert capsys.readouterr().err.strip() == "wmrt: error: interrupted"


def test_every_exit_status_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    readme = (ROOT / "README.md").read_text("utf-8")
    for status in (OK, FALLS_SHORT, USAGE, INTERRUPTED):
        assert re.search(rf"[Ss]tatus.*\b{status}\b", help_text)
        assert re.search(rf"exit status is .*\b{status} for", readme)


def test_falling_short_is_status_1_with_its_reason(
    verb: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    verb(lambda: common.falls_short("return 3 [of 30]"))
    assert main(["fake"]) == 1
    assert only_line(capsys.readouterr().err) == "falls short: return 3 [of 30]"


class Level(Enum):
    RATE = "rate"


@dataclass
class Row:
    seed: int
    path: Path


def test_result_file_has_the_documented_form(verb: Any, tmp_path: Path) -> None:
    def writes(json_path: Path) -> None:
        results = {"speed": np.float32(1.5), "rows": [Row(3, Path("a"))], Level.RATE: np.arange(2)}
        common.write_result(json_path, {"summary": results}, recipe="nvfp4", model="highway")

    verb(common.json_option(writes))
    path = tmp_path / "result.json"
    assert main(["fake", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert list(document) == ["wmrt", "command", "identity", "results"]
    assert document["wmrt"] == wmrt.__version__
    assert document["command"] == ["wmrt", "fake", "--json", str(path)]
    identity = document["identity"]
    keys = "device cpu threads torch triton model model_sha256 recipe resolved commit"
    assert list(identity) == keys.split()
    assert (identity["device"], identity["recipe"], identity["model"]) == (
        "cpu",
        "nvfp4",
        "highway",
    )
    rows = [{"seed": 3, "path": "a"}]
    assert document["results"] == {"summary": {"speed": 1.5, "rows": rows, "rate": [0, 1]}}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("value", [math.nan, math.inf, np.float32("nan"), np.array([-math.inf])])
def test_a_result_that_is_no_number_is_refused_with_its_place(value: object) -> None:
    with pytest.raises(ValueError, match=r"results\.speed"):
        common.plain({"speed": value}, "results")


def test_a_result_without_json_form_is_refused() -> None:
    with pytest.raises(ValueError, match=r"results\.x is a object"):
        common.plain({"x": object()}, "results")


def test_no_path_writes_nothing() -> None:
    common.write_result(None, {"never": object()})


@pytest.mark.parametrize("name", list(VERBS))
def test_a_json_file_that_cannot_be_written_is_told_before_the_work(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere" / "r.json")
    cases = {
        tmp_path / "new" / "r.json": f"there is no folder {tmp_path / 'new'}; make it first",
        tmp_path / "file" / "r.json": f"there is no folder {tmp_path / 'file'}",
        tmp_path: "is a directory",
        Path("/dev/null"): "is there and is no file",
        Path("/proc/self/r.json"): "/proc/self cannot be written: ",
    }
    before = sorted(tmp_path.iterdir())
    for path, said in cases.items():  # before anything else that may be wrong or missing
        assert main([name, "--json", str(path)]) == 2
        line = only_line(capsys.readouterr().err)
        assert "--json" in line and said in line, (path, line)
    assert sorted(tmp_path.iterdir()) == before


def test_looking_whether_a_json_file_can_be_written_does_not_touch_it(
    verb: Any, tmp_path: Path
) -> None:
    seen: list[str] = []
    verb(common.json_option(lambda json_path: seen.append(json_path.read_text())))
    (tmp_path / "old.json").write_text("old")
    assert main(["fake", "--json", str(tmp_path / "old.json")]) == 0
    assert seen == ["old"] and list(tmp_path.iterdir()) == [tmp_path / "old.json"]


@pytest.mark.parametrize("beside", [False, True])
def test_an_out_folder_that_cannot_be_written_is_told_before_the_work(
    beside: bool, verb: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Path] = []
    verb(common.out_option(beside=beside, help="x")(lambda out: given.append(out)))
    (tmp_path / "file").write_text("")
    cases = {tmp_path / "file": "is a file", tmp_path / "file" / "out": "it is no folder"}
    if not beside:
        cases[Path("/proc/self")] = "cannot be written: "
    for path, said in {**cases, Path("/proc/self/out"): "cannot be written"}.items():
        assert main(["fake", "--out", str(path)]) == 2
        line = only_line(capsys.readouterr().err)
        assert "--out" in line and said in line and "Errno" not in line, line
    assert given == [] and sorted(tmp_path.iterdir()) == [tmp_path / "file"]
    assert main(["fake", "--out", str(tmp_path / "new" / "out")]) == 0
    assert main(["fake"]) == 0
    assert given == [tmp_path / "new" / "out", None]
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_disk_that_is_full_is_one_line(
    verb: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    verb(common.json_option(lambda json_path: common.write_result(json_path, {})))
    path = tmp_path / "r.json"
    path.write_text("old")
    monkeypatch.setattr(Path, "write_text", full)
    assert main(["fake", "--json", str(path)]) == 2
    said = f"wmrt: error: {path} cannot be written: No space left on device"
    assert only_line(capsys.readouterr().err) == said
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_track_yields_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(common.track(iter(range(3)), "counting", total=3)) == [0, 1, 2]
    assert capsys.readouterr().out == ""


def test_doctor_on_this_installation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "doctor.json"
    assert main(["doctor", "--json", str(path)]) == 0
    results = json.loads(path.read_text())["results"]
    plain_version = results["torch"]["version"].split("+")[
        0
    ]  # 2.13.0+cpu loads as installed 2.13.0
    assert results["requirements"][""]["torch"].split("+")[0] == plain_version
    assert results["requirements"]["dev"]["pytest"] == pytest.__version__
    assert "extra drive" in capsys.readouterr().out


def test_doctor_names_the_command_for_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = ["torch>=2", 'no-such-thing>=1; extra == "drive"', "no-such-base"]
    monkeypatch.setattr("wmrt.cli.doctor.metadata.requires", lambda name: declared)
    assert main(["doctor"]) == 1
    said = capsys.readouterr()
    assert "missing no-such-thing: pip install 'wmrt[drive]'" in said.out
    assert "missing no-such-base; run: pip install wmrt" in said.err


def test_doctor_reports_a_damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text, weights in [("a", "{}", True), ("b", "{", True), ("c", "{}", False)]:
        folder = tmp_path / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(text)
        if weights:
            (folder / "model.safetensors").write_bytes(b"12345678")
    monkeypatch.setattr(wmrt, "__file__", str(tmp_path / "__init__.py"))
    found = {entry["name"]: entry for entry in doctor.packaged_checkpoints()}
    assert found["a"] == {"name": "a", "bytes": 10, "config_error": None}
    assert found["b"]["config_error"] is not None
    assert found["c"]["config_error"] == "no weights"


def test_the_command_group_imports_no_verb_for_its_help() -> None:
    assert cli.list_commands(click.Context(cli)) == list(VERBS)


@pytest.mark.parametrize(
    ("module", "said"),
    [("tools.service_load", ["-m", "tools.service_load"]), (None, ["overhead.py"])],
)
def test_a_tool_s_result_names_the_tool(
    module: str | None, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not where it lies on this machine."""
    spec = None if module is None else types.SimpleNamespace(name=module)
    monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(__spec__=spec))
    monkeypatch.setattr(sys, "argv", ["/somewhere/tools/overhead.py", "--rounds", "3"])
    common.write_result(tmp_path / "result.json", {})
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["command"] == ["python", *said, "--rounds", "3"]
