"""The script that makes the embedded pair, at toy size: what it learns from, resuming, and what it writes."""

import dataclasses
import random
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import train_tiny_pair as script

from diversed_mlx import load_pair, stream_generate
from diversed_mlx.tasks.arithmetic import problems

TOY = dataclasses.replace(script.RECIPES["target"], layers=1, width=32, steps=16, batch=4)


@pytest.fixture(scope="module")
def tokenizer():
    return script.train_tokenizer()


def test_a_token_holds_one_digit_at_most(tokenizer):
    assert all(sum(c.isdigit() for c in text) <= 1 for text in tokenizer.get_vocab())
    assert len(tokenizer.encode("4096").ids) == 4
    assert len(tokenizer.encode(" 37 + 5 = 42").ids) == 2 + 1 + 1 + 1 + 2


def test_text_comes_back_whole(tokenizer):
    for text in ("Tom has 3 apples.\nFirst, we", "Ünïcode 日本 \t\n  🙂", "<|end| >"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_an_example_teaches_the_answer_and_not_the_choice_of_any_wording(tokenizer):
    problem = next(problems("train"))
    own = dataclasses.replace(TOY, any_wording=0.0)
    ids, learned = script.worked_example(tokenizer, problem, random.Random(0), own)
    prompt = len(tokenizer.encode(f"<|user|>{problem.question}<|end|><|assistant|>").ids)
    assert learned == [False] * prompt + [True] * (len(ids) - prompt)
    assert tokenizer.decode(ids[prompt:]).endswith(f"#### {problem.result}")
    assert ids[-1] == tokenizer.token_to_id("<|end|>")

    any_wording = dataclasses.replace(TOY, any_wording=1.0)
    ids, learned = script.worked_example(tokenizer, problem, random.Random(0), any_wording)
    # Three free choices a step and one at the end, each a token that is read and not learned.
    assert learned[prompt:].count(False) == 3 * len(problem.steps) + 1
    skipped = {tokenizer.decode([i]).strip() for i, yes in zip(ids[prompt:], learned[prompt:], strict=True) if not yes}
    assert not any(text.isdigit() for text in skipped)


def test_a_drill_teaches_results_only(tokenizer):
    ids, learned = script.drill(tokenizer, random.Random(0))
    text = tokenizer.decode(ids)
    results = [part.split()[0] for part in text.split("=")[1:]]
    assert tokenizer.decode([i for i, yes in zip(ids, learned, strict=True) if yes]).split() == results
    for line in text.replace("=", "==").replace("  ", " ").strip().split(" == ")[:1]:
        assert eval(line) == int(results[0])


def test_places_are_those_before_what_is_learned(tokenizer):
    ids, places = next(script.batches(tokenizer, dataclasses.replace(TOY, any_wording=0.0, drills=0.0), 0))
    following = np.array(ids)[:, 1:].reshape(-1)[np.array(places)]
    text = tokenizer.decode(following.tolist(), skip_special_tokens=False)
    answers = text.split("<|end|>")[:-1]
    assert len(answers) == TOY.batch
    assert all(answer.rsplit("\n", 1)[1].startswith("#### ") for answer in answers)


def stopped_after(steps):
    whole = script.batches

    def cut(*args):
        for count, batch in enumerate(whole(*args)):
            if count == steps:
                raise KeyboardInterrupt
            yield batch

    return cut


def test_a_stopped_run_goes_on_to_the_same_weights(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "SAVE_EVERY", 8)
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    script.train("toy", TOY, tokenizer, tmp_path / "whole", tmp_path / "whole-out")
    with monkeypatch.context() as patch:
        patch.setattr(script, "batches", stopped_after(11))
        with pytest.raises(KeyboardInterrupt):
            script.train("toy", TOY, tokenizer, tmp_path / "cut", tmp_path / "cut-out")
    assert not (tmp_path / "cut-out").exists()
    script.train("toy", TOY, tokenizer, tmp_path / "cut", tmp_path / "cut-out")
    whole, cut = (mx.load(str(tmp_path / out / "toy" / "model.safetensors")) for out in ("whole-out", "cut-out"))
    assert whole.keys() == cut.keys()
    assert all(mx.array_equal(whole[name], cut[name]).item() for name in whole)


@pytest.fixture(scope="module")
def checkpoint(tokenizer, tmp_path_factory):
    root = tmp_path_factory.mktemp("toy")
    script.train("toy", TOY, tokenizer, root, root)
    return root / "toy"


def test_the_checkpoint_decodes_with_this_library(checkpoint):
    pair = load_pair(target=str(checkpoint), draft=str(checkpoint))
    assert pair.stop_tokens == {0}
    assert pair.vocab_size == script.VOCAB_SIZE
    assert pair.context_length == 512
    prompt = pair.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert pair.tokenizer.decode(prompt) == "<|user|>Hi<|end|><|assistant|>"
    responses = list(stream_generate(pair, prompt, max_tokens=8))
    assert responses[-1].stats.acceptance_rate == 1


@pytest.mark.torch
def test_transformers_computes_the_same_logits(checkpoint):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pair = load_pair(target=str(checkpoint))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(checkpoint)("Tom has 31 apples. How many")["input_ids"]
    assert ids == pair.tokenizer.encode("Tom has 31 apples. How many")
    with torch.no_grad():
        reference = model(torch.tensor([ids])).logits[0].numpy()
    _, logits = pair.target(mx.array(ids), pair.target.make_cache())
    np.testing.assert_allclose(np.array(logits), reference, atol=1e-4)
