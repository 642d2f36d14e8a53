"""Runs methods on the same examples, in turn, and sums their answers up with intervals.

Methods take turns on each example, so that a machine that warms up or slows down treats all alike. It does not print.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import mlx.core as mx
import numpy as np

from ..answer import Options, Response, answer
from ..conversation import chat_prompt
from ..pair import Pair
from ..sampling import Sampling
from ..stats import Stats
from ..tasks.task import Example, Task
from .methods import Method

RESAMPLES = 2000  # of the bootstrap
Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One method's answer to one example.

    Args:
        method: its name.
        example: the question.
        responses: every token of the answer.
        quality: the task's reward.
        seconds: wall time of the whole answer, the prompt included.
        peak_memory_gb: most memory that MLX held meanwhile, in 10^9 bytes.
    """

    method: str
    example: Example
    responses: list[Response]
    quality: float
    seconds: float
    peak_memory_gb: float

    @property
    def text(self) -> str:
        """The text of the answer."""
        return "".join(response.text for response in self.responses)

    @property
    def stats(self) -> Stats:
        """The figures of the answer."""
        return self.responses[-1].stats


def run(
    pair: Pair,
    task: Task,
    examples: Sequence[Example],
    methods: Mapping[str, Method],
    *,
    sampling: Sampling,
    num_draft_tokens: int,
    seed: int,
) -> Iterator[Answer]:
    """Answer every example with every method.

    Args:
        pair: its chat template makes the prompts.
        task: judges the answers.
        examples: what is asked.
        methods: by name; the order in which they take turns changes from example to example.
        sampling: how tokens are chosen.
        num_draft_tokens: K.
        seed: of the first example; the next ones count up.

    Yields:
        The answers, example by example.
    """
    names = list(methods)
    for number, example in enumerate(examples):
        prompt = chat_prompt(pair, [{"role": "user", "content": example.question}])
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            method = methods[name]
            options = Options(
                verifier=method.verifier,
                sampling=sampling,
                num_draft_tokens=num_draft_tokens,
                max_tokens=task.max_tokens,
                seed=seed + number,
            )
            mx.reset_peak_memory()
            began = time.perf_counter()
            responses = list(answer(method.pair, method.pair.make_context(), prompt, options))
            seconds = time.perf_counter() - began
            text = "".join(response.text for response in responses)
            yield Answer(
                method=name,
                example=example,
                responses=responses,
                quality=task.reward(text, example) or 0.0,
                seconds=seconds,
                peak_memory_gb=mx.get_peak_memory() / 1e9,
            )


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method's figures over all examples; an interval holds 95 %, by bootstrap over examples.

    Args:
        method: its name.
        quality: mean reward, between 0 and 1.
        quality_ci: its interval.
        acceptance_rate: accepted / proposed draft tokens; None without a draft.
        acceptance_ci: its interval.
        tokens_per_round: generated tokens / target passes.
        generation_tps: generated tokens / seconds of whole answers.
        speedup: generation_tps over that of the target alone; None where that was not run.
        speedup_ci: its interval, examples paired.
        mean_target_weight: over verified drafts; None where the rule has no weight.
        peak_memory_gb: most of any answer.
    """

    method: str
    quality: float
    quality_ci: Interval
    acceptance_rate: float | None
    acceptance_ci: Interval | None
    tokens_per_round: float
    generation_tps: float
    speedup: float | None
    speedup_ci: Interval | None
    mean_target_weight: float | None
    peak_memory_gb: float

    def to_json(self) -> dict:
        """Plain data, as `demo --json` writes it."""
        return asdict(self)


def summarise(answers: Sequence[Answer]) -> list[Row]:
    """Sum answers up, one row a method.

    Args:
        answers: of the same examples in the same order for each method.

    Returns:
        Rows in the order of the methods' names in the first example's answers, "none" first.
    """
    methods = sorted({a.method: None for a in answers}, key=lambda method: method != "none")
    by_method = {method: [a for a in answers if a.method == method] for method in methods}
    return [_row(by_method[method], by_method.get("none")) for method in methods]


def _row(answers: list[Answer], alone: list[Answer] | None) -> Row:
    quality = np.array([a.quality for a in answers])
    accepted = np.array([a.stats.accepted for a in answers])
    proposed = np.array([a.stats.proposed for a in answers])
    tokens = np.array([a.stats.generated_tokens for a in answers])
    seconds = np.array([a.seconds for a in answers])
    rounds = sum(a.stats.rounds for a in answers)
    weights = [r.target_weight for a in answers for r in a.responses if r.origin in ("accepted", "corrected")]
    known = [weight for weight in weights if weight is not None]
    drafted, speedup, speedup_ci = proposed.sum() > 0, None, None
    if alone is not None:
        alone_tokens = np.array([a.stats.generated_tokens for a in alone])
        alone_seconds = np.array([a.seconds for a in alone])
        ratio = [tokens, alone_seconds], [seconds, alone_tokens]
        speedup, speedup_ci = _ratio(*ratio), bootstrap(*ratio)
    return Row(
        method=answers[0].method,
        quality=float(quality.mean()),
        quality_ci=bootstrap([quality], [np.ones(len(quality))]),
        acceptance_rate=float(accepted.sum() / proposed.sum()) if drafted else None,
        acceptance_ci=bootstrap([accepted], [proposed]) if drafted else None,
        tokens_per_round=float(tokens.sum() / rounds),
        generation_tps=float(tokens.sum() / seconds.sum()),
        speedup=speedup,
        speedup_ci=speedup_ci,
        mean_target_weight=float(np.mean(known)) if known else None,
        peak_memory_gb=max(a.peak_memory_gb for a in answers),
    )


def _ratio(above: Sequence[np.ndarray], below: Sequence[np.ndarray]) -> float:
    return float(np.prod([a.sum() for a in above]) / np.prod([b.sum() for b in below]))


def bootstrap(above: Sequence[np.ndarray], below: Sequence[np.ndarray]) -> Interval:
    """95 % percentile interval of a ratio of products of sums, over examples drawn again with replacement.

    Args:
        above: arrays of one number an example, shape (n,), whose sums are multiplied.
        below: the same for what is divided by.
    """
    n = len(above[0])
    drawn = np.random.default_rng(0).integers(0, n, size=(RESAMPLES, n))
    top = np.prod([a[drawn].sum(axis=1) for a in above], axis=0, dtype=float)
    bottom = np.prod([b[drawn].sum(axis=1) for b in below], axis=0, dtype=float)
    ratios = top[bottom > 0] / bottom[bottom > 0]
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)
