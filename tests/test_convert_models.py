"""Models in Hugging Face's form become MLX's: the same numbers, whatever the form, or one line and nothing left."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from test_cli_generate import run
from tiny import LLAMA, MAMBA, random_weights, write_model

from diversed_mlx import DiversedError, generate, load_pair
from diversed_mlx.convert import models, output
from diversed_mlx.convert.checkpoint import output_bytes
from diversed_mlx.convert.models import Recipe, convert_model, convert_pair
from diversed_mlx.convert.torch_file import Tensor, write_tensors
from diversed_mlx.lm import LM

LLAMA_HF = LLAMA | {"architectures": ["LlamaForCausalLM"], "torch_dtype": "float32"}
WIDE = LLAMA_HF | {"hidden_size": 128, "intermediate_size": 128}  # wide enough for groups of 64
TOKENS = mx.array([72, 101, 108, 108, 111, 44, 32, 119])


def refused(call, *arguments, **named) -> str:
    with pytest.raises(DiversedError) as error:
        call(*arguments, **named)
    assert "\n" not in str(error.value)
    return str(error.value)


def logits(folder: Path) -> np.ndarray:
    """As plain mlx-lm computes them, without anything of ours that reads configs."""
    model, _ = load_model(folder)
    return np.array(model(TOKENS[None]).astype(mx.float32))


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("hf") / "llama", LLAMA_HF)


def test_a_model_keeps_its_numbers_and_its_files(tmp_path, source):
    said = []
    convert_model(str(source), tmp_path / "out", check=False, progress=said.append)
    assert np.array_equal(logits(tmp_path / "out"), logits(source))
    names = names_in(tmp_path / "out")
    assert names == [
        "README.md", "chat_template.jinja", "config.json", "model.safetensors", "model.safetensors.index.json",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert names_in(tmp_path) == ["out"]
    assert "loading" in said
    text = "déjà vu <|user|>"
    assert LM.load(tmp_path / "out").tokenizer.encode(text) == LM.load(source).tokenizer.encode(text)


def test_the_rotary_theta_of_transformers_5_is_not_lost(tmp_path):
    """`rope_parameters` alone: mlx-lm would take 10000 without a word, and plain mlx-lm reads the result right."""
    weights = random_weights(LLAMA, 1, 4.0)
    truth = write_model(tmp_path / "truth", LLAMA_HF | {"rope_theta": 500.0}, weights=weights)
    new = {k: v for k, v in LLAMA_HF.items() if k not in ("rope_theta", "torch_dtype")}
    new |= {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "dtype": "float32"}
    source = write_model(tmp_path / "source", new, weights=weights)
    assert np.abs(logits(source) - logits(truth)).max() > 0.1  # the trap is one
    convert_model(str(source), tmp_path / "out", check=False)
    assert np.array_equal(logits(tmp_path / "out"), logits(truth))


def test_a_config_that_mlx_lm_cannot_express_is_refused_before_anything_is_written(tmp_path):
    config = LLAMA_HF | {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 1}
    config |= {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}
    source = write_model(tmp_path / "source", config, weights=random_weights(LLAMA, 1, 4.0))
    message = refused(convert_model, str(source), tmp_path / "out")
    assert "does not scale positions by 'yarn'" in message
    assert names_in(tmp_path) == ["source"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_become_the_type_that_is_asked_for(tmp_path, source, dtype):
    convert_model(str(source), tmp_path / "out", Recipe(dtype=dtype), check=False)
    made, original = mx.load(str(tmp_path / "out" / "model.safetensors")), mx.load(str(source / "model.safetensors"))
    assert made.keys() == original.keys()
    for name, array in made.items():
        assert mx.array_equal(array, original[name].astype(getattr(mx, dtype)))
        assert str(array.dtype) == f"mlx.core.{dtype}"


def test_the_type_of_the_config_is_the_default_by_either_name(tmp_path):
    for name in ("dtype", "torch_dtype"):
        config = {k: v for k, v in LLAMA_HF.items() if k != "torch_dtype"} | {name: "float16"}
        source = write_model(tmp_path / name, config)
        convert_model(str(source), tmp_path / f"{name}-out", check=False)
        array = mx.load(str(tmp_path / f"{name}-out" / "model.safetensors"))["model.norm.weight"]
        assert array.dtype == mx.float16


@pytest.mark.parametrize(
    ("recipe", "stored"),
    [
        (Recipe(quantize=True), {"group_size": 64, "bits": 4, "mode": "affine"}),
        (Recipe(quantize=True, q_bits=8, q_group_size=32), {"group_size": 32, "bits": 8, "mode": "affine"}),
        (Recipe(quantize=True, q_mode="mxfp4"), {"group_size": 32, "bits": 4, "mode": "mxfp4"}),
    ],
)
def test_quantised_weights_are_those_that_mlx_makes(tmp_path, recipe, stored):
    source = write_model(tmp_path / "source", WIDE)
    convert_model(str(source), tmp_path / "out", recipe, check=False)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization"] == stored
    original = mx.load(str(source / "model.safetensors"))["lm_head.weight"]
    expected = mx.quantize(original, stored["group_size"], stored["bits"], stored["mode"])
    made = mx.load(str(tmp_path / "out" / "model.safetensors"))
    for name, array in zip(("weight", "scales", "biases"), expected, strict=False):
        assert mx.array_equal(made[f"lm_head.{name}"], array)
    size = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert 0.5 * size < output_bytes(source, recipe.nbytes) - 2**20 < 1.6 * size  # what the disk is asked for
    assert "is quantised already" in refused(convert_model, str(tmp_path / "out"), tmp_path / "again", recipe)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"q_bits": 4}, "need -q"),
        ({"q_group_size": 64}, "need -q"),
        ({"q_mode": "mxfp4"}, "need -q"),
        ({"quantize": True, "q_bits": 7}, "MLX cannot quantise so"),
        ({"quantize": True, "q_group_size": 48}, "MLX cannot quantise so"),
        ({"quantize": True, "q_mode": "mxfp4", "q_bits": 8}, "MLX cannot quantise so"),
        ({"quantize": True, "q_mode": "int4"}, "must be one of"),
        ({"dtype": "int8"}, "must be one of"),
    ],
)
def test_recipes_that_mean_nothing_are_refused_at_once(wrong, said):
    assert said in refused(Recipe, **wrong)


def to_tensors(weights: dict[str, mx.array]) -> dict[str, Tensor]:
    return {
        name: Tensor("bfloat16", np.array(array.astype(mx.bfloat16).view(mx.uint16))) for name, array in weights.items()
    }


def write_bin(folder: Path, shards: int) -> Path:
    """A checkpoint in `.bin` files of bfloat16, in one or more shards."""
    write_model(folder, LLAMA_HF | {"torch_dtype": "bfloat16"})
    tensors = to_tensors(mx.load(str(folder / "model.safetensors")))
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    place = {name: f"pytorch_model-{i % shards + 1:05d}-of-{shards:05d}.bin" for i, name in enumerate(names)}
    if shards == 1:
        place = dict.fromkeys(names, "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": place}))
    for file in set(place.values()):
        write_tensors(folder / file, {name: tensors[name] for name in names if place[name] == file})
    return folder


@pytest.mark.parametrize("shards", [1, 3])
def test_bin_files_are_read_without_torch(tmp_path, source, shards):
    write_bin(tmp_path / "source", shards)
    convert_model(str(tmp_path / "source"), tmp_path / "out", check=False)
    made, original = mx.load(str(tmp_path / "out" / "model.safetensors")), mx.load(str(source / "model.safetensors"))
    assert made.keys() == original.keys()
    for name, array in made.items():
        assert mx.array_equal(array, original[name].astype(mx.bfloat16))
    assert not list((tmp_path / "out").glob("*.bin*"))


def test_shards_of_safetensors_are_all_needed(tmp_path, source):
    parts = shutil.copytree(source, tmp_path / "parts")
    weights = mx.load(str(parts / "model.safetensors"))
    (parts / "model.safetensors").unlink()
    place = {name: f"model-{i % 2 + 1:05d}-of-00002.safetensors" for i, name in enumerate(sorted(weights))}
    for file in set(place.values()):
        mx.save_safetensors(str(parts / file), {n: w for n, w in weights.items() if place[n] == file})
    (parts / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    convert_model(str(parts), tmp_path / "out", check=False)
    assert np.array_equal(logits(tmp_path / "out"), logits(source))
    (parts / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors of 2 files missing" in refused(convert_model, str(parts), tmp_path / "no")
    assert names_in(tmp_path) == ["out", "parts"]


# Bad input ------------------------------------------------------------------------------------------------------------


def hostile(folder: Path) -> None:
    import pickle
    import zipfile

    class Attack:
        def __reduce__(self):
            return os.system, ("touch /tmp/diversed-model-was-here",)

    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("m/data.pkl", pickle.dumps({"model.norm.weight": Attack()}, 2))


def change(name: str, edit):
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(edit((folder / name).read_bytes()))

    return damage


def renamed(folder: Path) -> None:
    weights = mx.load(str(folder / "model.safetensors"))
    weights["model.other.weight"] = weights.pop("model.norm.weight")
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


DAMAGES = {
    "cut off": (change("model.safetensors", lambda b: b[:-5]), "cut off or damaged"),
    "noise": (change("model.safetensors", lambda b: os.urandom(len(b))), "cut off or damaged"),
    "empty": (change("model.safetensors", lambda b: b""), "cut off or damaged"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "holds no weights"),
    "hostile": (hostile, "asks for 'posix.system'"),
    "no config": (lambda d: (d / "config.json").unlink(), "no config.json"),
    "config is no JSON": (change("config.json", lambda b: b"{"), "cannot load"),
    "unknown architecture": (change("config.json", lambda b: b.replace(b'"llama"', b'"lama"')), "lama"),
    "no tokenizer": (lambda d: [(d / n).unlink() for n in ("tokenizer.json", "tokenizer_config.json")], "cannot load"),
    "other names": (renamed, "model.other.weight"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_bad_checkpoint_is_one_line_and_nothing_is_left(tmp_path, source, name):
    damage, said = DAMAGES[name]
    shutil.copytree(source, tmp_path / "in")
    damage(tmp_path / "in")
    before = names_in(tmp_path / "in")
    assert said in refused(convert_model, str(tmp_path / "in"), tmp_path / "deep" / "out", check=False)
    assert names_in(tmp_path) == ["in"]
    assert names_in(tmp_path / "in") == before
    assert not Path("/tmp/diversed-model-was-here").exists()


def test_a_place_that_exists_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "out").mkdir()
    assert "exists already" in refused(convert_model, "no/such-model", tmp_path / "out")
    assert "exists already" in refused(convert_pair, "no/draft", "no/target", tmp_path / "out")


def test_too_small_a_disk_is_found_before_the_conversion(tmp_path, source, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(output.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    monkeypatch.setattr(models, "convert", None)
    assert "its disk has 0.00 GB free" in refused(convert_model, str(source), tmp_path / "out")
    assert "its disk has 0.00 GB free" in refused(convert_pair, str(source), str(source), tmp_path / "out")
    assert names_in(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's mount")
def test_a_disk_that_fills_up_all_the_same_is_one_line_and_nothing_is_left(tmp_path, source, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        monkeypatch.setattr(models, "require_space", lambda path, needed: None)
        for call in (
            lambda: convert_model(str(source), disk / "out", check=False),
            lambda: convert_pair(str(source), str(source), disk / "out", check=False),
        ):
            message = refused(call)
            assert "cannot" in message or "cut off" in message
            assert names_in(disk) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_long_conversion_says_how_far_it_is(tmp_path, source, monkeypatch):
    true_convert = models.convert

    def slow(staged: str, out: str, **named) -> None:
        true_convert(staged, out, **named)
        time.sleep(0.3)

    monkeypatch.setattr(models, "convert", slow)
    monkeypatch.setattr(models, "TELL_EVERY", 0.05)
    said = []
    convert_model(str(source), tmp_path / "out", check=False, progress=said.append)
    assert "using dtype: float32" in said
    assert any(line.endswith("GB written") for line in said)


def test_an_interrupt_leaves_nothing(tmp_path, source, monkeypatch):
    def interrupted(*arguments, **named):
        Path(arguments[1]).mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert_model(str(source), tmp_path / "deep" / "out", check=False)
    assert names_in(tmp_path) == []


# The self-check -------------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize(
    "recipe", [Recipe(), Recipe(dtype="float16"), Recipe(dtype="bfloat16"), Recipe(quantize=True, q_bits=8)]
)
def test_a_conversion_is_compared_with_transformers(tmp_path, recipe):
    source = write_model(tmp_path / "source", WIDE)
    said = []
    convert_model(str(source), tmp_path / "out", recipe, progress=said.append)
    assert said[-1].startswith("as the source in transformers: logits within")
    assert ("quantising moves" in said[-1]) == recipe.quantize


@pytest.mark.torch
def test_a_conversion_that_computes_something_else_is_found_and_removed(tmp_path, source, monkeypatch):
    true_convert = models.convert

    def wrong(staged: str, out: str, **named) -> None:
        true_convert(staged, out, **named)
        config = json.loads((Path(out) / "config.json").read_text())
        (Path(out) / "config.json").write_text(json.dumps(config | {"rope_theta": 100.0}))

    monkeypatch.setattr(models, "convert", wrong)
    assert "does not compute what its source does" in refused(convert_model, str(source), tmp_path / "out")
    assert names_in(tmp_path) == []


# Pairs ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("pair")
    weights = random_weights(LLAMA, 1, 4.0)
    target = write_model(root / "target", LLAMA_HF, weights=weights)
    return write_model(root / "draft", LLAMA_HF, weights=weights, noise=0.15), target


def test_a_pair_is_converted_and_answers_as_before(tmp_path, both):
    draft, target = map(str, both)
    convert_pair(draft, target, tmp_path / "out", check=False)
    assert names_in(tmp_path) == ["out"]
    assert names_in(tmp_path / "out") == ["draft", "target"]
    made = load_pair(draft=str(tmp_path / "out" / "draft"), target=str(tmp_path / "out" / "target"))
    for lm, path in ((made.draft, draft), (made.target, target)):
        original = dict(tree_flatten(LM.load(path).model.parameters()))
        assert all(mx.array_equal(array, original[name]) for name, array in tree_flatten(lm.model.parameters()))
    assert generate(made, "Hi", max_tokens=30) == generate(load_pair(draft=draft, target=target), "Hi", max_tokens=30)


def test_two_models_that_are_no_pair_are_refused_without_their_weights(tmp_path, both):
    target = str(both[1])
    foreign = write_model(tmp_path / "foreign", LLAMA_HF, swap=(70, 71))
    mamba = write_model(tmp_path / "mamba", MAMBA)
    for folder in (foreign, mamba):
        (folder / "model.safetensors").unlink()  # nothing long has begun if this is not missed
    assert "do not share a vocabulary: token 70" in refused(convert_pair, str(foreign), target, tmp_path / "out")
    assert "mamba" in refused(convert_pair, str(mamba), target, tmp_path / "out")
    assert names_in(tmp_path) == ["foreign", "mamba"]


def test_a_target_that_fails_takes_its_draft_with_it(tmp_path, both):
    broken = shutil.copytree(both[1], tmp_path / "broken")
    renamed(broken)
    assert "model.other.weight" in refused(convert_pair, str(both[0]), str(broken), tmp_path / "out", check=False)
    assert names_in(tmp_path) == ["broken"]


# The commands ---------------------------------------------------------------------------------------------------------


def test_the_commands_convert_and_say_what_they_do(tmp_path, both):
    draft, target = both
    outcome = run(
        "convert", "model", "--hf-path", target, "--mlx-path", tmp_path / "m", "--dtype", "float16", "--no-check"
    )
    assert outcome.stdout == ""
    assert outcome.stderr.splitlines()[-1] == f"wrote {tmp_path / 'm'}"
    models_ = ("--draft", draft, "--target", target, "--mlx-path", tmp_path / "p")
    outcome = run("convert", "pair", *models_, "--no-check")
    assert outcome.stdout == ""
    assert "checking that the two are a pair" in outcome.stderr
    failed = run("convert", "pair", *models_, code=1)
    assert failed.stderr == f"error: {tmp_path / 'p'} exists already: name another folder, or remove it\n"
    answered = run(
        "generate", "--draft", tmp_path / "p" / "draft", "--target", tmp_path / "p" / "target", "-p", "hi", "-m", 5
    )
    assert answered.stdout


def test_what_is_pushed_has_a_name_for_each_model(tmp_path, both, monkeypatch):
    pushed = []
    monkeypatch.setattr(models, "upload_to_hub", lambda path, repo: pushed.append((Path(path).name, repo)))
    convert_pair(str(both[0]), str(both[1]), tmp_path / "out", check=False, upload_repo="me/pair")
    assert pushed == [("draft", "me/pair-draft"), ("target", "me/pair-target")]

    def offline(path: str, repo: str) -> None:
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(models, "upload_to_hub", offline)
    message = refused(convert_model, str(both[0]), tmp_path / "one", check=False, upload_repo="me/one")
    assert "is written, but the Hub does not take it as me/one: no network at all" in message


@pytest.mark.parametrize(
    "arguments",
    [
        ("model",),
        ("model", "--hf-path", ""),
        ("model", "--hf-path", "a", "--q-mode", "int4"),
        ("model", "--hf-path", "a", "--dtype", "int8"),
        ("model", "--hf-path", "a", "--q-bits", "x"),
        ("pair", "--draft", "a"),
        ("pair", "--target", "a"),
        ("parity", "--draft", "a", "--target", "b", "--device", "tpu"),
        ("frob",),
    ],
)
def test_bad_usage_is_status_2(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    run("convert", *arguments, code=2)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "command", [("model", "--hf-path", "no/such"), ("pair", "--draft", "no/a", "--target", "no/b")]
)
def test_a_model_that_is_nowhere_is_one_line(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    outcome = run("convert", *command, code=1)
    assert outcome.stderr.splitlines()[-1].startswith("error: no/")
    assert names_in(tmp_path) == []
