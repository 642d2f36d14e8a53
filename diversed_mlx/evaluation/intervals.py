"""Intervals that hold 95 %: by bootstrap over examples, and Wilson's where a share has no spread to resample."""

import math
from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000  # of the bootstrap
Z = 1.959964  # of a normal distribution's middle 95 %
Interval = tuple[float, float]


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


def wilson(successes: int, n: int) -> Interval:
    """Wilson's 95 % interval of a share, which has a width at 0 and at n as well.

    Args:
        successes: how many of n.
        n: at least 1.
    """
    share, z2 = successes / n, Z * Z
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: np.ndarray) -> Interval:
    """95 % interval of a mean of rewards; Wilson's where all are 0 or all are 1, which a bootstrap takes for certain.

    Args:
        values: between 0 and 1, shape (n,).
    """
    if np.all(values == values[0]) and values[0] in (0, 1):
        return wilson(int(values.sum()), len(values))
    return bootstrap([values], [np.ones(len(values))])


def difference_interval(differences: np.ndarray) -> Interval:
    """95 % interval of a mean of paired differences between rewards.

    Where no pair differs a bootstrap takes that for certain too: the interval then reaches as far, both ways, as
    Wilson's says that pairs may differ.

    Args:
        differences: between -1 and 1, shape (n,).
    """
    if not differences.any():
        _, most = wilson(0, len(differences))
        return -most, most
    return bootstrap([differences], [np.ones(len(differences))])
