"""The pair that ships: small, loadable by both libraries, able to calculate, and found by its aliases."""

import hashlib
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from typer.testing import CliRunner

from diversed_mlx import Sampling, load_pair
from diversed_mlx.cli.main import app
from diversed_mlx.conversation import chat_prompt
from diversed_mlx.evaluation.engine import Settings
from diversed_mlx.evaluation.methods import make_method
from diversed_mlx.evaluation.rows import summarise
from diversed_mlx.evaluation.runner import run
from diversed_mlx.head import EnsembleHead
from diversed_mlx.heads import EMBEDDED_HEAD, find_head, load_head
from diversed_mlx.tasks.arithmetic import Arithmetic

SETTINGS = Settings(sampling=Sampling(), num_draft_tokens=4, max_tokens=Arithmetic().max_tokens)
TINY = Path(__file__).parents[1] / "diversed_mlx" / "tiny"


@pytest.fixture(scope="module")
def tiny():
    return load_pair(target="tiny-target", draft="tiny-draft")


def test_it_is_small_and_holds_no_path_of_a_machine():
    files = [path for path in TINY.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10e6
    assert all(b"/work" not in path.read_bytes() and b"/tmp/" not in path.read_bytes() for path in files)


def test_both_models_read_the_same_tokens():
    digests = {
        hashlib.sha256((TINY / name / "tokenizer.json").read_bytes()).hexdigest() for name in ("draft", "target")
    }
    assert len(digests) == 1


def test_the_target_calculates_and_the_draft_phrases(tiny):
    """Temperature 1, 40 problems: a target right 95 % of the time has fewer than 33 right once in 10,000 runs."""
    task = Arithmetic()
    names = ["none", "draft", "lossless"]
    methods = {name: make_method(name, tiny) for name in names}
    answers = list(run(tiny, task, task.examples("test", 40, 11), methods, SETTINGS, seed=3))
    none, draft, lossless = summarise(answers)
    assert none.quality >= 33 / 40
    assert lossless.quality >= 33 / 40
    assert draft.quality < 30 / 40
    assert 0.4 < lossless.acceptance_rate < 0.75
    assert all(a.reply.text.count("####") == 1 for a in answers if a.method == "none")


def test_its_head_is_found_and_relaxes(tiny):
    head = load_head("arithmetic", tiny)
    assert find_head(tiny, "arithmetic") is not None
    assert head.metadata["task"] == "arithmetic"
    assert head.metadata["pair"]["draft"] == "tiny-draft"
    task = Arithmetic()
    methods = {name: make_method(name, tiny, head) for name in ("lossless", "dynamic")}
    answers = list(run(tiny, task, task.examples("test", 30, 5), methods, SETTINGS, seed=1))
    lossless, dynamic = summarise(answers)
    assert dynamic.acceptance_rate > lossless.acceptance_rate + 0.1
    assert dynamic.quality >= 24 / 30


@pytest.mark.torch
@pytest.mark.parametrize("name", ["draft", "target"])
def test_transformers_reads_it_alike(tiny, name):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    prompt = chat_prompt(tiny, [{"role": "user", "content": "Tom has 31 apples and 12 pears. How many in all?"}])
    tokenizer = AutoTokenizer.from_pretrained(TINY / name)
    messages = [{"role": "user", "content": "Tom has 31 apples and 12 pears. How many in all?"}]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == prompt
    model = AutoModelForCausalLM.from_pretrained(TINY / name, dtype=torch.float32)
    with torch.no_grad():
        reference = model(torch.tensor([prompt])).logits[0].numpy()
    lm = tiny.draft if name == "draft" else tiny.target
    _, logits = lm(mx.array(prompt), lm.make_cache())
    np.testing.assert_allclose(np.array(logits), reference, atol=2e-3)
    assert model.generation_config.eos_token_id == 0


def test_a_head_of_another_task_is_warned_of(tmp_path):
    head = EnsembleHead.load(EMBEDDED_HEAD)
    for task in ("arithmetic", "gsm8k"):
        EnsembleHead(head.draft_size, head.target_size, head.metadata | {"task": task}).save(tmp_path / task)
    arguments = ["demo", "--n-examples", "2", "--methods", "dynamic"]
    told = {
        task: CliRunner().invoke(app, [*arguments, "--head", str(tmp_path / task)]) for task in ("arithmetic", "gsm8k")
    }
    assert [result.exit_code for result in told.values()] == [0, 0]
    assert "warning" not in told["arithmetic"].stderr
    assert "was trained for gsm8k: expect less quality" in told["gsm8k"].stderr
