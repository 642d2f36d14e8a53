"""The whole measurement of a pair: passes, answers, and what they add up to."""

from collections.abc import Callable, Sequence

from ..errors import DiversedError
from ..pair import Pair
from ..verifiers import Verifier
from .costs import measure_costs
from .forecast import forecast
from .store import Tuning, conditions, verifier_name
from .trial import PROMPTS, read_prompts, run_trials

DEPTHS = (64, 1024)
TEMPS = (0.0, 1.0)


def default_depths(pair: Pair) -> tuple[int, ...]:
    """`DEPTHS`, or less where the pair's context is shorter.

    Args:
        pair: gives the length of the context.
    """
    length = pair.context_length
    return DEPTHS if length is None else tuple(sorted({min(depth, max(length - 64, 1)) for depth in DEPTHS}))


def measure(
    pair: Pair,
    verifier: Verifier,
    *,
    depths: Sequence[int] | None = None,
    prompts: Sequence[str] = PROMPTS,
    repeats: int = 10,
    max_tokens: int = 64,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> Tuning:
    """Measure a pair on this machine.

    Args:
        pair: with a draft.
        verifier: how drafts are checked.
        depths: numbers of tokens in the context at which passes are timed. Default `default_depths(pair)`.
        prompts: texts to answer at each of `TEMPS`. Default `PROMPTS`.
        repeats: times that each pass is timed. Default 10.
        max_tokens: most tokens of an answer. Default 64.
        seed: makes the answers repeatable. Default 0.
        tick: called `ticks(...)` times on the way.

    Raises:
        DiversedError: no draft, no prompt, or a depth or prompt that does not fit.
    """
    if pair.draft is None:
        raise DiversedError("there is nothing to tune without a draft: load the pair with one")
    if not prompts:
        raise DiversedError("there is no prompt to answer")
    asked = read_prompts(pair, prompts)
    costs = measure_costs(pair, depths or default_depths(pair), repeats, tick=tick)
    trials = run_trials(pair, verifier, asked, TEMPS, max_tokens=max_tokens, seed=seed, tick=tick)
    forecasts = [each for trial in trials for each in forecast(costs, trial)]
    return Tuning(
        made_for=conditions(pair), verifier=verifier_name(verifier), costs=costs, trials=trials, forecasts=forecasts
    )


def ticks(prompts: Sequence[str], repeats: int) -> int:
    """How often `measure` calls its `tick`."""
    return repeats + 1 + len(prompts) * len(TEMPS)
