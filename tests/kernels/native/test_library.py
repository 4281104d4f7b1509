"""The loader agrees with the C header, and says why when there is no library to have."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tests.kernels.native.alone import ALONE
from wmrt.core import machine
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.native import library as native

HEADER = (ROOT / "kernels/native/wmrt.h").read_text("utf-8")


def enum(first: str) -> list[str]:
    """Names of the enum in wmrt.h that begins with ``first``."""
    found = re.search(rf"enum {{ ({first}\b[^}}]*) }}", HEADER)
    assert found is not None
    return [name.strip() for name in found.group(1).split(",")]


def test_numbers_are_those_of_the_header() -> None:
    assert re.search(rf"#define WMRT_ABI {native.ABI}\b", HEADER)
    formats = ["WMRT_F32", "WMRT_BF16", "WMRT_NVFP4", "WMRT_MXFP4", "WMRT_INT4_G128"]
    assert enum("WMRT_F32") == [*formats, "WMRT_FORMATS"]
    assert list(native.FORMATS.values()) == list(range(5))
    assert enum("WMRT_A_F32")[:-1] == ["WMRT_A_F32", "WMRT_A_BF16", "WMRT_A_INT8_G32"]
    assert list(native.ACTIVATIONS.values()) == list(range(3))
    assert enum("WMRT_ISA_PORTABLE")[-1] == "WMRT_ISAS" and native._ISAS == 4
    codes = [int(text.split("=")[1]) for text in enum("WMRT_E_ARGUMENT")]
    assert codes == list(native.ERRORS)


def test_every_function_of_the_header_is_declared() -> None:
    declared = re.findall(r"^WMRT_API [^;]*?\b(wmrt_\w+)\(", HEADER, re.MULTILINE)
    assert sorted(declared) == sorted(native._FUNCTIONS)


def test_the_matrix_has_the_layout_of_c(tmp_path: Path) -> None:
    fields = [name for name, _ in native.Matrix._fields_]
    source = tmp_path / "layout.c"
    prints = "".join(f'printf("%zu ", offsetof(wmrt_matrix, {name}));' for name in fields)
    source.write_text(
        f'#include <stdio.h>\n#include "wmrt.h"\n'
        f'int main(void) {{ {prints} printf("%zu", sizeof(wmrt_matrix)); }}'
    )
    program = tmp_path / "layout"
    command = ["gcc", "-I", str(ROOT / "kernels/native"), str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    said = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    want = [getattr(native.Matrix, name).offset for name in fields]
    assert [int(word) for word in said.split()] == [*want, ctypes.sizeof(native.Matrix)]


def test_it_needs_no_torch() -> None:
    code = f"{ALONE}\nimport sys; library.isa(); assert not {{'torch', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_it_is_loaded_once() -> None:
    found: list[ctypes.CDLL] = []
    threads = [threading.Thread(target=lambda: found.append(native.library())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len({id(one) for one in found}) == 1


def test_the_best_instruction_set_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WMRT_ISA", raising=False)
    usable = native.usable_isas()
    assert native.Isa(0, "portable") in usable and native.isa() in usable
    have = set(machine.cpu_features())
    assert (native.Isa(1, "avx2") in usable) == ({"avx2", "fma", "f16c"} <= have)
    if len(usable) > 1:
        assert native.isa().name != "portable"


def test_an_instruction_set_is_taken_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for isa in native.usable_isas():
        monkeypatch.setenv("WMRT_ISA", isa.name)
        assert native.isa() == isa


def test_an_unknown_or_absent_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMRT_ISA", "sse9")
    with pytest.raises(UsageError, match=r"WMRT_ISA='sse9'.*usable here are portable"):
        native.isa()
    absent = {isa.name for isa in native._isas()} - {isa.name for isa in native.usable_isas()}
    assert absent  # no processor has AVX and NEON
    for name in absent:
        monkeypatch.setenv("WMRT_ISA", name)
        with pytest.raises(UnsupportedError, match=rf"WMRT_ISA={name}: .* does not have it"):
            native.isa()


def test_no_library_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match=r"not built.*install gcc.*WMRT_NATIVE=0"):
        native.load(tmp_path / "_native.so")
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedError, match="Linux only, this is darwin"):
        native.load(tmp_path / "_native.so")


@pytest.mark.parametrize("part", [0.0, 0.001, 0.1, 0.5, 0.9, 0.9999])
def test_a_library_that_is_cut_off_is_refused_not_mapped(part: float, tmp_path: Path) -> None:
    whole = native.PATH.read_bytes()
    path = tmp_path / "_native.so"
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(UnsupportedError, match=r"is damaged: \d+ bytes"):
        native.load(path)


def build(source: str, folder: Path) -> Path:
    (folder / "other.c").write_text(source)
    path = folder / "_native.so"
    command = ["gcc", "-shared", "-fPIC", str(folder / "other.c"), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


def test_another_interface_is_refused(tmp_path: Path) -> None:
    path = build("int wmrt_abi(void) { return 77; }", tmp_path)
    with pytest.raises(UnsupportedError, match=rf"interface 77, this wmrt needs {native.ABI};"):
        native.load(path)


def test_a_library_of_something_else_is_refused(tmp_path: Path) -> None:
    path = build("int other(void) { return 77; }", tmp_path)
    with pytest.raises(UnsupportedError, match="has no function wmrt_abi"):
        native.load(path)


def test_a_library_that_does_not_load_says_why(tmp_path: Path) -> None:
    path = build("int absent(void); int wmrt_abi(void) { return absent(); }", tmp_path)
    code = f"""{ALONE}
from pathlib import Path
try: library.load(Path({str(path)!r}))
except library.UnsupportedError as error: print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"LD_BIND_NOW": "1", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "does not load" in done.stdout and "absent" in done.stdout


@pytest.mark.parametrize("code", sorted(native.ERRORS))
def test_a_native_error_is_an_exception(code: int) -> None:
    kind = UsageError if code == -1 else UnsupportedError
    with pytest.raises(kind, match=f"stream: {native.ERRORS[code]}"):
        native.check(code, "stream")
    assert native.check(12, "stream") == 12
