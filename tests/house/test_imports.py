"""What may import what, and what an import may cost."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import LINKED, ROOT, copy_source, files, imports

HEAVY = ("torch", "numpy", "triton", "fastapi", "gymnasium", "highway_env", "matplotlib")


@pytest.mark.parametrize(
    "code",
    [
        "import wmrt; dir(wmrt); wmrt.__version__",
        "import wmrt.core.errors, wmrt.core.types, wmrt.core.measure, wmrt.core.machine",
        "from wmrt.cli.main import main; assert main(['--help']) == 0",
        "from wmrt.cli.main import main; assert main(['--version']) == 0",
        "from wmrt.cli.main import main; assert main(['no-such-verb']) == 2",
    ],
)
def test_loads_nothing_heavy(code: str) -> None:
    code += (
        f"; import sys; loaded = sorted({set(HEAVY)} & set(sys.modules)); assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_kernels_load_no_triton_before_one_is_asked_for() -> None:
    code = (
        "import wmrt.runtime, wmrt.kernels.triton.library, sys; assert 'triton' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_safety_loads_no_torch_and_no_numpy() -> None:
    code = f"import wmrt.safety, sys; assert not {set(HEAVY)} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("folder", "own"),
    [("wmrt/core", ("wmrt.core",)), ("wmrt/safety", ("wmrt.core", "wmrt.safety"))],
)
def test_pure_floors_import_the_standard_library_only(folder: str, own: tuple[str, ...]) -> None:
    for path in files(folder, suffix=".py"):
        for line, name in imports(path):
            allowed = name.split(".")[0] in sys.stdlib_module_names or name.startswith(own)
            assert allowed, f"{path.relative_to(ROOT)}:{line} imports {name}"


@pytest.mark.parametrize("folder", LINKED)
def test_a_linked_folder_refuses_its_bare_name(folder: str) -> None:
    spec = importlib.util.spec_from_file_location(folder, ROOT / folder / "__init__.py")
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match=rf"import wmrt\.{folder}"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.parametrize("folder", LINKED)
def test_nothing_runs_before_the_guard(folder: str) -> None:
    """Else an import above it would fail first, or load the folder's modules twice."""
    body = ast.parse((ROOT / folder / "__init__.py").read_text("utf-8")).body
    plain = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    future = [n for n in plain if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")]
    assert isinstance(future[0], ast.If)


@pytest.mark.parametrize("folder", LINKED)
def test_the_links_are_relative(folder: str) -> None:
    link = ROOT / "wmrt" / folder
    assert link.is_symlink()
    assert os.readlink(link) == f"../{folder}"


def test_nothing_imports_a_bare_name() -> None:
    for path in files("wmrt", *LINKED, "tests", "tools", suffix=".py"):
        for line, name in imports(path):
            assert name.split(".")[0] not in LINKED, f"{path.relative_to(ROOT)}:{line}"


def test_the_layers_contract_sees_through_the_links(tmp_path: Path) -> None:
    """A violation planted in a linked folder is found, so a clean report means something."""
    source = copy_source(tmp_path)
    (source / "quant" / "planted.py").write_text("import wmrt.cli.main\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "wmrt.quant.planted -> wmrt.cli.main" in done.stdout
