"""The loop: sample answers, judge them, move the head; measure it on held-out questions and keep the best.

A step depends on the run's seed and its own number alone, so a run that was stopped goes on to the same result.
This file does not print: it yields what happened.
"""

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from ..conversation import chat_prompt
from ..errors import DiversedError
from ..head import EnsembleHead
from ..lm import LM
from ..pair import Pair
from ..tasks.task import Example, Task, conversation_of
from .learner import Learner, Scale
from .machines import Machines
from .objective import adapted_reg_scale, leave_one_out, rejection
from .progress import Best, Measured, Progress
from .recipe import Recipe
from .rollout import Rollouts, sample

SETTLING = 0.2  # share of the updates in which lambda stays as it is
PROBES, PROBE = 4, 512  # worked examples, and tokens of each, by which the scale of the hidden states is told
EMA = 0.9  # of what the running means of the reward keep at an update
TOLERANCE = 0.015  # share of the target's own reward that the best head may lose where `max_quality_loss` is not given


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one update did.

    Args:
        step: updates so far, from 1.
        reward: mean over the answers of all machines.
        acceptance_rate: mean of 1 - w TV(q, p) over their tokens.
        mean_target_weight: mean w over them.
        reg_scale: lambda of this update.
        grad_norm: before clipping.
        tokens: sampled, on all machines.
        unjudged: answers without a reward, which were left out.
        rollout_seconds: spent on sampling and judging.
        update_seconds: spent on the gradient and the step.
        kept_bytes: of the rollouts, on one machine.
        measured: the head on the held-out questions, where it was measured after this update.
    """

    step: int
    reward: float
    acceptance_rate: float
    mean_target_weight: float
    reg_scale: float
    grad_norm: float
    tokens: int
    unjudged: int
    rollout_seconds: float
    update_seconds: float
    kept_bytes: int
    measured: Measured | None = None


class Trainer:
    """Trains one head.

    Args:
        pair: the models; both stay as they are.
        task: gives questions and judges answers.
        recipe: every setting.
        machines: who takes part.

    Raises:
        DiversedError: a pair without a draft, or a task with too few examples.
    """

    def __init__(self, pair: Pair, task: Task, recipe: Recipe, machines: Machines):
        if pair.draft is None:
            raise DiversedError("a head needs a draft: load the pair with one")
        self.pair, self.task, self.recipe, self.machines = pair, task, recipe, machines
        self.max_tokens = recipe.max_tokens or task.max_tokens
        self.progress = Progress(reg_scale=recipe.reg_scale)
        shots = task.examples("train", recipe.few_shot + recipe.prompts, recipe.seed)
        self._shots, self._train = shots[: recipe.few_shot], shots[recipe.few_shot :]
        self._held_out = task.examples("test", recipe.val_examples, recipe.seed) if recipe.val_examples else []
        scale = self._scale(pair.draft)
        self.learning_rate = recipe.learning_rate or scale.learning_rate
        sizes = pair.draft.hidden_size, pair.target.hidden_size
        self.learner = Learner(*sizes, recipe, self.learning_rate, scale, machines)

    def _scale(self, draft: LM) -> Scale:
        """By the first training examples, which are the same on every machine and when a run is resumed."""
        hidden = []
        for example in self._train[:PROBES]:
            answer = self.pair.tokenizer.encode(example.answer, add_special_tokens=False)
            tokens = mx.array([*self.prompt(example), *answer][-PROBE:])
            hidden.append(mx.concatenate([lm(tokens, lm.make_cache())[0] for lm in (draft, self.pair.target)], axis=-1))
        return Scale.of(mx.concatenate(hidden))

    def steps(self) -> Iterator[Report]:
        """Train until the last update.

        Yields:
            A report an update; the state is then whole and may be saved.

        Raises:
            DiversedError: no answer of an update could be judged, or the loss is no longer a number.
        """
        if self.progress.reference is None and self._held_out:
            self.progress.reference = self._measure(strictness=math.inf)
            self._keep(self._measure())
        while self.progress.step < self.recipe.iters:
            before = self.learner.tensors(), dict(vars(self.progress))
            try:
                report = self._step()
            except BaseException:
                # An update that was interrupted halfway is undone, so that what is saved next is a whole one.
                self.learner.restore(before[0])
                vars(self.progress).update(before[1])
                raise
            yield report

    def _step(self) -> Report:
        progress, recipe = self.progress, self.recipe
        began = time.perf_counter()
        rows, total = recipe.batch_size, recipe.batch_size * self.machines.size
        mine = slice(self.machines.rank * rows, (self.machines.rank + 1) * rows)
        examples = [self._train[i] for i in self._order(progress.step, total)[mine]]
        key = mx.random.split(mx.random.key(recipe.seed), recipe.iters)[progress.step]
        uniforms = mx.random.uniform(shape=(total, recipe.samples_per_prompt, self.max_tokens), key=key)[mine]
        rollouts = self._sample(examples, recipe.samples_per_prompt, uniforms)
        rewards = self._judge(rollouts, [e for e in examples for _ in range(recipe.samples_per_prompt)])
        judged = ~mx.isnan(rewards)
        logit = self.learner.logit(rollouts)
        kept, reward, tokens, rejected, weights = self._totals(
            mx.sum(judged), mx.sum(mx.where(judged, rewards, 0.0)), mx.sum(rollouts.mask),
            mx.sum(rollouts.mask * rejection(logit, rollouts.distance)), mx.sum(rollouts.mask * mx.sigmoid(logit)),
        )  # fmt: skip
        if not kept:
            raise DiversedError(f"none of the {total * recipe.samples_per_prompt} answers could be judged")
        reward /= kept
        sampled = time.perf_counter()
        reg_scale = progress.reg_scale
        grad_norm = self.learner.update(rollouts, self._advantage(rewards), judged, kept, reg_scale)
        updated = time.perf_counter()

        running = progress.running_reward
        progress.running_reward = reward if running is None else EMA * running + (1 - EMA) * reward
        settled = progress.step >= SETTLING * recipe.iters  # until then the reward tells of the start, not of lambda
        if recipe.max_quality_loss is not None and progress.reference is not None and settled:
            own = progress.reference.quality
            kept_share = progress.running_reward / own if own > 0 else 1.0
            progress.reg_scale = adapted_reg_scale(reg_scale, kept_share, 1 - recipe.max_quality_loss, recipe.reg_rate)
        progress.step += 1
        measured = None
        if self._held_out and (progress.step % recipe.steps_per_eval == 0 or progress.step == recipe.iters):
            measured = self._measure()
            self._keep(measured)
        return Report(
            step=progress.step,
            reward=reward,
            acceptance_rate=1 - rejected / tokens,
            mean_target_weight=weights / tokens,
            reg_scale=reg_scale,
            grad_norm=grad_norm,
            tokens=int(tokens),
            unjudged=int(total * recipe.samples_per_prompt - kept),
            rollout_seconds=sampled - began,
            update_seconds=updated - sampled,
            kept_bytes=rollouts.nbytes,
            measured=measured,
        )

    def _order(self, step: int, total: int) -> list[int]:
        """Which training examples an update asks, on all machines together."""
        order: list[int] = []
        start = step * total
        epoch, first = divmod(start, len(self._train))
        while len(order) < first + total:
            order += random.Random(f"{self.recipe.seed} {epoch}").sample(range(len(self._train)), len(self._train))
            epoch += 1
        return order[first : first + total]

    def _sample(
        self, examples: Sequence[Example], samples: int, uniforms: mx.array, strictness: float = 0.0
    ) -> Rollouts:
        return sample(
            self.pair,
            [self.prompt(example) for example in examples],
            self.learner.head,
            samples=samples,
            sampling=self.recipe.sampling,
            max_tokens=self.max_tokens,
            uniforms=uniforms.reshape(-1, self.max_tokens),
            strictness=strictness,
        )

    def prompt(self, example: Example) -> list[int]:
        """What the models read before they answer: the worked examples, then the question."""
        prompt = chat_prompt(self.pair, conversation_of(example, self._shots))
        length = self.pair.context_length
        if length is not None and len(prompt) + self.max_tokens > length:
            raise DiversedError(
                f"a prompt of {len(prompt)} tokens and an answer of {self.max_tokens} exceed the models' context of "
                f"{length}: lower max_tokens or few_shot"
            )
        return prompt

    def _judge(self, rollouts: Rollouts, examples: Sequence[Example]) -> mx.array:
        """Rewards (N,), NaN where there is none."""
        rewards = [self.task.reward(text, e) for text, e in zip(rollouts.texts(self.pair), examples, strict=True)]
        return mx.array([math.nan if r is None or not math.isfinite(r) else r for r in rewards], mx.float32)

    def _advantage(self, rewards: mx.array) -> mx.array:
        match self.recipe.baseline:
            case "loo":
                return leave_one_out(rewards.reshape(-1, self.recipe.samples_per_prompt)).reshape(-1)
            case "ema":
                running = self.progress.running_reward
                baseline = 0.0 if running is None else running
            case _:
                baseline = 0.0
        return mx.where(mx.isnan(rewards), 0.0, rewards - baseline)

    def _measure(self, strictness: float = 0.0) -> Measured:
        """Ask the held-out questions, one answer each, the same draws each time."""
        step = self.recipe.batch_size * self.recipe.samples_per_prompt
        sums = [0.0] * 4
        rank, size = self.machines.rank, self.machines.size
        uniforms = mx.random.uniform(
            shape=(len(self._held_out), 1, self.max_tokens), key=mx.random.key(self.recipe.seed + 2**32)
        )
        mine = list(range(rank, len(self._held_out), size))
        for start in range(0, len(mine), step):
            rows = mine[start : start + step]
            examples = [self._held_out[i] for i in rows]
            rollouts = self._sample(examples, 1, uniforms[mx.array(rows)], strictness)
            rewards = self._judge(rollouts, examples)
            logit = self.learner.logit(rollouts) + strictness
            parts = (
                mx.sum(mx.where(mx.isnan(rewards), 0.0, rewards)), mx.sum(rollouts.mask),
                mx.sum(rollouts.mask * rejection(logit, rollouts.distance)), mx.sum(rollouts.mask * mx.sigmoid(logit)),
            )  # fmt: skip
            sums = [s + cast(float, part.item()) for s, part in zip(sums, parts, strict=True)]
        reward, tokens, rejected, weights = self._totals(*map(mx.array, sums))
        return Measured(
            quality=reward / len(self._held_out),
            acceptance_rate=1 - rejected / tokens,
            mean_target_weight=weights / tokens,
        )

    def _keep(self, measured: Measured) -> None:
        """Keep the head if it is the best: of those whose reward holds, the one whose drafts stand most often.

        The reward holds if it loses at most `max_quality_loss` of the target's own. Until one holds, the head with the
        highest reward is kept.
        """
        self.progress.history = [*self.progress.history, measured]
        best = self.progress.best
        if best is None or self._rank(measured) > self._rank(best.measured):
            weights = self._weights()
            self.progress.best = Best(step=self.progress.step, measured=measured, weights=weights)

    def _rank(self, measured: Measured) -> tuple[bool, float]:
        reference, loss = self.progress.reference, self.recipe.max_quality_loss
        assert reference is not None
        holds = measured.quality >= reference.quality * (1 - (TOLERANCE if loss is None else loss))
        return holds, measured.acceptance_rate if holds else measured.quality

    def _totals(self, *values: mx.array) -> list[float]:
        sums = self.machines.total([value.astype(mx.float32).reshape(1) for value in values])
        return cast(list[float], mx.concatenate(sums).tolist())

    def best_head(self) -> EnsembleHead:
        """The head to use: the best measured one, or the last where nothing is measured."""
        trained, best = self.learner.head, self.progress.best
        head = EnsembleHead(trained.draft_size, trained.target_size)
        weights = best.weights if best is not None else self._weights()
        head.update(tree_unflatten(list(weights.items())))
        return head

    def tensors(self) -> dict[str, mx.array]:
        """Every tensor to go on from: head, optimizer and best head."""
        best = self.progress.best
        kept = {f"best.{name}": array for name, array in best.weights.items()} if best is not None else {}
        return self.learner.tensors() | kept

    def _weights(self) -> dict[str, mx.array]:
        """A copy of the head's weights as they are now."""
        flat = cast(list[tuple[str, mx.array]], tree_flatten(self.learner.head.parameters()))
        return {name: mx.array(array) for name, array in flat}

    def facts(self) -> dict:
        """Every number to go on from, as JSON writes them."""
        return self.progress.to_json() | {"machines": self.machines.size}

    def go_on(self, tensors: dict[str, mx.array], facts: dict) -> None:
        """Continue from what `tensors` and `facts` gave.

        Raises:
            DiversedError: a run of another number of machines.
        """
        if facts["machines"] != self.machines.size:
            raise DiversedError(
                f"this run was on {facts['machines']} machines and there are {self.machines.size}: "
                f"go on with as many as before"
            )
        self.learner.restore({name: array for name, array in tensors.items() if not name.startswith("best.")})
        weights = {name.removeprefix("best."): a for name, a in tensors.items() if name.startswith("best.")}
        self.progress = Progress.from_json(facts, weights)
