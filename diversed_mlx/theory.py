"""What theory says a comparison should measure: distances, the front of fixed weights, and tokens of a round.

Pure functions of numbers, with no model and no array library of a device. Symbols as in the paper: p target, q draft,
nu verified against, w weight on the target, L accepted tokens of a round of K drafts.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Distribution = Sequence[float] | np.ndarray  # probabilities of a vocabulary, shape (V,)
Conditional = Callable[[tuple[int, ...]], Distribution]  # tokens drafted before -> the next one's distribution


class FrontPoint(NamedTuple):
    """Where a fixed weight stands: the distances from the draft to nu and from nu to the target."""

    from_draft: float
    to_target: float


def total_variation(p: Distribution, q: Distribution) -> float:
    """Total variation distance, half the sum of |p(x) - q(x)|.

    Args:
        p: probabilities, shape (V,).
        q: the same.
    """
    return float(np.abs(np.asarray(p, dtype=float) - np.asarray(q, dtype=float)).sum() / 2)


def static_front(p: Distribution, q: Distribution, weights: Sequence[float]) -> list[FrontPoint]:
    """The front of fixed weights: with nu = w p + (1 - w) q the distances are w TV(q, p) and (1 - w) TV(q, p).

    No nu has a smaller sum, because TV is a distance: TV(q, nu) + TV(nu, p) >= TV(q, p).

    Args:
        p: the target's distribution, shape (V,).
        q: the draft's.
        weights: w of each point, in [0, 1].
    """
    distance = total_variation(p, q)
    return [FrontPoint(weight * distance, (1 - weight) * distance) for weight in weights]


def survival(chances: Sequence[float]) -> list[float]:
    """P(L >= i) for i = 1..K, given the drafted tokens: the product of the first i chances.

    No independence is assumed: each chance is the probability that a token is accepted if those before it are.

    Args:
        chances: min(1, nu(x)/q(x)) of each drafted token x, shape (K,).
    """
    return np.cumprod(np.asarray(chances, dtype=float)).tolist()


def expected_accepted(chances: Sequence[float]) -> float:
    """E[L] given the drafted tokens: the sum of P(L >= i). Its mean over drafts from q is E[L] itself.

    Args:
        chances: as for `survival`.
    """
    return float(sum(survival(chances)))


def length_distribution(chances: Sequence[float]) -> list[float]:
    """P(L = i) for i = 0..K, given the drafted tokens.

    Args:
        chances: as for `survival`.
    """
    reached = [1.0, *survival(chances), 0.0]
    return [at_least - more for at_least, more in itertools.pairwise(reached)]


def tokens_of_round(chances: Sequence[float], ends: bool) -> tuple[float, float]:
    """Mean and variance of a round's tokens given its drafts: the accepted ones, and one of the target's behind them.

    Summed over rounds, measured less expected tokens have mean 0 and the summed variance, whatever made an answer stop:
    each round's drafts are known before its tokens (a martingale).

    Args:
        chances: as for `survival`, of the drafts up to the first stop token.
        ends: whether the last of them is a stop token. Accepted, it ends the answer and nothing follows.
    """
    lengths = length_distribution(chances)
    tokens = [i + 1 for i in range(len(lengths))]
    if ends:
        tokens[-1] -= 1
    mean = sum(chance * n for chance, n in zip(lengths, tokens, strict=True))
    return mean, sum(chance * (n - mean) ** 2 for chance, n in zip(lengths, tokens, strict=True))


def tokens_per_round(acceptance: float, length: int) -> float:
    """Expected tokens of a round if each draft were accepted with the same chance and independently (Leviathan 2023).

    (1 - a^(K+1)) / (1 - a), written as the sum 1 + a + ... + a^K.

    Args:
        acceptance: a, in [0, 1].
        length: K.
    """
    return float(sum(acceptance**i for i in range(length + 1)))


def exact_accepted(draft: Conditional, verified: Conditional, length: int) -> float:
    """E[L] by enumerating every draft: the sum over i and x_1..x_i of the product of min(q_j, nu_j).

    Its cost is V^K: for a small vocabulary, to check what is measured against.

    Args:
        draft: q of the next token, given those drafted before.
        verified: nu of the next token, likewise.
        length: K.
    """

    def beyond(prefix: tuple[int, ...], mass: float) -> float:
        if len(prefix) == length or mass == 0:
            return 0.0
        joint = mass * np.minimum(draft(prefix), verified(prefix))  # (V,)
        return float(joint.sum()) + sum(beyond((*prefix, token), float(m)) for token, m in enumerate(joint))

    return beyond((), 1.0)
