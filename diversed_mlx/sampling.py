"""From logits to probabilities, through one chain that is the same for the draft and the target.

The ratio p/q of speculative decoding is only meaningful when both sides went through the same processors,
filters and temperature, so this is the only place where either is turned into a distribution.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from .errors import DiversedError

# As in mlx-lm: (tokens so far (T,), logits (1, W)) -> logits (1, W).
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a next token is chosen; the order is top-p, min-p, top-k, temperature, as in mlx-lm.

    At temperature 0 the filters still apply and the most likely token is taken, so `probabilities` returns the
    distributions at temperature 1 that method "Temperature 0" compares.

    Args:
        temp: temperature, at least 0; 0 is greedy. Default 1.0.
        top_p: keep the smallest set of tokens with this mass, in (0, 1]. Default 1.0, off.
        min_p: drop tokens below this share of the most likely one, in [0, 1]. Default 0.0, off.
        top_k: keep this many tokens, at least 0. Default 0, off.

    Raises:
        DiversedError: a value out of its range.
    """

    temp: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0

    def __post_init__(self):
        if not (math.isfinite(self.temp) and self.temp >= 0):
            raise DiversedError(f"temp must be 0 or a positive number, not {self.temp}")
        if not 0 < self.top_p <= 1:
            raise DiversedError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise DiversedError(f"min_p must be between 0 and 1, not {self.min_p}")
        if self.top_k < 0:
            raise DiversedError(f"top_k must be 0 (off) or a positive number, not {self.top_k}")

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.temp == 0

    def probabilities(self, logits: mx.array) -> mx.array:
        """Turn logits into the distribution that is sampled from.

        Args:
            logits: shape (..., V), any float type.

        Returns:
            Probabilities, shape (..., V), float32: in half precision a small q underflows to 0 and would be
            accepted unconditionally.
        """
        logits = logits.astype(mx.float32)
        if self.top_p < 1 or self.min_p > 0 or 0 < self.top_k < logits.shape[-1]:
            logits = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
            if self.top_p < 1:
                logits = apply_top_p(logits, self.top_p)
            if self.min_p > 0:
                logits = apply_min_p(logits, self.min_p)
            if 0 < self.top_k < logits.shape[-1]:
                logits = apply_top_k(logits, self.top_k)
        if self.temp not in (0, 1):
            # The largest logit becomes 0 first: divided by a tiny temperature it would be infinite.
            logits = (logits - mx.max(logits, axis=-1, keepdims=True)) / self.temp
        return mx.softmax(logits, axis=-1)


def process(processors: Sequence[LogitsProcessor], history: mx.array, logits: mx.array) -> mx.array:
    """Apply logits processors to consecutive positions, each with all the tokens before it.

    Args:
        processors: functions of mlx-lm's form.
        history: tokens up to and including the one that the last row was computed from, shape (T,).
        logits: the logits of the last R positions of `history`, shape (R, W).

    Returns:
        The processed logits, shape (R, W).
    """
    rows = []
    for row in range(logits.shape[0]):
        seen = history[: history.shape[0] - (logits.shape[0] - 1 - row)]
        out = logits[row : row + 1]
        for processor in processors:
            out = processor(seen, out)
        rows.append(out)
    return mx.concatenate(rows)
