"""What measured passes and acceptance add up to: tokens a second by draft length. Arithmetic only.

A round of K drafts gives 1 + P(L >= 1) + ... + P(L >= K) tokens, L the number of accepted ones. It takes K steps of
the draft and one pass of the target over K + 1 tokens, times an overhead: above 1 for sampling, verification and the
host's work, below 1 where those passes overlap.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..draft_length import AUTO_LONGEST

BUSY = 0.3  # a spread above it says that the machine did other things, and that figures are rough
WORTH_IT = 1.03  # less gain than that over plain decoding is within the noise of a measurement


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Bare forward passes at one context depth.

    Args:
        depth: tokens that both models had read.
        draft_step: seconds of a pass of the draft over one token.
        passes: seconds of a pass of the target over 1, 2, ... `AUTO_LONGEST` + 1 tokens.
        spread: how far apart the times of one pass lay: the middle half of them over their median, of the median pass.
    """

    depth: int
    draft_step: float
    passes: tuple[float, ...]
    spread: float

    def round(self, length: int) -> float:
        """Seconds of the passes of a round.

        Args:
            length: drafted tokens, 0 to `AUTO_LONGEST`; 0 is a plain step.
        """
        return length * self.draft_step + self.passes[length]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What answers at one temperature showed.

    Args:
        temp: the temperature.
        depth: mean depth of their rounds in tokens.
        survival: P(L >= i) for i = 1 ... `AUTO_LONGEST`.
        seconds: of a round by draft length, for the lengths that were tried; 0, the plain step, among them.
    """

    temp: float
    depth: float
    survival: tuple[float, ...]
    seconds: Mapping[int, float]

    @property
    def acceptance(self) -> float:
        """Probability that a drafted token is accepted, given that those before it were."""
        return sum(self.survival) / (1 + sum(self.survival[:-1]))


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Rounds at one temperature and depth, by draft length from 0 to `AUTO_LONGEST`.

    Args:
        temp: the temperature.
        depth: tokens in the context.
        tokens: expected tokens of a round.
        seconds: its expected time.
    """

    temp: float
    depth: int
    tokens: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def speeds(self) -> tuple[float, ...]:
        """Expected tokens a second."""
        return tuple(tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True))


def survival(rounds: Iterable[Sequence[float]], longest: int = AUTO_LONGEST) -> tuple[float, ...]:
    """P(L >= i) for i = 1 ... longest, by the product-limit estimate of Kaplan and Meier.

    A round that drafted fewer tokens says nothing of the later positions, and is left out there.

    Args:
        rounds: for each, the chance that each drafted token is accepted if those before it are.
        longest: number of positions. Default `AUTO_LONGEST`.
    """
    reached, passed = [0.0] * longest, [0.0] * longest
    for chances in rounds:
        alive = 1.0
        for position, chance in enumerate(chances[:longest]):
            reached[position] += alive
            alive *= chance
            passed[position] += alive
    result, alive = [], 1.0
    for before, after in zip(reached, passed, strict=True):
        alive *= after / before if before else 0.0
        result.append(alive)
    return tuple(result)


def costs_at(costs: Sequence[Costs], depth: float) -> Costs:
    """Costs at a depth between the measured ones, on a straight line; beyond them, those of the nearest.

    Args:
        costs: at one depth or more, in ascending order.
        depth: tokens in the context.
    """
    low = max((cost for cost in costs if cost.depth <= depth), key=lambda cost: cost.depth, default=costs[0])
    high = min((cost for cost in costs if cost.depth >= depth), key=lambda cost: cost.depth, default=costs[-1])
    share = (depth - low.depth) / (high.depth - low.depth) if high.depth > low.depth else 0.0
    return Costs(
        depth=round(depth),
        draft_step=low.draft_step + share * (high.draft_step - low.draft_step),
        passes=tuple(a + share * (b - a) for a, b in zip(low.passes, high.passes, strict=True)),
        spread=max(low.spread, high.spread),
    )


def forecast(costs: Sequence[Costs], trial: Trial) -> list[Forecast]:
    """Expected rounds at each measured depth.

    Args:
        costs: bare passes, at one depth or more, in ascending order.
        trial: acceptance, and rounds as they really went, from which the overhead of a length comes; that of a length
            that was not tried lies on a straight line between its neighbours.
    """
    there = costs_at(costs, trial.depth)
    overhead = {length: seconds / there.round(length) for length, seconds in sorted(trial.seconds.items())}
    lengths = range(AUTO_LONGEST + 1)
    return [
        Forecast(
            temp=trial.temp,
            depth=cost.depth,
            tokens=tuple(1 + sum(trial.survival[:length]) for length in lengths),
            seconds=tuple(cost.round(length) * _between(overhead, length) for length in lengths),
        )
        for cost in costs
    ]


def recommend(forecasts: Sequence[Forecast]) -> int:
    """The draft length that is best over all depths, by the geometric mean of the speeds; 0 is plain decoding.

    Args:
        forecasts: at one temperature.
    """
    gains = gain_over_plain(forecasts)
    best = max(range(len(gains)), key=gains.__getitem__)
    return best if gains[best] >= WORTH_IT else 0


def gain_over_plain(forecasts: Sequence[Forecast]) -> list[float]:
    """Speed over plain decoding by draft length, the geometric mean over all depths.

    Args:
        forecasts: at one temperature.
    """
    ratios = [[speed / each.speeds[0] for speed in each.speeds] for each in forecasts]
    return [math.prod(column) ** (1 / len(column)) for column in zip(*ratios, strict=True)]


def _between(values: Mapping[int, float], at: int) -> float:
    """The value at a key, on a straight line between its neighbours where it has none of its own."""
    if at in values:
        return values[at]
    # The plain step is another kind of work, and no neighbour of a round.
    low = max((key for key in values if 0 < key < at), default=None)
    high = min((key for key in values if key > at), default=None)
    if low is None or high is None:
        return values[low if low is not None else high if high is not None else 0]
    return values[low] + (at - low) / (high - low) * (values[high] - values[low])
