"""Whatever stands in a head's files, a model's config or a flag: an answer, or one line that says what is wrong."""

import json
import math
import shutil

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cli_flags import EFFECTS
from test_cli_generate import run
from tiny import LLAMA, write_model

from diversed_mlx import DiversedError, EnsembleHead, load_head
from diversed_mlx.lm import LM

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-2, 2), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(-2, 2), max_size=2),
)


@pytest.fixture(scope="module")
def whole_head(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("head")
    EnsembleHead(pair.draft.hidden_size, pair.target.hidden_size).save(folder)
    return folder


def loaded(load, *arguments):
    """What was loaded, or what a user is told instead."""
    try:
        return load(*arguments)
    except DiversedError as error:
        return error


def loads_or_says_why(folder, pair) -> bool:
    """Whether a head gives weights from 0 to 1, or the reason takes one line."""
    head = loaded(load_head, folder, pair)
    if isinstance(head, DiversedError):
        return len(str(head).splitlines()) == 1
    weight = head(mx.ones((1, head.draft_size)), mx.ones((1, head.target_size))).item()
    return math.isfinite(weight) and 0 <= weight <= 1


@FUZZ
@given(where=st.integers(0, 10**6), content=st.binary(max_size=12), cut=st.booleans())
def test_a_damaged_weights_file(whole_head, pair, tmp_path, where, content, cut):
    folder = shutil.copytree(whole_head, tmp_path / "head", dirs_exist_ok=True)
    path = folder / "head.safetensors"
    whole = path.read_bytes()
    start = where % len(whole)
    path.write_bytes(whole[:start] + content + (b"" if cut else whole[start + len(content) :]))
    assert loads_or_says_why(folder, pair)


@FUZZ
@given(changes=st.dictionaries(st.sampled_from(["draft_size", "target_size", "pair", "task", "seed", "x"]), ODD_VALUES))
def test_an_odd_description(whole_head, pair, tmp_path, changes):
    folder = shutil.copytree(whole_head, tmp_path / "head", dirs_exist_ok=True)
    path = folder / "head.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert loads_or_says_why(folder, pair)


@FUZZ
@given(text=st.one_of(st.binary(max_size=40), ODD_VALUES.map(lambda value: json.dumps(value).encode())))
def test_a_description_that_is_something_else(whole_head, pair, tmp_path, text):
    folder = shutil.copytree(whole_head, tmp_path / "head", dirs_exist_ok=True)
    (folder / "head.json").write_bytes(text)
    with pytest.raises(DiversedError):
        load_head(folder, pair)


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("fuzzed") / "model")


@FUZZ
@given(key=st.sampled_from(sorted(LLAMA)), value=ODD_VALUES)
def test_an_odd_model_config(whole_model, tmp_path, key, value):
    folder = shutil.copytree(whole_model, tmp_path / "model", dirs_exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    lm = loaded(LM.load, folder)
    if isinstance(lm, DiversedError):
        assert len(str(lm).splitlines()) == 1
    else:
        assert lm(mx.array([5]), lm.make_cache())[1].shape == (1, lm.logits_size)


FLAGS = st.sampled_from([flag for flag in EFFECTS if flag not in ("--show-tokens", "--trust-remote-code")])
ODD_WORDS = (
    "", " ", "0", "1", "-1", "2", "0.5", "1e9", "-1e400", "nan", "inf", "auto", "none", "static", "{}", "é", "\x1b[31m",
    "/", ".", "../x", "token", "99999999999999999999",
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(ODD_WORDS),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6),
)


@settings(FUZZ, max_examples=40)
@given(flags=st.dictionaries(FLAGS, VALUES, max_size=3))
def test_odd_flags(checkpoints, flags):
    models = {"--draft": str(checkpoints["draft"]), "--target": str(checkpoints["target"]), "--max-tokens": "4"}
    words = [f"{flag}={value}" for flag, value in (models | flags).items()]
    done = run("generate", "-p", "hi", *words, code=None)
    assert done.exit_code in (0, 1, 2), done.output
    if done.exit_code == 1:
        assert done.stderr.splitlines()[-1].startswith("error: ")
