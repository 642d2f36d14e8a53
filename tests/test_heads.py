"""Heads on disk: every bit comes back, nothing half-written stays, and what does not fit is one line."""

import json
import os
from pathlib import Path

import huggingface_hub.constants
import mlx.core as mx
import pytest

import diversed_mlx.head
from diversed_mlx import DiversedError, Dynamic, EnsembleHead, Sampling, load_head, load_pair, stream_generate
from diversed_mlx.heads import find_head, heads_folder, other_task

SIZE = 32  # hidden size of the tiny pair's models
METADATA = {
    "pair": {"draft": "a", "target": "b"},
    "task": "gsm8k",
    "data": {"train": "gsm8k/train[:400]", "n": 400},
    "recipe": {"learning_rate": 5e-4, "betas": [0.9, 0.999]},
    "seed": 7,
    "metrics": {"acceptance_rate": 0.72, "note": "día"},
    "versions": {"mlx": "0.32"},
}


def make_head(draft: int = SIZE, target: int = SIZE, dtype: mx.Dtype = mx.float32, seed: int = 3) -> EnsembleHead:
    head = EnsembleHead(draft, target, METADATA)
    keys = mx.random.split(mx.random.key(seed))
    head.summary.weight = mx.random.normal((2, draft + target), key=keys[0]).astype(dtype)
    head.summary.bias = mx.random.normal((2,), key=keys[1]).astype(dtype)
    return head


def assert_same(one: EnsembleHead, other: EnsembleHead) -> None:
    """Two heads have the same bits."""
    assert (one.draft_size, one.target_size) == (other.draft_size, other.target_size)
    for name in ("weight", "bias"):
        a, b = one.summary[name], other.summary[name]
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        bits = mx.uint32 if a.dtype == mx.float32 else mx.uint16
        assert mx.array_equal(a.view(bits), b.view(bits))


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


BOTH = ["head.json", "head.safetensors"]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("sizes", [(SIZE, SIZE), (5, 11)])
def test_every_bit_and_all_metadata_come_back(tmp_path, dtype, sizes):
    head = make_head(*sizes, dtype)
    head.save(tmp_path / "deep" / "folder")
    assert files_in(tmp_path / "deep" / "folder") == BOTH
    loaded = EnsembleHead.load(tmp_path / "deep" / "folder")
    assert_same(loaded, head)
    assert loaded.metadata == METADATA
    loaded.save(tmp_path / "again")
    for name in BOTH:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "deep" / "folder" / name).read_bytes()


def test_the_files_are_those_of_the_exchange_format(tmp_path):
    head = make_head(5, 11)
    head.save(str(tmp_path))
    tensors = mx.load(str(tmp_path / "head.safetensors"))
    assert {name: tensor.shape for name, tensor in tensors.items()} == {"summary.weight": (2, 16), "summary.bias": (2,)}
    assert json.loads((tmp_path / "head.json").read_text()) == METADATA | {"draft_size": 5, "target_size": 11}


def test_a_new_head_trusts_both_models_alike():
    head = EnsembleHead(5, 11)
    weight = head(mx.random.normal((3, 4, 5)), mx.random.normal((3, 4, 11)))
    assert weight.shape == (3, 4, 1)
    assert mx.array_equal(weight, mx.full((3, 4, 1), 0.5))
    assert not mx.any(head.summary.bias).item()
    assert 0.005 < mx.std(EnsembleHead(500, 500).summary.weight).item() < 0.015


def test_the_draft_comes_first_and_the_second_output_is_the_targets():
    head = EnsembleHead(1, 2)
    head.summary.weight, head.summary.bias = mx.array([[1.0, 10.0, 100.0], [2.0, 13.0, 105.0]]), mx.array([0.25, 0.5])
    draft, target = mx.array([[0.5]]), mx.array([[-0.25, 0.125]])
    # z_0 = .5 - 2.5 + 12.5 + .25 = 10.75 for the draft, z_1 = 1 - 3.25 + 13.125 + .5 = 11.375 for the target.
    assert head.logit(draft, target).item() == pytest.approx(11.375 - 10.75)
    assert head(draft, target).item() == pytest.approx(1 / (1 + 2.718281828459045**-0.625))


# Saving -------------------------------------------------------------------------------------------------------------


def test_a_head_replaces_an_older_one(tmp_path):
    make_head(5, 11, seed=1).save(tmp_path)
    new = make_head(7, 3, seed=2)
    new.save(tmp_path)
    assert_same(EnsembleHead.load(tmp_path), new)
    assert files_in(tmp_path) == BOTH


@pytest.mark.parametrize("error", [OSError("No space left on device"), RuntimeError("[save_safetensors] failed")])
def test_a_save_that_fails_while_writing_leaves_the_older_head_and_nothing_else(tmp_path, monkeypatch, error):
    old = make_head(seed=1)
    old.save(tmp_path)

    def fail(file: str, *args) -> None:
        Path(file).write_bytes(b"half")
        raise error

    monkeypatch.setattr(mx, "save_safetensors", fail)
    with pytest.raises(DiversedError, match="cannot write a head to") as caught:
        make_head(seed=2).save(tmp_path)
    assert "\n" not in str(caught.value)
    assert files_in(tmp_path) == BOTH
    assert_same(EnsembleHead.load(tmp_path), old)


def test_metadata_that_json_cannot_hold_leaves_the_older_head(tmp_path):
    old = make_head(seed=1)
    old.save(tmp_path)
    head = EnsembleHead(SIZE, SIZE, {"metrics": {"rate": mx.array(1.0)}})
    with pytest.raises(TypeError):
        head.save(tmp_path)
    assert files_in(tmp_path) == BOTH
    assert_same(EnsembleHead.load(tmp_path), old)


def test_a_save_that_is_interrupted_leaves_the_older_head(tmp_path, monkeypatch):
    old = make_head(seed=1)
    old.save(tmp_path)

    def interrupted(*args) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_head(seed=2).save(tmp_path)
    assert files_in(tmp_path) == BOTH
    assert_same(EnsembleHead.load(tmp_path), old)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DiversedError, match="cannot write a head to") as error:
            make_head().save(place)
        assert "\n" not in str(error.value)
    assert (tmp_path / "file").read_text() == ""


# Damage -------------------------------------------------------------------------------------------------------------


def write_tensors(folder: Path, **changes: mx.array | None) -> None:
    """Write a head's tensors with some replaced, added or, for None, left out."""
    head = make_head()
    tensors = {"summary.weight": head.summary.weight, "summary.bias": head.summary.bias}
    tensors |= {name.replace("summary_", "summary."): tensor for name, tensor in changes.items()}
    mx.save_safetensors(str(folder / "head.safetensors"), {k: v for k, v in tensors.items() if v is not None})


def write_metadata(folder: Path, **changes) -> None:
    content = json.loads((folder / "head.json").read_text()) | changes
    (folder / "head.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def poisoned(value: float, dtype: mx.Dtype = mx.float32) -> mx.array:
    weight = make_head(dtype=dtype).summary.weight
    weight[1, 40] = value
    return weight


DAMAGES = {
    "weight is NaN": (lambda d: write_tensors(d, summary_weight=poisoned(float("nan"))), "summary.weight holds NaN"),
    "weight is infinite": (lambda d: write_tensors(d, summary_weight=poisoned(float("-inf"))), "infinity"),
    "half weight is NaN": (lambda d: write_tensors(d, summary_weight=poisoned(float("nan"), mx.bfloat16)), "NaN"),
    "bias is NaN": (lambda d: write_tensors(d, summary_bias=mx.array([0.0, float("nan")])), "summary.bias holds NaN"),
    "weight is too wide": (lambda d: write_tensors(d, summary_weight=mx.zeros((2, 65))), "(2, 65)"),
    "weight has three rows": (lambda d: write_tensors(d, summary_weight=mx.zeros((3, 64))), "(3, 64)"),
    "weight is transposed": (lambda d: write_tensors(d, summary_weight=mx.zeros((64, 2))), "(64, 2)"),
    "bias has one entry": (lambda d: write_tensors(d, summary_bias=mx.zeros(1)), "(1,)"),
    "no bias": (lambda d: write_tensors(d, summary_bias=None), "head.json describes"),
    "no weight": (lambda d: write_tensors(d, summary_weight=None), "head.json describes"),
    "one tensor more": (lambda d: write_tensors(d, other=mx.zeros(1)), "other"),
    "weight of integers": (lambda d: write_tensors(d, summary_weight=mx.zeros((2, 64), mx.int32)), "int32"),
    "bias of truth values": (lambda d: write_tensors(d, summary_bias=mx.zeros(2, mx.bool_)), "bool"),
    "weights are noise": (lambda d: (d / "head.safetensors").write_bytes(os.urandom(600)), "cannot be read"),
    "weights are empty": (lambda d: (d / "head.safetensors").write_bytes(b""), "cannot be read"),
    "weights are cut off": (
        lambda d: (d / "head.safetensors").write_bytes((d / "head.safetensors").read_bytes()[:-9]),
        "cannot be read",
    ),
    "weights are missing": (lambda d: (d / "head.safetensors").unlink(), "head.safetensors is missing"),
    "description is missing": (lambda d: (d / "head.json").unlink(), "head.json is missing"),
    "description is not JSON": (lambda d: (d / "head.json").write_text("{"), "not a head's description"),
    "description is a list": (lambda d: (d / "head.json").write_text("[1]"), "not a head's description"),
    "description is not text": (lambda d: (d / "head.json").write_bytes(b"\xff\xfe\xff"), "not a head's description"),
    "no size": (lambda d: write_metadata(d, draft_size=None), "not a head's description"),
    "sizes are swapped about": (lambda d: write_metadata(d, draft_size=20), "head.json describes"),
    "size is zero": (lambda d: write_metadata(d, draft_size=0, target_size=64), "positive integers"),
    "size is a text": (lambda d: write_metadata(d, draft_size="32"), "positive integers"),
    "size is true": (lambda d: write_metadata(d, draft_size=True, target_size=63), "positive integers"),
    "size is a fraction": (lambda d: write_metadata(d, draft_size=32.0), "positive integers"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_head_is_one_line(pair, tmp_path, name):
    damage, said = DAMAGES[name]
    make_head().save(tmp_path)
    damage(tmp_path)
    for load in (EnsembleHead.load, lambda folder: load_head(folder, pair)):
        with pytest.raises(DiversedError) as error:
            load(tmp_path)
        message = str(error.value)
        assert said in message
        assert str(tmp_path) in message
        assert "\n" not in message


def test_a_description_without_the_optional_fields_loads(tmp_path):
    make_head().save(tmp_path)
    (tmp_path / "head.json").write_text(json.dumps({"draft_size": SIZE, "target_size": SIZE}))
    head = EnsembleHead.load(tmp_path)
    assert_same(head, make_head())
    assert not any(head.metadata.values())


# Finding the head of a pair -----------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """The folder of trained heads of a user who has none yet, in an empty working directory."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("DIVERSED_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "home" / "heads"


def test_heads_live_in_diversed_home(home, monkeypatch):
    assert heads_folder() == home
    monkeypatch.setenv("DIVERSED_HOME", "")  # as good as unset
    assert heads_folder() == Path.home() / ".cache" / "diversed" / "heads"
    monkeypatch.delenv("DIVERSED_HOME")
    assert heads_folder() == Path.home() / ".cache" / "diversed" / "heads"


def test_a_head_is_found_by_the_name_of_its_task(home, pair):
    with pytest.raises(DiversedError, match="no head gsm8k: neither a folder, nor a head in") as error:
        load_head("gsm8k", pair)
    assert "\n" not in str(error.value)
    head = make_head()
    head.save(home / "gsm8k")
    assert_same(load_head("gsm8k", pair), head)


def test_a_folder_comes_before_a_task_of_that_name(home, pair):
    make_head(seed=1).save(home / "gsm8k")
    near = make_head(seed=2)
    near.save("gsm8k")
    assert_same(load_head("gsm8k", pair), near)
    assert_same(load_head(Path("gsm8k"), pair), near)


def test_a_loaded_head_verifies(home, pair):
    make_head().save(home / "gsm8k")
    verifier = Dynamic(load_head("gsm8k", pair))
    responses = list(stream_generate(pair, "Hello", verifier=verifier, sampling=Sampling(temp=1), max_tokens=20))
    weights = [r.target_weight for r in responses if r.origin in ("accepted", "corrected")]
    assert len({round(w, 4) for w in weights}) > 3  # one for each position
    assert all(0 <= w <= 1 for w in weights)


def test_a_head_of_another_pair_is_refused_with_all_four_sizes(home, pair):
    for sizes in ((16, 32), (32, 16), (16, 48), (48, 16)):
        make_head(*sizes).save(home / "task")
        with pytest.raises(DiversedError) as error:
            load_head("task", pair)
        message = str(error.value)
        assert f"the head task is for a draft of width {sizes[0]} and a target of width {sizes[1]}" in message
        assert "this pair has 32 and 32" in message
        assert "\n" not in message


def test_a_head_needs_a_draft(checkpoints, tmp_path):
    make_head().save(tmp_path)
    alone = load_pair(target=str(checkpoints["target"]))
    with pytest.raises(DiversedError, match="a head needs a draft"):
        load_head(tmp_path, alone)
    assert find_head(alone) is None


@pytest.mark.parametrize("name", ["nonesuch", "./nonesuch", "/no/such/folder", "a/b/c", "org/absent"])
def test_a_head_that_is_nowhere_is_one_line(home, pair, name):
    with pytest.raises(DiversedError) as error:
        load_head(name, pair)
    message = str(error.value)
    assert name in message
    assert "\n" not in message


def test_a_file_is_no_head(pair, tmp_path):
    make_head().save(tmp_path)
    with pytest.raises(DiversedError, match="is a file; give the folder that holds") as error:
        load_head(tmp_path / "head.safetensors", pair)
    assert "\n" not in str(error.value)


def test_a_head_in_the_hub_cache_loads_without_a_network(home, pair, tmp_path):
    place, commit = tmp_path / "hub" / "models--org--head", "0123456789abcdef0123456789abcdef01234567"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    head = make_head()
    head.save(place / "snapshots" / commit)
    assert_same(load_head("org/head", pair), head)


def test_the_newest_head_that_was_trained_for_a_pair_is_found(home, pair):
    assert find_head(pair) is None
    wanted = {"draft": pair.draft.name, "target": pair.target.name}
    described = {
        "old": wanted,
        "new": wanted,
        "swapped": {"draft": pair.target.name, "target": pair.draft.name},
        "foreign": {"draft": "org/a", "target": "org/b"},
        "silent": None,
    }
    for age, (name, of) in enumerate(described.items()):
        EnsembleHead(SIZE, SIZE, {"pair": of}).save(home / name)
        os.utime(home / name / "head.json", (1000 + age, 1000 + age))
    (home / "damaged").mkdir()
    (home / "damaged" / "head.json").write_text("{")
    (home / "list").mkdir()
    (home / "list" / "head.json").write_text("[]")
    assert find_head(pair) == home / "new"
    os.utime(home / "old" / "head.json", (9000, 9000))
    assert find_head(pair) == home / "old"
    assert_same(load_head(find_head(pair), pair), EnsembleHead(SIZE, SIZE))


def test_writing_goes_through_a_rename(tmp_path, monkeypatch):
    moved = []

    def replace(source: Path, goal: Path) -> None:
        assert Path(source).parent == Path(goal).parent, "a rename is atomic only within a folder's file system"
        moved.append(Path(goal).name)
        Path(source).rename(goal)

    monkeypatch.setattr(diversed_mlx.head.os, "replace", replace)
    make_head().save(tmp_path)
    assert sorted(moved) == BOTH
    assert files_in(tmp_path) == BOTH


@pytest.mark.parametrize(
    ("recorded", "other"),
    [({"task": "gsm8k"}, "gsm8k"), ({"task": "arithmetic"}, None), ({}, None), ({"task": None}, None)],
)
def test_a_head_of_another_task_is_named(recorded, other):
    assert other_task(EnsembleHead(SIZE, SIZE, recorded), "arithmetic") == other
