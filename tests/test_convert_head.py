"""Heads between the two layouts: every bit goes and comes back, and what is not a sound head is refused in one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import mlx.core as mx
import numpy as np
import pytest
from test_cli_generate import run
from test_heads import METADATA, assert_same, files_in, make_head

from diversed_mlx import DiversedError, EnsembleHead, load_head
from diversed_mlx.convert import head_files
from diversed_mlx.convert.head_files import convert_head, read_torch_head
from diversed_mlx.convert.torch_file import Tensor, read_tensors, write_tensors

OURS, THEIRS = ["head.json", "head.safetensors"], ["ensemble_config.json", "ensemble_head.bin"]


@pytest.fixture
def official(shared) -> Path:
    return shared / "official" / "ensemble_head.bin"


def refused(call, *arguments, **named) -> str:
    with pytest.raises(DiversedError) as error:
        call(*arguments, **named)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_there_and_back_again_gives_the_same_bytes(tmp_path, dtype):
    make_head(5, 11, dtype).save(tmp_path / "mlx")
    convert_head(str(tmp_path / "mlx"), tmp_path / "torch", "torch")
    convert_head(str(tmp_path / "torch"), tmp_path / "mlx2", "mlx")
    convert_head(str(tmp_path / "mlx2"), tmp_path / "torch2", "torch")
    assert files_in(tmp_path / "mlx2") == OURS
    assert files_in(tmp_path / "torch2") == THEIRS
    for one, other, names in (("mlx", "mlx2", OURS), ("torch", "torch2", THEIRS)):
        for name in names:
            assert (tmp_path / one / name).read_bytes() == (tmp_path / other / name).read_bytes()
    config = json.loads((tmp_path / "torch" / "ensemble_config.json").read_text())
    order = ["draft", "target"]
    assert config == METADATA | {"draft_size": 5, "target_size": 11, "inputs": order, "rows": order}
    assert files_in(tmp_path) == ["mlx", "mlx2", "torch", "torch2"]


def test_the_released_head_is_known_and_comes_back_bit_by_bit(tmp_path, official):
    head = convert_head(str(official), tmp_path / "mlx", "mlx")
    assert (head.draft_size, head.target_size) == (2048, 4096)
    convert_head(str(tmp_path / "mlx"), tmp_path / "torch", "torch")
    before, after = read_tensors(official), read_tensors(tmp_path / "torch" / "ensemble_head.bin")
    assert list(before) == list(after) == ["summary.weight", "summary.bias"]
    for name in before:
        assert before[name].dtype == after[name].dtype == "bfloat16"
        assert before[name].values.shape == after[name].values.shape
        assert before[name].values.tobytes() == after[name].values.tobytes()
    # The bytes of the storages as they lie in the zip, read with nothing of ours.
    raw = official.read_bytes()
    weights = mx.load(str(tmp_path / "mlx" / "head.safetensors"))
    for tensor in weights.values():
        assert np.array(tensor.view(mx.uint16)).tobytes() in raw
    # The known rows differ by at most 0.0022.
    weight = weights["summary.weight"].astype(mx.float32)
    assert 0 < mx.max(mx.abs(weight[0] - weight[1])).item() <= 0.00225


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"draft_size": 3072, "target_size": 3072}, "draft_size of this pair is 3072"),
        ({"draft_size": 4096, "target_size": 2048}, "draft_size of this pair is 4096"),
        ({"target_size": 4097}, "target_size of this pair is 4097"),
        ({"draft_size": 1024, "target_size": 4096}, "draft_size of this pair is 1024"),
    ],
)
def test_the_released_head_is_refused_for_any_other_pair(official, sizes, said):
    message = refused(read_torch_head, official, **sizes)
    assert said in message
    assert "for a draft of width 2048 and a target of width 4096" in message
    assert read_torch_head(official, draft_size=2048, target_size=4096).target_size == 4096


@pytest.mark.torch
def test_torch_loads_what_is_written_and_the_other_way(tmp_path, official):
    import torch

    convert_head(str(official), tmp_path / "mlx", "mlx")
    convert_head(str(tmp_path / "mlx"), tmp_path / "torch", "torch")
    ours = torch.load(tmp_path / "torch" / "ensemble_head.bin", weights_only=True)
    theirs = torch.load(official, weights_only=True, map_location="cpu")
    assert list(ours) == list(theirs)
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype == torch.bfloat16
        assert torch.equal(ours[name].view(torch.int16), theirs[name].view(torch.int16))
    torch.nn.ModuleDict({"summary": torch.nn.Linear(6144, 2, dtype=torch.bfloat16)}).load_state_dict(ours)


@pytest.mark.torch
def test_w_is_the_same_in_both_frameworks(tmp_path, official):
    import torch

    from diversed_mlx.convert import reference

    head = convert_head(str(official), tmp_path / "mlx", "mlx")
    convert_head(str(tmp_path / "mlx"), tmp_path / "torch", "torch")
    hidden = np.random.default_rng(0).standard_normal((1000, 6144), np.float32)
    ours = np.array(head(mx.array(hidden[:, :2048]), mx.array(hidden[:, 2048:])))
    # The formula itself, in float64.
    tensors = {name: (t.values.astype(np.uint32) << 16).view(np.float32) for name, t in read_tensors(official).items()}
    z = hidden.astype(np.float64) @ tensors["summary.weight"].T.astype(np.float64) + tensors["summary.bias"]
    expected = 1 / (1 + np.exp(z[:, 0] - z[:, 1]))
    assert np.std(expected) > 0.005  # or equality would say little
    for folder in ("mlx", "torch"):
        theirs = reference.EnsembleHead.load(tmp_path / folder, 2048, 4096)
        both = torch.from_numpy(hidden)
        w = theirs(both[:, :2048], both[:, 2048:]).numpy()
        assert np.abs(w - ours).max() <= 1e-6
        assert np.abs(w[:, 0] - expected).max() <= 1e-6
    assert "this pair has 2048 and 2048" in refused(reference.EnsembleHead.load, tmp_path / "mlx", 2048, 2048)


def test_no_torch_is_needed(tmp_path, official):
    """A Python that has none converts both ways."""
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from diversed_mlx.cli.main import main\n"
        "sys.argv = ['diversed', 'convert', 'head', *sys.argv[1:]]\n"
        "main()\n"
    )
    for arguments in ((official, tmp_path / "a", "--to", "mlx"), (tmp_path / "a", tmp_path / "b", "--to", "torch")):
        done = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert read_tensors(tmp_path / "b" / "ensemble_head.bin")["summary.weight"].values.shape == (2, 6144)


# Bad input ------------------------------------------------------------------------------------------------------------


def write_research(folder: Path, config: dict | None = None, **changes: Tensor | None) -> None:
    """A sound head for widths 5 and 11 in the research layout, with tensors exchanged, added or left out."""
    rng = np.random.default_rng(1)
    tensors = {
        "summary.weight": Tensor("float32", rng.standard_normal((2, 16), np.float32)),
        "summary.bias": Tensor("float32", np.zeros(2, np.float32)),
    }
    tensors |= {name.replace("summary_", "summary."): tensor for name, tensor in changes.items()}
    folder.mkdir(exist_ok=True)
    write_tensors(folder / "ensemble_head.bin", {name: t for name, t in tensors.items() if t is not None})
    order = ["draft", "target"]
    described = {"draft_size": 5, "target_size": 11, "inputs": order, "rows": order} | (config or {})
    described = {name: value for name, value in described.items() if value is not None}
    (folder / "ensemble_config.json").write_text(json.dumps(described))


def nan() -> Tensor:
    values = np.zeros((2, 16), np.float32)
    values[1, 9] = np.nan
    return Tensor("float32", values)


def bits(value: int) -> Tensor:
    values = np.zeros((2, 16), np.uint16)
    values[0, 3] = value
    return Tensor("bfloat16", values)


def hostile(folder: Path) -> None:
    import pickle
    import zipfile

    class Attack:
        def __reduce__(self):
            return os.system, ("touch /tmp/diversed-head-was-here",)

    write_research(folder)
    with zipfile.ZipFile(folder / "ensemble_head.bin", "w") as archive:
        archive.writestr("head/data.pkl", pickle.dumps({"summary.weight": Attack()}, 2))


def cut(folder: Path) -> None:
    write_research(folder)
    os.truncate(folder / "ensemble_head.bin", 500)


def without(name: str):
    def damage(folder: Path) -> None:
        write_research(folder)
        (folder / name).unlink()

    return damage


def config_is(content: bytes):
    def damage(folder: Path) -> None:
        write_research(folder)
        (folder / "ensemble_config.json").write_bytes(content)

    return damage


DAMAGES = {
    "cut off": (cut, "cut off, damaged"),
    "hostile": (hostile, "asks for 'posix.system'"),
    "no weight": (lambda d: write_research(d, summary_weight=None), "summary.weight missing; it holds summary.bias"),
    "other keys": (
        lambda d: write_research(d, summary_weight=None, summary_bias=None, linear=nan()), "missing; it holds linear",
    ),
    "a key more": (lambda d: write_research(d, other=nan()), "it also holds other"),
    "NaN": (lambda d: write_research(d, summary_weight=nan()), "summary.weight holds NaN"),
    "half NaN": (lambda d: write_research(d, summary_weight=bits(0x7FC0)), "summary.weight holds NaN"),
    "half infinity": (lambda d: write_research(d, summary_weight=bits(0xFF80)), "or infinity"),
    "integers": (lambda d: write_research(d, summary_weight=Tensor("int64", np.ones((2, 16), int))), "is int64"),
    "doubles": (lambda d: write_research(d, summary_bias=Tensor("float64", np.ones(2))), "summary.bias is float64"),
    "transposed": (
        lambda d: write_research(d, summary_weight=Tensor("float32", np.ones((16, 2), np.float32))), "is transposed",
    ),
    "too wide": (
        lambda d: write_research(d, summary_weight=Tensor("float32", np.ones((2, 17), np.float32))), "(2, 17)",
    ),
    "bias of three": (
        lambda d: write_research(d, summary_bias=Tensor("float32", np.ones(3, np.float32))), "(3,)",
    ),
    "rows swapped": (lambda d: write_research(d, {"rows": ["target", "draft"]}), "trust the wrong model"),
    "inputs swapped": (lambda d: write_research(d, {"inputs": ["target", "draft"]}), "trust the wrong model"),
    "no config": (without("ensemble_config.json"), "give --draft-size and --target-size"),
    "no size in the config": (lambda d: write_research(d, {"target_size": None}), "says target_size"),
    "size is a text": (lambda d: write_research(d, {"draft_size": "5"}), "positive integer"),
    "size is true": (lambda d: write_research(d, {"draft_size": True}), "positive integer"),
    "sizes of another head": (lambda d: write_research(d, {"draft_size": 6}), "was trained for another pair"),
    "no head": (without("ensemble_head.bin"), "ensemble_head.bin is missing"),
    "config is no JSON": (config_is(b"{"), "cannot be read"),
    "config is no text": (config_is(b"\xff\xfe"), "cannot be read"),
    "config is a list": (config_is(b"[]"), "a JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_bad_head_is_one_line_and_nothing_is_left(tmp_path, name):
    damage, said = DAMAGES[name]
    damage(tmp_path / "in")
    message = refused(convert_head, str(tmp_path / "in"), tmp_path / "deep" / "out", "mlx")
    assert said in message
    assert files_in(tmp_path) == ["in"]
    assert not Path("/tmp/diversed-head-was-here").exists()


def test_widths_can_be_given_where_no_config_says_them_and_are_checked_where_one_does(tmp_path):
    write_research(tmp_path / "in")
    (tmp_path / "in" / "ensemble_config.json").unlink()
    file = str(tmp_path / "in" / "ensemble_head.bin")
    assert convert_head(file, tmp_path / "a", "mlx", draft_size=5, target_size=11).target_size == 11
    assert "(2, 17)" in refused(convert_head, file, tmp_path / "b", "mlx", draft_size=6, target_size=11)
    message = refused(convert_head, str(tmp_path / "a"), tmp_path / "b", "torch", draft_size=6)
    assert "is for a draft of width 5 and a target of width 11, and this pair has 6 and 11" in message
    assert files_in(tmp_path) == ["a", "in"]


def test_what_has_no_place_in_head_json_is_said(tmp_path):
    write_research(tmp_path / "in", {"task": "gsm8k", "lr": 1e-4})
    notes = []
    head = convert_head(str(tmp_path / "in"), tmp_path / "out", "mlx", note=notes.append)
    assert head.metadata["task"] == "gsm8k"
    assert notes == ["ensemble_config.json also says lr, which head.json has no place for"]


def test_a_place_that_exists_is_refused_and_left_alone(tmp_path):
    write_research(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("out", "file", "link"):
        assert "exists already" in refused(convert_head, str(tmp_path / "in"), tmp_path / name, "mlx")
    assert "not a folder that you may" in refused(convert_head, str(tmp_path / "in"), tmp_path / "file" / "x", "mlx")
    assert files_in(tmp_path / "out") == ["mine"]
    assert files_in(tmp_path) == ["file", "in", "link", "out"]


@pytest.fixture
def small_disk(tmp_path):
    """Make a disk of some kilobytes, writable or not; needs the right to mount."""
    mounted = []

    def make(options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True)
        if done.returncode:
            pytest.skip("needs the right to mount a small tmpfs")
        mounted.append(place)
        return place

    if sys.platform != "linux" or shutil.which("mount") is None:
        pytest.skip("needs Linux's mount")
    yield make
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("to", ["mlx", "torch"])
def test_a_full_disk_is_one_line_and_nothing_is_left(tmp_path, small_disk, to):
    make_head(30000, 30000).save(tmp_path / "mlx")  # 480 kB
    convert_head(str(tmp_path / "mlx"), tmp_path / "torch", "torch")
    disk = small_disk("size=200k")
    source = tmp_path / ("torch" if to == "mlx" else "mlx")
    message = refused(convert_head, str(source), disk / "deep" / "out", to)
    assert "cannot write" in message
    assert files_in(disk) == []


@pytest.mark.parametrize("to", ["mlx", "torch"])
def test_a_disk_that_is_read_only_is_one_line(tmp_path, small_disk, to):
    make_head(5, 11).save(tmp_path / "mlx")
    convert_head(str(tmp_path / "mlx"), tmp_path / "torch", "torch")
    disk = small_disk("ro")
    source = tmp_path / ("torch" if to == "mlx" else "mlx")
    assert "cannot write" in refused(convert_head, str(source), disk / "out", to)
    assert files_in(disk) == []


@pytest.mark.parametrize("source", ["nonesuch", "./nonesuch", "/no/such", "a/b/c", "org/absent"])
def test_a_head_that_is_nowhere_is_one_line(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for to in ("mlx", "torch"):
        assert source in refused(convert_head, source, tmp_path / "out", to)
    assert files_in(tmp_path) == []


def test_heads_are_pulled_from_the_hub_and_pushed_to_it(tmp_path, monkeypatch, pair):
    place, commit = tmp_path / "hub" / "models--org--head", "0123456789abcdef0123456789abcdef01234567"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    (place / "snapshots").mkdir()
    write_research(place / "snapshots" / commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert convert_head("org/head", tmp_path / "out", "mlx").draft_size == 5
    message = refused(head_files.upload, tmp_path / "out", "org/mine")
    assert "is written, but the Hub does not take it as org/mine" in message

    calls = []

    class Hub:
        def create_repo(self, repo: str, exist_ok: bool) -> None:
            calls.append((repo, exist_ok))

        def upload_folder(self, folder_path: str, repo_id: str) -> None:
            calls.append((files_in(Path(folder_path)), repo_id))

    monkeypatch.setattr(head_files, "HfApi", Hub)
    outcome = run(
        "convert", "head", tmp_path / "out", tmp_path / "pushed", "--to", "torch", "--upload-repo", "org/mine"
    )
    assert "pushed to org/mine" in outcome.stderr
    assert calls == [("org/mine", True), (THEIRS, "org/mine")]


# The command ----------------------------------------------------------------------------------------------------------


def test_a_head_that_went_there_and_back_loads_for_its_pair(tmp_path, pair, checkpoints):
    make_head().save(tmp_path / "mlx")
    models = ("--draft", checkpoints["draft"], "--target", checkpoints["target"])
    run("convert", "head", tmp_path / "mlx", tmp_path / "torch", "--to", "torch", *models)
    run("convert", "head", tmp_path / "torch", tmp_path / "back", "--to", "mlx", *models)
    head = load_head(tmp_path / "back", pair)
    assert_same(head, make_head())
    assert head.metadata["pair"]["draft_fingerprint"] == pair.draft.fingerprint
    make_head(5, 11).save(tmp_path / "other")
    failed = run("convert", "head", tmp_path / "other", tmp_path / "no", "--to", "torch", *models, code=1)
    assert failed.stderr.startswith("error: the head")
    assert "this pair has 32 and 32" in failed.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("in",),
        ("in", "out"),
        ("in", "out", "--to", "jax"),
        ("", "out", "--to", "mlx"),
        ("in", "out", "--to", "mlx", "--draft", "a"),
        ("in", "out", "--to", "mlx", "--target", "a"),
        ("in", "out", "--to", "mlx", "--draft", "a", "--target", "b", "--draft-size", "4"),
        ("in", "out", "--to", "mlx", "--draft-size", "0"),
        ("in", "out", "--to", "mlx", "--draft-size", "x"),
    ],
)
def test_bad_usage_is_status_2(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    run("convert", "head", *arguments, code=2)
    assert files_in(tmp_path) == []


def test_a_double_head_of_mlx_is_refused_or_never_made(tmp_path):
    head = EnsembleHead(5, 11)
    head.summary.weight = head.summary.weight.astype(mx.float64, stream=mx.cpu)
    assert "float64 cannot be exchanged" in refused(head_files.write_torch_head, head, tmp_path)
    assert files_in(tmp_path) == []
