"""The arithmetic task: every problem is what its text says, and no question is in both splits."""

import random
import re

import pytest

from diversed_mlx import DiversedError
from diversed_mlx.tasks.arithmetic import EVERY_WORDING, LARGEST, Arithmetic, Problem, Style, problems
from diversed_mlx.tasks.plots import NAMES, PLOTS, THINGS

FAMILIES = {"sharing", "shopping", "ages", "distances", "time", "rates", "comparisons"}


def take(split, n, seed=0):
    return [problem for problem, _ in zip(problems(split, seed), range(n), strict=False)]


def test_every_family_has_plots_of_several_lengths():
    assert {plot.family for plot in PLOTS} == FAMILIES
    assert {len(plot.steps) for plot in PLOTS} == {1, 2, 3}
    assert {step.operator for plot in PLOTS for step in plot.steps} == {"+", "-", "*"}


def test_a_few_hundred_templates_before_names_and_numbers():
    ways = 0
    for plot in PLOTS:
        told = 1
        for sentence in plot.story:
            assert len(set(sentence)) == len(sentence)
            told *= len(sentence)
        ways += told
    assert ways >= 200
    assert len(set(NAMES)) == len(NAMES) >= 30
    assert len(set(THINGS)) == len(THINGS) >= 20


@pytest.mark.parametrize("split", ["train", "test"])
def test_steps_calculate_and_use_every_number_of_the_question(split):
    for problem in take(split, 500):
        known = [int(n) for n in re.findall(r"\d+", problem.question)]
        used = []
        for left, operator, right, result, _ in problem.steps:
            assert eval(f"{left} {operator} {right}") == result
            assert 1 <= result <= LARGEST
            used += [left, right]
        # Each number of the question is an operand, and so is each result but the last.
        for value in known + [step[3] for step in problem.steps[:-1]]:
            assert value in used
        assert problem.result == problem.steps[-1][3]


def test_a_problem_by_hand():
    problem = Problem(question="?", steps=((3, "*", 4, 12, "the bill"), (20, "-", 12, 8, "the rest")))
    pieces = list(problem.solve(random.Random(0), Style((1, 0, 0))))
    assert "".join(text for text, _ in pieces) == (
        "First, we work out 3 * 4 = 12, which is the bill.\n"
        "In the end, we work out 20 - 12 = 8, which is the rest.\n"
        "So the answer is 8.\n#### 8"
    )
    assert [text for text, free in pieces if free] == [
        "First,", " we work out", ", which is the bill.", "In the end,", " we work out", ", which is the rest.",
        "So the answer is 8.",
    ]  # fmt: skip


def test_a_style_sets_how_often_a_wording_is_chosen():
    rng = random.Random(0)
    style = Style((0.7, 0.2, 0.1))
    drawn = [style.choose(rng, ("a", "b", "c")) for _ in range(10_000)]
    # Six standard deviations of a share are at most 6 * sqrt(.25 / 10,000) = .03.
    assert [drawn.count(word) / 10_000 for word in "abc"] == pytest.approx([0.7, 0.2, 0.1], abs=0.03)


def test_no_question_is_in_both_splits():
    train = {problem.question for seed in range(5) for problem in take("train", 2000, seed)}
    test = {problem.question for problem in take("test", 2000)}
    assert len(train) > 9900  # of 10,000: next to nothing can be solved by memory
    assert len(test) > 1900
    assert not train & test


def test_a_seed_repeats_and_another_differs():
    task = Arithmetic()
    assert task.examples("train", 20, seed=3) == task.examples("train", 20, seed=3)
    assert task.examples("train", 20, seed=3) != task.examples("train", 20, seed=4)
    assert task.examples("train", 5, seed=3) == task.examples("train", 20, seed=3)[:5]


def test_reference_answers_are_right_and_wrong_ones_are_not():
    task = Arithmetic()
    for example, problem in zip(task.examples("test", 200), problems("test"), strict=False):
        assert example.question == problem.question
        assert example.answer.endswith(f"\n#### {problem.result}")
        assert task.reward(example.answer, example) == 1
        assert task.reward(example.answer[:-1] + f"9{example.answer[-1]}", example) == 0
        assert task.reward("no idea", example) == 0


def test_wordings_never_tell_the_operation():
    """Else a draft's choice of words would decide the calculation."""
    rng = random.Random(0)
    leads = {"+": set(), "-": set(), "*": set()}
    for problem in take("train", 1000):
        text = "".join(text for text, _ in problem.solve(rng, EVERY_WORDING))
        for line, step in zip(text.split("\n"), problem.steps, strict=False):
            leads[step[1]].add(re.search(r"[,:] (\D+) \d", line)[1])
    assert leads["+"] == leads["-"] == leads["*"] == {"we work out", "this makes", "the sum to do is"}


def test_a_task_may_keep_to_some_families():
    some = Arithmetic(("shopping", "rates"))
    assert some.name == "arithmetic-shopping-rates"
    for split in ("train", "test"):
        questions = [example.question for example in some.examples(split, 60)]
        assert not any("years old" in question or "miles" in question for question in questions)
        assert any("machine makes" in question or "packs" in question for question in questions)
        assert any("dollars" in question for question in questions)
    everything = Arithmetic(tuple(sorted(FAMILIES)))
    assert everything.name == "arithmetic"
    assert everything.examples("train", 5) == Arithmetic().examples("train", 5)


@pytest.mark.parametrize("families", [(), ("cooking",), ("shopping", "cooking")])
def test_no_other_family_exists(families):
    with pytest.raises(DiversedError, match="families must be some of"):
        Arithmetic(families)
