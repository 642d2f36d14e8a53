"""How many tokens the draft proposes next: a fixed number, or the one that pays best on this machine and text.

Knows numbers only: it is told what each round accepted and took, and answers with a length; 0 is plain decoding.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Protocol

MAX_DRAFT_TOKENS = 64  # well inside what a full window can rewind
AUTO_LONGEST = 8  # that `Auto` chooses


class DraftLength(Protocol):
    """Chooses the draft length of the next round."""

    def next(self) -> int:
        """Length for the next round; 0 decodes with the target alone."""
        ...

    def record(self, proposed: int, accepted: int, tokens: int, seconds: float) -> None:
        """Learn from a round."""
        ...


class Fixed:
    """The same length every round.

    Args:
        length: number of drafted tokens, at least 1.
    """

    def __init__(self, length: int):
        self._length = length

    def next(self) -> int:
        """The length."""
        return self._length

    def record(self, proposed: int, accepted: int, tokens: int, seconds: float) -> None:
        """Nothing to learn."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What was measured before the first round, from which `Auto` starts instead of trying lengths out.

    Args:
        seconds: time of a round by the number of drafted tokens, 0 to `AUTO_LONGEST`; at 0 that of a plain step.
        acceptance: probability that a drafted token is accepted, given that those before it were; None if unknown.
    """

    seconds: tuple[float, ...]
    acceptance: float | None


class Auto:
    """The length that maximises expected tokens per second, or 0 when speculation does not pay.

    Expected tokens of a round of length k: (1 - a^(k+1)) / (1 - a), with a the running probability that a drafted
    token is accepted given that those before it were. Its time is a line in k through what rounds took lately, and
    the time of a plain step is measured by taking some. Lengths that were not tried are thus still compared.

    Args:
        start: what was measured before. Its times stand for lengths that were not tried since, all scaled by how the
            tried ones turned out, for the machine may be busier or the text longer now. Default None, nothing.
    """

    FIRST = (4, 4, 2, 2, 0, 0, 0, 0)  # enough to know the line's two ends and a plain step
    MEMORY = 64  # rounds that the running figures look back on
    RETRY = 48  # plain steps before the draft is tried again
    TRUST = 16  # drafted tokens that a measured acceptance counts as: this text soon outweighs others

    def __init__(self, start: Start | None = None):
        self._start = start
        self._trials = deque(self.FIRST if start is None else (4, 4) if start.acceptance is None else ())
        self._seconds: dict[int, deque[float]] = {}
        self._tested = 0.0
        self._accepted = 0.0
        if start is not None and start.acceptance is not None:
            self._tested, self._accepted = float(self.TRUST), self.TRUST * start.acceptance
        self._plain_steps = 0

    def next(self) -> int:
        """The best length by what is known so far."""
        if self._trials:
            return self._trials[0]
        if self._plain_steps >= self.RETRY:
            self._trials.extend((2, 2))
            return 2
        return max(range(AUTO_LONGEST + 1), key=self.tokens_per_second)

    def record(self, proposed: int, accepted: int, tokens: int, seconds: float) -> None:
        """Learn from a round.

        Args:
            proposed: drafted tokens; 0 for a plain step.
            accepted: how many of them were accepted.
            tokens: tokens that the round gave.
            seconds: time that the round took.
        """
        if self._trials and self._trials[0] == proposed:
            self._trials.popleft()
        self._seconds.setdefault(proposed, deque(maxlen=self.MEMORY // 4)).append(
            seconds / (tokens if not proposed else 1)
        )
        self._plain_steps = 0 if proposed else self._plain_steps + 1
        forget = 1 - 1 / self.MEMORY
        self._tested = forget * self._tested + min(proposed, accepted + 1)
        self._accepted = forget * self._accepted + accepted

    @property
    def acceptance(self) -> float:
        """Probability that a drafted token is accepted, given that those before it in its round were."""
        # One pseudo-count on each side keeps a short lucky or unlucky start from deciding everything.
        return (self._accepted + 1) / (self._tested + 2)

    def tokens_per_second(self, length: int) -> float:
        """Expected speed at a draft length.

        Args:
            length: number of drafted tokens, 0 for plain decoding.
        """
        expected = sum(self.acceptance**i for i in range(length + 1))
        return expected / self._round_seconds(length)

    def _round_seconds(self, length: int) -> float:
        """Time of a round: measured where this length was tried enough, else by the start or on a line."""
        if self._start is not None:
            return self._from_start(self._start.seconds, length)
        points = [(k, median(times), len(times)) for k, times in self._seconds.items() if k > 0]
        if length == 0:
            return median(self._seconds[0])
        if len(self._seconds.get(length, ())) >= 4 or len(points) < 2:
            return median(self._seconds.get(length) or [points[0][1]])
        weight = sum(n for _, _, n in points)
        mean_k = sum(k * n for k, _, n in points) / weight
        mean_t = sum(t * n for _, t, n in points) / weight
        spread = sum(n * (k - mean_k) ** 2 for k, _, n in points)
        slope = sum(n * (k - mean_k) * (t - mean_t) for k, t, n in points) / spread
        # A longer draft cannot take less time: noise must not make it look free.
        return max(mean_t + max(slope, 0.0) * (length - mean_k), 0.1 * mean_t)

    def _from_start(self, known: tuple[float, ...], length: int) -> float:
        if len(tried := self._seconds.get(length, ())) >= 4:
            return median(tried)
        ratios = [median(times) / known[k] for k, times in self._seconds.items() if k < len(known)]
        return known[length] * (median(ratios) if ratios else 1.0)


def make_draft_length(num_draft_tokens: int | str, start: Start | None = None) -> DraftLength:
    """The chooser for a setting.

    Args:
        num_draft_tokens: a number from 1 to 64, or "auto"; already checked.
        start: where "auto" starts, see `Auto`. Default None.
    """
    return Auto(start) if num_draft_tokens == "auto" else Fixed(int(num_draft_tokens))
