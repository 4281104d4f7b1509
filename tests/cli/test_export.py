"""``wmrt export`` and ``wmrt import`` on a tiny checkpoint: to another tool's form and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.calls import line, run
from tests.runtime.models import drive, same, states
from wmrt.cli.main import main
from wmrt.core.errors import UnsupportedError
from wmrt.kernels.triton import aot, aot_cases
from wmrt.model.checkpoint import load_checkpoint
from wmrt.quant.interchange import read_compressed_tensors, write_compressed_tensors
from wmrt.runtime import WorldModel, step_launches


@pytest.fixture
def packed(folder: Path, tmp_path: Path) -> Path:
    out = tmp_path / "packed"
    assert main(["quantize", str(folder), "--recipe", "nvfp4", "--out", str(out)]) == 0
    return out


@pytest.fixture
def exported(packed: Path, tmp_path: Path) -> Path:
    out = tmp_path / "exported"
    to = ["--to", "compressed-tensors"]
    assert main(["export", str(packed), *to, "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "w4a8", "w4a8-zp"])
def test_there_and_back_is_the_same_model(
    recipe: str, folder: Path, tmp_path: Path, seed: int
) -> None:
    packed, out, back = (tmp_path / name for name in ("packed", "out", "back"))
    assert main(["quantize", str(folder), "--recipe", recipe, "--out", str(packed)]) == 0
    told = run(tmp_path / "e.json", "export", str(packed), "--to", "compressed-tensors",
               "--out", str(out))  # fmt: skip
    read = run(tmp_path / "i.json", "import", str(out), "--like", str(folder), "--out", str(back))
    original, again = load_checkpoint(packed), load_checkpoint(back)
    assert again.tensors.keys() == original.tensors.keys()
    assert all(torch.equal(again.tensors[n], t) for n, t in original.tensors.items())
    assert again.quantization == original.quantization  # the recipe too
    models = [WorldModel.from_pretrained(path) for path in (packed, back)]
    stream = states(models[0].schema, 12, seed)
    assert all(same(a, b) for a, b in zip(*(drive(m, stream) for m in models), strict=True))
    layers = [row["layer"] for row in told["results"]["layers"]]
    assert sorted(layers) == read["results"]["layers"]
    assert told["results"]["kept"] == read["results"]["others"]
    assert told["results"]["bytes"] == (out / "model.safetensors").stat().st_size
    assert read["identity"]["recipe"] == told["identity"]["recipe"] == recipe


def test_layers_keep_their_names_and_the_rest_its_bits(packed: Path, exported: Path) -> None:
    file, source = read_compressed_tensors(exported), load_checkpoint(packed)
    assert "blocks.0.out" in file.weights
    assert file.others["action_head.out.weight"].dtype == torch.bfloat16
    assert all(torch.equal(source.tensors[name], t) for name, t in file.others.items())
    ignored = set(file.config["quantization_config"]["ignore"])
    assert "action_head.out" in ignored and not ignored & file.weights.keys()
    assert {path.name for path in exported.iterdir()} == {"config.json", "model.safetensors"}


def test_the_stored_layout_is_of_no_matter(folder: Path, exported: Path, tmp_path: Path) -> None:
    laid, out = str(tmp_path / "laid"), tmp_path / "out"
    stored = ["--layout", "gpu_gemv", "--out", laid]
    assert main(["quantize", str(folder), "--recipe", "nvfp4", *stored]) == 0
    assert main(["export", laid, "--to", "compressed-tensors", "--out", str(out)]) == 0
    ours, other = ((path / "model.safetensors").read_bytes() for path in (out, exported))
    assert ours == other


def test_provenance_says_where_the_weights_are_from(
    folder: Path, packed: Path, exported: Path, tmp_path: Path
) -> None:
    back = tmp_path / "back"
    assert main(["import", str(exported), "--like", str(folder), "--out", str(back)]) == 0
    provenance = load_checkpoint(back).provenance
    origin = provenance["imported_from"]
    assert provenance["env"] == "toy/Toy-v0"  # the world of the model whose schema it is
    assert origin["folder"] == "exported" and origin["format"] == "compressed-tensors"
    assert origin["exported_from"]["weights_sha256"] == load_checkpoint(packed).weights_sha256
    assert origin["like"]["weights_sha256"] == load_checkpoint(folder).weights_sha256
    card = (back / "README.md").read_text()
    assert origin["weights_sha256"] in card and "not results of these" in card
    for path in (back / "config.json", back / "README.md", exported / "config.json"):
        assert str(tmp_path) not in path.read_text()


def test_layers_that_the_file_leaves_float_stay_bf16(
    folder: Path, exported: Path, tmp_path: Path
) -> None:
    file, name = read_compressed_tensors(exported), "blocks.1.down"
    weights = {n: q for n, q in file.weights.items() if n != name}
    others = file.others | {f"{name}.weight": load_checkpoint(folder).tensors[f"{name}.weight"]}
    write_compressed_tensors(tmp_path / "part", weights, others, ignore=[name])
    back = tmp_path / "back"
    arguments = ["--like", str(folder), "--out", str(back), "--recipe", "nvfp4-a16"]
    assert main(["import", str(tmp_path / "part"), *arguments]) == 0
    model = WorldModel.from_pretrained(back)
    assert model.recipe.exclude == (name,) and model.recipe.activation == "bf16"
    assert load_checkpoint(back).tensors[f"{name}.weight"].dtype == torch.bfloat16


def test_names_and_shapes_must_fit(
    folder: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "back"
    request = ["import", str(exported), "--like", str(folder), "--out", str(out)]
    path = exported / "model.safetensors"
    tensors = load_file(path)
    renamed = {n.replace("blocks.0.out.", "blocks.0.o_proj."): t for n, t in tensors.items()}
    save_file(renamed, path)
    said = line(capsys, *request)
    assert "no linear layer for: blocks.0.o_proj" in said and "blocks.0.out" in said
    save_file({n: t for n, t in tensors.items() if not n.startswith("selector.key")}, path)
    assert "missing tensors: selector.key.bias, selector.key.weight" in line(capsys, *request)
    save_file(tensors | {"extra.weight": torch.ones(2)}, path)
    assert "unexpected tensors: extra.weight" in line(capsys, *request)
    save_file({n: t for n, t in tensors.items() if not n.startswith("blocks.0.out.")}, path)
    assert "missing tensors: blocks.0.out.weight" in line(capsys, *request)
    save_file(tensors, path)
    file = read_compressed_tensors(exported)
    a, b = "blocks.0.out", "blocks.0.down"
    swapped = file.weights | {a: file.weights[b], b: file.weights[a]}
    write_compressed_tensors(tmp_path / "swapped", swapped, file.others)
    said = line(capsys, "import", str(tmp_path / "swapped"), *request[2:])
    assert "this linear takes nvfp4" in said
    path.write_bytes(path.read_bytes()[:-100])
    assert "truncated" in line(capsys, *request)
    assert not out.exists()


def test_refusals(
    folder: Path, packed: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "new")
    to = ["--to", "compressed-tensors", "--out"]
    assert "not packed" in line(capsys, "export", str(folder), *to, out)
    assert "is not replaced" in line(capsys, "export", str(packed), *to, str(exported))
    assert "gguf" in line(capsys, "export", str(packed), "--to", "gguf", "--out", out)
    like = ["import", str(exported), "--like", str(folder), "--out"]
    assert "itself" in line(capsys, *like, str(folder))
    assert "recipe mxfp4 has mxfp4" in line(capsys, *like, out, "--recipe", "mxfp4")
    assert "cannot be read as JSON" in line(capsys, "import", str(tmp_path), *like[2:], out)
    assert "no quantization_config" in line(capsys, "import", str(folder), *like[2:], out)
    assert not Path(out).exists()


def test_8_bit_weights_have_no_such_form(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = str(tmp_path / "packed")
    assert main(["quantize", str(folder), "--recipe", "int8", "--out", packed]) == 0
    said = line(capsys, "export", packed, "--to", "compressed-tensors", "--out", packed + "-ct")
    assert "int8-channel" in said and "nvfp4, mxfp4" in said


def test_a_tail_is_told(exported: Path, packed: Path, tmp_path: Path) -> None:
    tails = run(tmp_path / "e.json", "export", str(packed), "--to", "compressed-tensors",
                "--out", str(tmp_path / "again"))["results"]["tails"]  # fmt: skip
    config = json.loads((exported / "config.json").read_text())
    block = config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"]
    file = read_compressed_tensors(exported)
    assert tails == [name for name, q in file.weights.items() if q.shape[1] % block]


def test_cubins_are_kernels_without_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aot_cases, "MODULES", ("action_quant",))
    monkeypatch.setattr(step_launches, "preset_steps", lambda *_: [])
    out = tmp_path / "cubins"
    told = run(tmp_path / "c.json", "export", "--to", "cubins", "--capability", "87",
               "--out", str(out))  # fmt: skip
    manifest = json.loads((out / "manifest.json").read_text())
    assert told["results"]["kernels"] == manifest["kernels"]
    assert {kernel["capability"] for kernel in manifest["kernels"]} == {87}
    assert told["results"]["bytes"] == sum(p.stat().st_size for p in out.glob("*.cubin"))


@pytest.mark.full  # it compiles 18 kernels: a minute
def test_a_step_of_a_preset_with_all_its_kernels(tmp_path: Path) -> None:
    out = tmp_path / "cubins"
    run(tmp_path / "c.json", "export", "--to", "cubins", "--capability", "90", "--step-only",
        "--preset", "small", "--recipe", "mxfp4", "--out", str(out))  # fmt: skip
    manifest = json.loads((out / "manifest.json").read_text())
    kernels = {kernel["case"]: kernel for kernel in manifest["kernels"]}
    (step,) = manifest["steps"]
    launched = [action for action in step["actions"] if "kernel" in action]
    assert {action["kernel"] for action in launched} == kernels.keys()
    assert len(launched) == 12 + 5 * 2 and step["name"] == "step.small.mxfp4"
    assert (step["preset"], step["recipe"], step["robots"]) == ("small", "mxfp4", 1)
    for action in launched:
        kernel = kernels[action["kernel"]]
        assert kernel["dependent"] is action["dependent"]
        assert list(action["arguments"]) == [name for name, _ in kernel["arguments"][:-2]]
    assert sum(action["dependent"] for action in launched) == len(launched) - 1


def test_a_package_that_fails_is_removed_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(case: aot_cases.AotCase, capability: int) -> None:
        raise UnsupportedError("no assembler")

    monkeypatch.setattr(aot_cases, "MODULES", ("action_quant",))
    monkeypatch.setattr(step_launches, "preset_steps", lambda *_: [])
    monkeypatch.setattr(aot, "compile_case", fails)
    out = tmp_path / "cubins"
    assert main(["export", "--to", "cubins", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert "not whole, so it was removed" in said and "no assembler" in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["highway", "--to", "cubins"], "cubins hold kernels, no weights"),
        (["--to", "cubins", "--capability", "75"], "--capability 75: kernels are made for [87,"),
        (["--to", "compressed-tensors"], "--to compressed-tensors needs the MODEL"),
        (["highway", "--to", "compressed-tensors", "--capability", "87"], "is for --to cubins"),
        (["highway", "--to", "compressed-tensors", "--preset", "small"], "--preset is for --to"),
        (["--to", "cubins", "--preset", "huge"], "preset 'huge' is unknown"),
    ],
)
def test_forms_take_their_own_options(
    given: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in line(capsys, "export", *given, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
