"""Times of the bare forward passes of a pair: a step of the draft, and the target over one token and more."""

import random
import time
from collections.abc import Callable, Sequence
from statistics import median

import mlx.core as mx

from ..cache import Cache
from ..draft_length import AUTO_LONGEST
from ..errors import DiversedError
from ..lm import LM
from ..pair import Pair
from .forecast import Costs

READ_AT_ONCE = 512
DRAFT = 0  # among the numbers of tokens, which are the target's


def measure_costs(
    pair: Pair,
    depths: Sequence[int],
    repeats: int,
    *,
    tick: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Costs]:
    """Time every pass `repeats` times in turn, in an order that is drawn anew each time, and take the medians.

    Args:
        pair: with a draft.
        depths: numbers of tokens that the models have read.
        repeats: times that each pass is timed, after one that warms up.
        tick: called after each turn; there are `repeats` + 1.
        clock: what tells the time in seconds. Default the real one.

    Returns:
        The costs in ascending order of depth.

    Raises:
        DiversedError: a depth that the pair's context does not hold.
    """
    assert pair.draft is not None
    widths = range(1, AUTO_LONGEST + 2)
    for depth in depths:
        if pair.context_length is not None and depth + AUTO_LONGEST + 1 > pair.context_length:
            raise DiversedError(
                f"a depth of {depth} tokens leaves no room in this pair's context of {pair.context_length}: "
                f"give at most {pair.context_length - AUTO_LONGEST - 1}"
            )
    chance = random.Random(0)
    ids = [chance.randrange(pair.vocab_size) for _ in range(max(depths) + AUTO_LONGEST + 1)]
    caches = {depth: (_read(pair.draft, ids[:depth]), _read(pair.target, ids[:depth])) for depth in sorted(set(depths))}
    turns = [(depth, width) for depth in caches for width in (DRAFT, *widths)]
    times: dict[tuple[int, int], list[float]] = {turn: [] for turn in turns}
    for repeat in range(repeats + 1):
        for depth, width in chance.sample(turns, len(turns)):
            lm, cache = (pair.draft, caches[depth][0]) if width == DRAFT else (pair.target, caches[depth][1])
            tokens = mx.array(ids[depth : depth + max(width, 1)])
            mx.eval(tokens)
            started = clock()
            mx.eval(lm(tokens, cache)[1])
            seconds = clock() - started
            cache.rewind(depth)
            if repeat:
                times[depth, width].append(seconds)
        tick()
    return [
        Costs(
            depth=depth,
            draft_step=median(times[depth, DRAFT]),
            passes=tuple(median(times[depth, width]) for width in widths),
            spread=median(_spread(times[depth, width]) for width in (DRAFT, *widths)),
        )
        for depth in caches
    ]


def _spread(times: list[float]) -> float:
    ordered = sorted(times)
    return (ordered[-1 - len(ordered) // 4] - ordered[len(ordered) // 4]) / median(ordered)


def _read(lm: LM, tokens: list[int]) -> Cache:
    cache = lm.make_cache()
    for start in range(0, len(tokens), READ_AT_ONCE):
        lm(mx.array(tokens[start : start + READ_AT_ONCE]), cache)
        mx.eval(cache.arrays())
    return cache
