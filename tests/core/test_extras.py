from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wmrt.core.errors import MissingExtraError
from wmrt.core.extras import require


def test_a_module_that_is_there_is_returned() -> None:
    assert require("json.decoder", "none") is sys.modules["json.decoder"]


def test_an_absent_module_names_the_command() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'wmrt\[drive\]'") as caught:
        require("wmrt_no_such_module.inner", "drive")
    assert caught.value.__suppress_context__


def test_a_fault_inside_a_present_module_is_not_called_an_absent_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wmrt_broken_fixture.py").write_text("import wmrt_absent_dependency\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="wmrt_absent_dependency"):
        require("wmrt_broken_fixture", "drive")
