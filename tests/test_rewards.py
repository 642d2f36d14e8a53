"""Scores of texts, against values worked out by hand."""

import json
import math
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diversed_mlx.rewards import bleu_reward, final_number, final_number_reward, rouge2_reward


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
        ("####\n42", 42),
        ("#### $1,000.00.", 1000),
        ("#### 3/4 cups", Fraction(3, 4)),
        ("it takes 3/4.", Fraction(3, 4)),
        ("#### 1 1/2", Fraction(3, 2)),
        ("#### -1 1/2 hours", Fraction(-3, 2)),
        ("so 2 3/4.", Fraction(11, 4)),
        ("10 4/2", 2),
        ("2.5 1/2", Fraction(1, 2)),
        ("1 1/0", 0),
        ("#### 5:30", 5),
        ("#### **12.5%**", Fraction(25, 2)),
        ("\\boxed{1\\frac{1}{2}}", Fraction(3, 2)),
        ("\\boxed{12 \\dfrac{1}{2}}", Fraction(25, 2)),
        ("\\boxed{\\frac{-1}{2}}", Fraction(-1, 2)),
        ("\\boxed{-\\frac{1}{2}}", Fraction(-1, 2)),
        ("\\boxed{1,\\!000}", 1000),
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


@pytest.mark.parametrize(
    ("text", "reference", "score"),
    [
        # the-cat cat-sat sat-on on-the the-mat; a-cat cat-sat sat-on on-a a-mat: 2 of 5 and 2 of 5.
        ("The cat sat on the mat.", "A cat sat on a mat!", 0.4),
        # the-cat cat-sat; both in the reference's the-cat cat-sat sat-on on-the the-mat: P 2/2, R 2/5, F1 2PR/(P + R).
        ("the cat sat", "the cat sat on the mat", 2 * 0.4 / 1.4),
        # a-a a-a; a-a a-a a-a: counted as often as both have it, P 2/2, R 2/3.
        ("a a a", "a a a a", 2 * (2 / 3) / (5 / 3)),
        ("cats sitting", "cat sits", 1),  # one stem each
        ("the cat\nsat", "the cat sat", 1),  # a pair across lines
        ("cat", "cat", 0),  # no pair
        ("", "the cat", 0),
        ("the cat", "", 0),
    ],
)
def test_rouge2(text, reference, score):
    assert rouge2_reward(text, reference) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "reference", "score"),
    [
        # 1-grams: all but one "the" of 6; pairs: the-cat cat-sat sat-on of 5; triples: the-cat-sat cat-sat-on of 4;
        # fours: the-cat-sat-on of 3. As long as the reference.
        ("the cat sat on the mat", "the cat sat on a mat", (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4)),
        # All of its 1-grams and pairs, and it has no longer ones; 2 words where the reference has 3.
        ("the cat", "the cat sat", math.exp(1 - 3 / 2)),
        # 1-grams 2 of 3; pairs: the-cat of 2; triples 0 of 1, smoothed to 1/2 of one.
        ("the cat slept", "the cat sat", (2 / 3 * 1 / 2 * 1 / 2) ** (1 / 3)),
        ("The cat sat on the mat.", "The cat sat on the mat.", 1),
        ("dogs", "the cat", 0),
        ("", "the cat", 0),
        ("the cat", "", 0),
    ],
)
def test_bleu(text, reference, score):
    assert bleu_reward(text, reference) == pytest.approx(score, abs=1e-12)


@given(st.text(), st.text())
@example("\ud800 a b", "\ud800 a b")
@example("a\0b c d", "\n")
def test_no_text_makes_a_score_fail(text, reference):
    for reward in (rouge2_reward, bleu_reward):
        assert 0 <= reward(text, reference) <= 1
        assert reward("", reference) == 0


def test_scores_load_their_libraries_when_they_are_used():
    script = (
        "import sys, diversed_mlx.rewards, diversed_mlx.tasks.cnndm, diversed_mlx.tasks.wmt, diversed_mlx.tasks.mbpp\n"
        "print([name for name in ('rouge_score', 'nltk', 'sacrebleu', 'datasets', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
