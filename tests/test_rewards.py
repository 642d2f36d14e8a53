"""Scores of texts, against values worked out by hand."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diversed_mlx.rewards import final_number, final_number_reward


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 + 4 = 7\n#### 7", 7),
        ("#### 1,234", 1234),
        ("#### $1,234.50", Fraction(2469, 2)),
        ("#### -12", -12),
        ("#### −12", -12),
        ("#### $-5", -5),
        ("#### -$5", -5),
        ("#### 3/4", Fraction(3, 4)),
        ("#### 0.75 litres", Fraction(3, 4)),
        ("#### .5", Fraction(1, 2)),
        ("#### 70 dollars, not 80", 70),
        ("#### 1\n#### 2", 2),
        ("#### 5\nand 6", 5),
        ("#### nothing\n5", None),
        ("it is \\boxed{42} or 43", 42),
        ("\\boxed{1} and then \\boxed{\\frac{1}{2}}", Fraction(1, 2)),
        ("\\boxed{x = 12{,}000}", 12000),
        ("\\boxed{3", 3),
        ("first 3, then 4.", 4),
        ("10-3", 3),
        ("costs 50%", 50),
        ("1/0", 0),
        ("12,34", 34),
        ("1" * 65, None),
        ("no number", None),
        ("٣", None),
        ("", None),
    ],
)
def test_final_number(text, number):
    assert final_number(text) == number


def test_equal_numbers_are_right_however_they_are_written():
    assert final_number_reward("#### 1,000.0", "#### 1000") == 1
    assert final_number_reward("\\boxed{2/4}", "#### 0.5") == 1
    assert final_number_reward("#### 7", "#### 8") == 0


def test_no_answer_equals_nothing():
    assert final_number_reward("none", "none") == 0
    assert final_number_reward("", "") == 0
    assert final_number_reward("#### 3", "none") == 0


@given(st.text(alphabet="0123456789.,/-−$#\\boxed{}frac \n") | st.text())
def test_no_text_raises(text):
    assert final_number_reward(text, text) == float(final_number(text) is not None)


def test_every_answer_of_gsm8k_is_read(shared):
    """Against the plain rule that holds for its references: all behind ####, without commas."""
    rows = [
        json.loads(line)
        for path in sorted((shared / "data" / "gsm8k").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert len(rows) > 100
    for row in rows:
        assert final_number(row["answer"]) == int(row["answer"].split("####")[1].strip().replace(",", ""))
