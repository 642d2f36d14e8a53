"""Who beats whom, and what the pictures are drawn from, with numbers worked by hand."""

import numpy as np
import pytest
from test_evaluation import PLAIN, made, turn

from diversed_mlx.evaluation.pareto import dominating, drafted, front, margin, surely_dominating
from diversed_mlx.evaluation.rows import summarise


def row(method, right, accepted, n=10):
    """Of n answers with a draft of 10 each."""
    rounds = [turn(10, accepted, accepted + 1, [0.5] * 10)] if method != "none" else [PLAIN]
    (found,) = summarise([made(method, i, float(i < right), 1.0, rounds) for i in range(n)])
    return found


ROWS = [row("none", 10, 0), row("lossless", 10, 5), row("static:0.5", 6, 7), row("cascade-opt:0.1", 7, 8),
        row("dynamic", 10, 8), row("lenient:0.1", 2, 9)]  # fmt: skip


def names(rows):
    return [row.method for row in rows]


def test_the_front_by_hand():
    assert names(drafted(ROWS)) == names(ROWS[1:])
    assert names(front(ROWS)) == ["dynamic", "lenient:0.1"]
    assert names(dominating(ROWS[2], ROWS)) == ["cascade-opt:0.1", "dynamic"]
    assert names(dominating(ROWS[4], ROWS)) == []


def test_beyond_the_intervals():
    # 6 and 7 of 10 are no different; 60 and 200 of 200 are, and acceptances here have no spread.
    assert names(surely_dominating(ROWS[2], [ROWS[3]])) == []
    assert names(surely_dominating(row("static:0.5", 60, 7, 200), [row("dynamic", 200, 8, 200)])) == ["dynamic"]


def test_the_margin_at_equal_quality():
    difference, best = margin(ROWS[4], ROWS)
    assert (best.method, difference) == ("lossless", pytest.approx(0.3))
    difference, best = margin(ROWS[1], ROWS)
    assert (best.method, difference) == ("dynamic", pytest.approx(-0.3))
    assert margin(ROWS[4], ROWS[2:]) is None  # nobody else is as good
    difference, best = margin(ROWS[4], ROWS, within=0.31)
    assert (best.method, difference) == ("cascade-opt:0.1", pytest.approx(0))


def test_accepted_lengths_by_hand():
    plots = pytest.importorskip("diversed_mlx.evaluation.plots")
    rounds = [
        turn(2, 0, 1, [0.5, 0.5]),
        turn(2, 2, 3, [1.0, 0.5]),
        turn(1, 1, 2, [1.0]),
        PLAIN,
        turn(2, 1, 2, [0.5, 0]),
    ]
    measured, expected, by_position = plots.measured_lengths([made("lossless", 0, 1.0, 1.0, rounds)])
    assert np.allclose(measured, [1 / 4, 2 / 4, 1 / 4])
    # 0: 1/2 + 0 + 0 + 1/2;  1: 1/4 + 1/2 + 1 + 1/2;  2: 1/4 + 1/2
    assert np.allclose(expected, [1 / 4, 2.25 / 4, 0.75 / 4])
    assert np.allclose(by_position, [3 / 4, 1 / 2])  # of two rounds whose first draft stands and that have a second
