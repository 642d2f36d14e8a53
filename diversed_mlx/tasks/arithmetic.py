"""Word problems from seeded templates, with worked answers in several wordings that end in `#### N`, as GSM8K's do.

A problem is a plot (what happens, and the steps that answer it) told in one of several ways with drawn names, things
and numbers. An answer writes the same steps in one of many wordings; which are likely is a `Style`, and two models
trained on two styles differ where it does not matter. This file writes text; it knows no model.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import DiversedError
from ..rewards import final_number_reward
from .plots import NAMES, PLOTS, THINGS, Plot, Step
from .task import Example, Split

LARGEST = 100  # no number of a problem or its solution is larger
FIRST_TEST_SEED = 2**62  # seeds below are for training, the others for testing

# Ways to say the same thing. They never tell the operation, so that a model may choose any without having planned.
OPENINGS = {
    "first": ("First,", "To begin with,", "Let us start like this:"),
    "middle": ("Then,", "After that,", "Next in line:"),
    "last": ("In the end,", "Finally,", "Last of all,"),
}
LEADS = ("we work out", "this makes", "the sum to do is")
TAILS = (", which is {what}.", " for {what}.", " and that gives {what}.")
CLOSINGS = ("So the answer is {n}.", "Therefore {n} is the answer.", "We are left with {n}.")


@dataclass(frozen=True)
class Style:
    """How likely each of three wordings is, in the order they are listed above.

    Args:
        shares: probabilities of the first, second and third wording.
    """

    shares: tuple[float, float, float]

    def choose(self, rng: random.Random, wordings: tuple[str, ...]) -> str:
        """Draw one of three wordings."""
        return rng.choices(wordings, self.shares)[0]


FAMILIES = tuple(dict.fromkeys(plot.family for plot in PLOTS))
EVERY_WORDING = Style((1 / 3, 1 / 3, 1 / 3))


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A question, the numbers that answer it, and words for them.

    Args:
        question: the text.
        steps: for each step its left operand, operator, right operand, result, and what the result is.
    """

    question: str
    steps: tuple[tuple[int, str, int, int, str], ...]

    @property
    def result(self) -> int:
        """The number that is asked for."""
        return self.steps[-1][3]

    def solve(self, rng: random.Random, style: Style) -> Iterator[tuple[str, bool]]:
        """Write a worked answer.

        Args:
            rng: draws the wordings.
            style: how likely each is.

        Yields:
            Pieces of the text, each with whether its first word is a free choice among wordings.
        """
        for number, (left, operator, right, result, what) in enumerate(self.steps):
            place = "first" if number == 0 else "last" if number == len(self.steps) - 1 else "middle"
            if number:
                yield "\n", False
            yield style.choose(rng, OPENINGS[place]), True
            yield " " + style.choose(rng, LEADS), True
            yield f" {left} {operator} {right} = {result}", False
            yield style.choose(rng, TAILS).format(what=what), True
        yield "\n", False
        yield style.choose(rng, CLOSINGS).format(n=self.result), True
        yield f"\n#### {self.result}", False


def draw_problem(rng: random.Random, plots: Sequence[Plot] = PLOTS) -> Problem:
    """Draw a plot, a way to tell it, names, things and numbers."""
    plot = rng.choice(plots)
    numbers, results = _draw_numbers(rng, plot)
    first, second, third = rng.sample(NAMES, 3)
    things, others = rng.sample(THINGS, 2)
    words = {"A": first, "B": second, "C": third, "x": things, "y": others, **numbers}
    question = " ".join(rng.choice(ways).format(**words) for ways in plot.story)
    values = numbers | results
    steps = tuple(
        (values[step.left], step.operator, values[step.right], results[str(i)], step.what.format(**words))
        for i, step in enumerate(plot.steps, start=1)
    )
    return Problem(question=question, steps=steps)


def _draw_numbers(rng: random.Random, plot: Plot) -> tuple[dict[str, int], dict[str, int]]:
    """Draw a plot's numbers by name, until every result is a whole number from 1 to LARGEST."""
    factors = {name for step in plot.steps if step.operator == "*" for name in (step.left, step.right)}
    names = sorted({name for step in plot.steps for name in (step.left, step.right) if name.isalpha()})
    while True:
        numbers = {name: rng.randint(2, 12 if name in factors else 60) for name in names}
        results: dict[str, int] = {}
        for i, step in enumerate(plot.steps, start=1):
            results[str(i)] = _calculate(step, numbers | results)
        if all(1 <= result <= LARGEST for result in results.values()):
            return numbers, results


def _calculate(step: Step, values: dict[str, int]) -> int:
    left, right = values[step.left], values[step.right]
    match step.operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case _:
            return left * right


def is_for_testing(question: str) -> bool:
    """Say in which split a question may appear: a fixed sixteenth of all questions is for testing only."""
    return hashlib.sha256(question.encode()).digest()[0] < 16


def problems(split: Split, seed: int = 0, families: Sequence[str] = FAMILIES) -> Iterator[Problem]:
    """Give problems of a split without end.

    Args:
        split: no question is in both.
        seed: from 0 to 2^62 - 1; makes the sequence repeatable. Default 0.
        families: of the plots. Default all.
    """
    rng = random.Random(seed + (FIRST_TEST_SEED if split == "test" else 0))
    plots = [plot for plot in PLOTS if plot.family in families]
    while True:
        problem = draw_problem(rng, plots)
        if is_for_testing(problem.question) == (split == "test"):
            yield problem


class Arithmetic:
    """The task of solving such problems; the reward is 1 for the right number after `####`.

    Args:
        families: whose plots are told, such as ("shopping", "rates"); the task's name then says so. Default all.

    Raises:
        DiversedError: no family, or one that does not exist.
    """

    metric = "accuracy"
    max_tokens = 160

    def __init__(self, families: Sequence[str] = FAMILIES):
        if not families or not set(families) <= set(FAMILIES):
            raise DiversedError(f"families must be some of {', '.join(FAMILIES)}, not {', '.join(families) or 'none'}")
        self.families = tuple(families)
        whole = set(families) == set(FAMILIES)
        self.name = "arithmetic" if whole else f"arithmetic-{'-'.join(self.families)}"

    def examples(self, split: Split, n: int, seed: int = 0) -> list[Example]:
        """Give n examples, each with a worked answer.

        Args:
            split: "train" or "test"; no question is in both.
            n: how many.
            seed: from 0 to 2^62 - 1. Default 0.
        """
        rng = random.Random(seed)
        return [
            Example(question=problem.question, answer="".join(text for text, _ in problem.solve(rng, EVERY_WORDING)))
            for problem, _ in zip(problems(split, seed, self.families), range(n), strict=False)
        ]

    def reward(self, text: str, example: Example) -> float:
        """Give 1 for the right final number, else 0."""
        return final_number_reward(text, example.answer)
