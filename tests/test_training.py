"""Sampling from the mixture and the training loop, on tiny real models."""

import dataclasses
import math

import mlx.core as mx
import numpy as np
import pytest
from tiny import END

from diversed_mlx import DiversedError, EnsembleHead, Sampling, load_head
from diversed_mlx.tasks.task import Example
from diversed_mlx.training.machines import Machines
from diversed_mlx.training.progress import Measured
from diversed_mlx.training.recipe import Recipe
from diversed_mlx.training.rollout import sample
from diversed_mlx.training.run import Run, read_metrics
from diversed_mlx.training.trainer import Trainer

TOY = Recipe(
    iters=50, batch_size=4, samples_per_prompt=4, max_tokens=8, prompts=12, val_examples=0, start_weight=0.5,
    learning_rate=0.1,
)  # fmt: skip


class Toy:
    """Short questions; the reward is a function of the text."""

    name, metric, max_tokens = "toy", "score", 8

    def __init__(self, reward):
        self._reward = reward

    def examples(self, split, n, seed=0):
        return [Example(question=f"{split} {i}", answer="") for i in range(n)]

    def reward(self, text, example):
        return self._reward(text)


def head_of(weight, pair):
    head = EnsembleHead(pair.draft.hidden_size, pair.target.hidden_size)
    head.summary.weight = mx.zeros_like(head.summary.weight)
    head.summary.bias = mx.array([0.0, math.log(weight / (1 - weight))])
    return head


def rollouts(pair, head, prompts, *, samples=2, tokens=6, seed=0, **rest):
    uniforms = mx.random.uniform(shape=(len(prompts) * samples, tokens), key=mx.random.key(seed))
    return sample(pair, prompts, head, samples=samples, sampling=Sampling(temp=0.7), max_tokens=tokens,
                  uniforms=uniforms, **rest)  # fmt: skip


@pytest.mark.parametrize("which", ["pair", "gemma_pair", "padded_pair"])
def test_what_is_kept_is_what_one_pass_over_each_answer_gives(which, request):
    """Prompts of several lengths in one batch, against a plain forward pass of each model over the whole sequence."""
    pair = request.getfixturevalue(which)
    prompts = [[72], [72, 101, 108, 108, 111], list(range(60, 85))]
    head = EnsembleHead(pair.draft.hidden_size, pair.target.hidden_size)
    head.summary.weight = 0.3 * mx.random.normal(head.summary.weight.shape, key=mx.random.key(1))
    kept = rollouts(pair, head, prompts)
    sampling = Sampling(temp=0.7)
    for row, tokens in enumerate(kept.tokens.tolist()):
        prompt = prompts[row // 2]
        length = int(kept.mask[row].sum().item())
        whole = mx.array(prompt + tokens[:length])
        hidden, probabilities = [], []
        for lm in (pair.draft, pair.target):
            h, logits = lm(whole, lm.make_cache())
            hidden.append(h[len(prompt) - 1 : -1])
            probabilities.append(sampling.probabilities(pair.shared_logits(logits[len(prompt) - 1 : -1])))
        q, p = probabilities
        places = (np.arange(length), tokens[:length])
        np.testing.assert_allclose(np.array(kept.q[row, :length]), np.array(q)[places], atol=1e-4)
        np.testing.assert_allclose(np.array(kept.p[row, :length]), np.array(p)[places], atol=1e-4)
        distance = 0.5 * np.abs(np.array(p) - np.array(q)).sum(axis=-1)
        np.testing.assert_allclose(np.array(kept.distance[row, :length]), distance, atol=1e-4)
        np.testing.assert_allclose(np.array(kept.draft_hidden[row, :length]), np.array(hidden[0]), atol=1e-3)
        np.testing.assert_allclose(np.array(kept.target_hidden[row, :length]), np.array(hidden[1]), atol=1e-3)
        w = np.array(head(hidden[0], hidden[1]))[:, 0]
        nu = w * np.array(p)[places] + (1 - w) * np.array(q)[places]
        np.testing.assert_allclose(np.array(kept.log_mixture[row, :length]), np.log(nu), atol=1e-3)


def test_tokens_are_drawn_from_the_mixture(pair):
    """First tokens of 4000 answers: chi-square against the exact mixture."""
    prompt, n, w = [72, 101, 108], 4000, 0.4
    kept = rollouts(pair, head_of(w, pair), [prompt], samples=n, tokens=1)
    sampling, rows = Sampling(temp=0.7), []
    for lm in (pair.target, pair.draft):
        _, logits = lm(mx.array(prompt), lm.make_cache())
        rows.append(np.array(sampling.probabilities(pair.shared_logits(logits[-1:])))[0].astype(float))
    nu = w * rows[0] + (1 - w) * rows[1]
    counts = np.bincount(kept.tokens[:, 0].tolist(), minlength=len(nu))
    common = nu * n >= 5
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(nu[common], nu[~common].sum()) * n
    statistic = ((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    freedom = common.sum()
    # Mean `freedom`, variance 2 `freedom`: five deviations are passed less than once in a million draws.
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


def test_the_stop_token_belongs_to_the_episode_and_nothing_behind_it_does(pair):
    kept = rollouts(pair, head_of(0.5, pair), [[65 + i] for i in range(26)], samples=8, tokens=24, seed=3)
    stopped = 0
    for tokens, mask in zip(kept.tokens.tolist(), kept.mask.tolist(), strict=True):
        length = tokens.index(END) + 1 if END in tokens else len(tokens)
        stopped += END in tokens
        assert mask == [1.0] * length + [0.0] * (len(tokens) - length)
    assert stopped > 3
    assert all("<|end|>" not in text for text in kept.texts(pair))


def test_infinite_strictness_samples_from_the_target(pair):
    free = rollouts(pair, head_of(0.01, pair), [[72, 105]], samples=4, strictness=math.inf)
    strict = rollouts(pair, head_of(0.9999999, pair), [[72, 105]], samples=4)
    assert free.tokens.tolist() == strict.tokens.tolist()
    np.testing.assert_allclose(np.array(free.log_mixture), np.log(np.array(free.p)), rtol=1e-4)


def mean_weight(trainer):
    prompts = [trainer.prompt(example) for example in trainer.task.examples("train", TOY.prompts)]
    kept = rollouts(trainer.pair, trainer.learner.head, prompts, tokens=8, seed=9)
    weights = trainer.learner.head(kept.draft_hidden, kept.target_hidden)[..., 0]
    return (mx.sum(kept.mask * weights) / mx.sum(kept.mask)).item()


def test_a_constant_reward_sends_the_weight_to_the_draft(pair):
    trainer = Trainer(pair, Toy(lambda text: 1.0), dataclasses.replace(TOY, reg_scale=0.1), Machines.join())
    assert sum(1 for _ in trainer.steps()) == 50
    assert mean_weight(trainer) < 0.05


def test_a_reward_that_only_the_target_earns_sends_the_weight_to_it(adverse_pair):
    """Right is an answer that the target finds more likely than the draft does, at every token."""
    pair = adverse_pair
    probabilities = {}

    class OnlyTheTarget(Toy):
        def reward(self, text, example):
            return probabilities[text]

    trainer = Trainer(pair, OnlyTheTarget(None), dataclasses.replace(TOY, reg_scale=0.001), Machines.join())
    judge = trainer._judge

    def judged(kept, examples):
        mine = mx.sum(kept.mask * (kept.p > kept.q), axis=1) / mx.sum(kept.mask, axis=1)
        probabilities.update(zip(kept.texts(pair), mine.tolist(), strict=True))
        return judge(kept, examples)

    trainer._judge = judged
    assert sum(1 for _ in trainer.steps()) == 50
    assert mean_weight(trainer) > 0.95


def test_answers_without_a_reward_are_left_out(pair):
    calls = []

    def reward(text):
        calls.append(text)
        return [None, math.nan, 0.0, 1.0][len(calls) % 4]

    trainer = Trainer(pair, Toy(reward), dataclasses.replace(TOY, iters=1), Machines.join())
    report = next(iter(trainer.steps()))
    assert report.unjudged == 8
    assert report.reward == 0.5
    assert all(mx.all(mx.isfinite(a)).item() for a in trainer.tensors().values())


def test_an_update_without_any_reward_is_refused_and_changes_nothing(pair):
    trainer = Trainer(pair, Toy(lambda text: None), TOY, Machines.join())
    before = trainer.tensors()
    with pytest.raises(DiversedError, match="none of the 16 answers could be judged"):
        next(iter(trainer.steps()))
    assert trainer.progress.step == 0
    assert all(mx.array_equal(a, before[name]).item() for name, a in trainer.tensors().items())


def vowels(text):
    return sum(c in "aeiou" for c in text) / 8


FULL = dataclasses.replace(
    TOY, iters=12, val_examples=6, steps_per_eval=4, save_every=5, max_quality_loss=0.05, baseline="ema", reuse=2
)


def test_a_stopped_run_goes_on_to_the_same_head_and_figures(pair, tmp_path):
    whole = Run(tmp_path / "whole", Trainer(pair, Toy(vowels), FULL, Machines.join()), data="none")
    list(whole.reports())
    cut = Run(tmp_path / "cut", Trainer(pair, Toy(vowels), FULL, Machines.join()), data="none")
    for report in cut.reports():
        if report.step == 7:
            break  # the last checkpoint is of update 5; closing the generator saves update 7
    again = Run(tmp_path / "cut", Trainer(pair, Toy(vowels), FULL, Machines.join()), data="none")
    again.resume()
    assert again.trainer.progress.step == 7
    list(again.reports())
    expected, found = whole.trainer.tensors(), again.trainer.tensors()
    assert expected.keys() == found.keys()
    assert all(mx.array_equal(expected[name], found[name]).item() for name in expected)
    times = {"rollout_seconds", "update_seconds"}
    strip = lambda rows: [{k: v for k, v in row.items() if k not in times} for row in rows]  # noqa: E731
    assert strip(read_metrics(tmp_path / "cut")) == strip(read_metrics(tmp_path / "whole"))
    assert (tmp_path / "cut" / "head.safetensors").read_bytes() == (
        tmp_path / "whole" / "head.safetensors"
    ).read_bytes()


def test_the_head_records_where_it_comes_from_and_is_refused_for_others(pair, gemma_pair, tmp_path):
    run = Run(tmp_path, Trainer(pair, Toy(vowels), FULL, Machines.join()), data="none")
    list(run.reports())
    head = load_head(tmp_path, pair)
    assert head.metadata["task"] == "toy"
    assert head.metadata["data"] == {"source": "none", "split": "train"}
    assert head.metadata["recipe"]["learning_rate"] == 0.1
    assert head.metadata["metrics"]["held_out_examples"] == 6
    best = run.trainer.progress.best
    assert head.metadata["metrics"]["step"] == best.step
    with pytest.raises(DiversedError, match="these are other models, though of the same widths"):
        load_head(tmp_path, gemma_pair)
    with pytest.raises(DiversedError, match="holds a run already"):
        run.require_new()


def test_another_recipe_does_not_go_on(pair, tmp_path):
    list(Run(tmp_path, Trainer(pair, Toy(vowels), FULL, Machines.join()), data="none").reports())
    other = dataclasses.replace(FULL, learning_rate=0.2)
    run = Run(tmp_path, Trainer(pair, Toy(vowels), other, Machines.join()), data="none")
    with pytest.raises(DiversedError, match=r"another recipe: \{'learning_rate': 0.1\}"):
        run.resume()


def test_the_kept_head_is_the_one_with_the_most_acceptance_among_those_whose_reward_holds(pair):
    trainer = Trainer(pair, Toy(vowels), FULL, Machines.join())
    trainer.progress.reference = Measured(quality=0.9, acceptance_rate=0.5, mean_target_weight=1.0)
    for step, (quality, acceptance) in enumerate([(0.5, 0.9), (0.7, 0.8), (0.86, 0.6), (0.87, 0.7), (0.8, 0.99)]):
        trainer.progress.step = step
        trainer._keep(Measured(quality=quality, acceptance_rate=acceptance, mean_target_weight=0.5))
        assert trainer.progress.best.step == [0, 1, 2, 3, 3][step]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temp": 0.0}, "temp must be above 0"),
        ({"samples_per_prompt": 1}, "needs samples_per_prompt of 2 or more"),
        ({"learning_rate": math.nan}, "learning_rate must be above 0"),
        ({"start_weight": 1.0}, "start_weight must be between 0 and 1"),
        ({"reg_scale": 0.0, "max_quality_loss": 0.1}, "reg_scale must be above 0"),
        ({"top_p": 2.0}, "top_p"),
    ],
)
def test_a_recipe_out_of_range_is_one_line(change, message):
    with pytest.raises(DiversedError, match=message):
        Recipe(**change)
