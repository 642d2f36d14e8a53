"""Sums a comparison up: a row a method, every figure with its interval and, where theory has one, its prediction."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from .intervals import Interval, Z, bootstrap, difference_interval, mean_interval
from .record import Answer


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method's figures over all examples; each interval holds 95 %, see `intervals`.

    Args:
        method: its name.
        n: answers.
        unjudged: answers that the task could not judge; they count for everything but quality.
        quality: mean reward, between 0 and 1; None if no answer was judged.
        quality_ci: its interval.
        quality_difference: to the target alone, on the examples where both were judged.
        quality_difference_ci: its interval, examples paired.
        acceptance_rate: accepted / proposed draft tokens; None without a draft.
        acceptance_ci: its interval.
        tokens_per_round: generated tokens / target passes.
        tokens_per_round_ci: its interval.
        predicted_tokens_per_round: what was to be expected given the drafts, see `theory`; None where not known.
        prediction_error: tokens_per_round less the prediction.
        prediction_error_ci: its interval, from the variance that theory gives each round; it holds 0 in 95 of 100
            comparisons if theory is right.
        seconds: mean time of a whole answer.
        seconds_ci: its interval.
        generation_tps: generated tokens / seconds of whole answers.
        generation_tps_ci: its interval.
        speedup: generation_tps over that of the target alone; None where that was not run.
        speedup_ci: its interval, examples paired.
        first_token_seconds: mean time to the first token.
        first_token_seconds_ci: its interval.
        mean_target_weight: over verified drafts; None where the rule has no weight.
        mean_target_weight_ci: its interval.
        peak_memory_gb: most of any answer, with every model of the comparison loaded; a maximum has no interval.
    """

    method: str
    n: int
    unjudged: int
    quality: float | None
    quality_ci: Interval | None
    quality_difference: float | None
    quality_difference_ci: Interval | None
    acceptance_rate: float | None
    acceptance_ci: Interval | None
    tokens_per_round: float
    tokens_per_round_ci: Interval
    predicted_tokens_per_round: float | None
    prediction_error: float | None
    prediction_error_ci: Interval | None
    seconds: float
    seconds_ci: Interval
    generation_tps: float
    generation_tps_ci: Interval
    speedup: float | None
    speedup_ci: Interval | None
    first_token_seconds: float
    first_token_seconds_ci: Interval
    mean_target_weight: float | None
    mean_target_weight_ci: Interval | None
    peak_memory_gb: float

    def to_json(self) -> dict:
        """Plain data, as `demo --json` and `bench --json` write it."""
        return asdict(self)


def summarise(answers: Sequence[Answer]) -> list[Row]:
    """Sum answers up, one row a method.

    Args:
        answers: of the same examples for each method.

    Returns:
        Rows in the order in which methods first answered, "none" first.
    """
    methods = sorted({a.method: None for a in answers}, key=lambda method: method != "none")
    by_method = {
        method: sorted((a for a in answers if a.method == method), key=lambda a: a.number) for method in methods
    }
    return [_row(by_method[method], by_method.get("none")) for method in methods]


def _row(answers: list[Answer], alone: list[Answer] | None) -> Row:
    ones = np.ones(len(answers))
    accepted = np.array([a.accepted for a in answers])
    proposed = np.array([a.proposed for a in answers])
    tokens = np.array([len(a.reply.tokens) for a in answers])
    rounds = np.array([len(a.reply.rounds) for a in answers])
    seconds = np.array([a.seconds for a in answers])
    first = np.array([a.reply.first_token_seconds for a in answers])
    weight_sums = np.array([sum(a.verified_weights()) for a in answers])
    weight_counts = np.array([len(a.verified_weights()) for a in answers])
    predicted = _predicted(answers)
    judged = np.array([a.quality for a in answers if a.quality is not None])
    drafted, weighed = proposed.sum() > 0, weight_counts.sum() > 0
    differences, speed = np.array([]), None
    if alone is not None:
        differences = _differences(answers, alone)
        alone_tokens = np.array([len(a.reply.tokens) for a in alone])
        speed = [tokens, np.array([a.seconds for a in alone])], [seconds, alone_tokens]
    per_round = _ratio([tokens], [rounds])
    error = None if predicted is None else per_round - predicted[0]
    return Row(
        method=answers[0].method,
        n=len(answers),
        unjudged=len(answers) - len(judged),
        quality=float(judged.mean()) if len(judged) else None,
        quality_ci=mean_interval(judged) if len(judged) else None,
        quality_difference=float(differences.mean()) if len(differences) else None,
        quality_difference_ci=difference_interval(differences) if len(differences) else None,
        acceptance_rate=_ratio([accepted], [proposed]) if drafted else None,
        acceptance_ci=bootstrap([accepted], [proposed]) if drafted else None,
        tokens_per_round=per_round,
        tokens_per_round_ci=bootstrap([tokens], [rounds]),
        predicted_tokens_per_round=None if predicted is None else predicted[0],
        prediction_error=error,
        prediction_error_ci=None
        if error is None or predicted is None
        else (error - predicted[1], error + predicted[1]),
        seconds=float(seconds.mean()),
        seconds_ci=bootstrap([seconds], [ones]),
        generation_tps=_ratio([tokens], [seconds]),
        generation_tps_ci=bootstrap([tokens], [seconds]),
        speedup=_ratio(*speed) if speed else None,
        speedup_ci=bootstrap(*speed) if speed else None,
        first_token_seconds=float(first.mean()),
        first_token_seconds_ci=bootstrap([first], [ones]),
        mean_target_weight=_ratio([weight_sums], [weight_counts]) if weighed else None,
        mean_target_weight_ci=bootstrap([weight_sums], [weight_counts]) if weighed else None,
        peak_memory_gb=max(a.peak_memory_gb for a in answers),
    )


def _predicted(answers: list[Answer]) -> tuple[float, float] | None:
    """Tokens of a round by theory, and how far chance alone takes the measured ones from them in 95 %."""
    moments = [a.predicted for a in answers]
    known = [m for m in moments if m is not None]
    if len(known) < len(moments):
        return None
    rounds = sum(len(a.reply.rounds) for a in answers)
    return sum(mean for mean, _ in known) / rounds, Z * math.sqrt(sum(variance for _, variance in known)) / rounds


def _differences(answers: list[Answer], alone: list[Answer]) -> np.ndarray:
    """Quality less that of the target alone, where both were judged."""
    return np.array(
        [
            a.quality - b.quality
            for a, b in zip(answers, alone, strict=True)
            if a.quality is not None and b.quality is not None
        ]
    )


def _ratio(above: Sequence[np.ndarray], below: Sequence[np.ndarray]) -> float:
    return float(np.prod([a.sum() for a in above]) / np.prod([b.sum() for b in below]))
