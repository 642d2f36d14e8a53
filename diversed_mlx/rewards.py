"""Scores of a text against a reference: pure functions that take any text and never raise."""

import functools
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

# A sign that is not a hyphen between words or numbers, a currency, then digits with or without thousands separators.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w.)])[-−]\s?)?[$€£¥]?\s?(?P<late_sign>(?<=[$€£¥])[-−])?"
    r"(?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?P<decimals>\.\d+)?",
    re.ASCII,
)
_DENOMINATOR = re.compile(r"\s?/\s?(\d+)(?![\d/]|\.\d)", re.ASCII)
_PART = re.compile(r"[ \t]+(\d{1,9})/(\d{1,9})(?![\d/]|\.\d)", re.ASCII)  # what follows the 1 in 1 1/2
_LONGEST = 64  # digits of a number that is still one; more are a model repeating itself


def final_number(text: str) -> Fraction | None:
    r"""Find the number that a worked answer gives as its result.

    It is the first one after the last `####`; else the last one within the last `\boxed{...}`; else the last one of
    the text. Thousands separators, currencies, decimals, fractions, mixed numbers, negative numbers and units are
    understood.

    Args:
        text: the answer.

    Returns:
        Its exact value, or None where there is none.
    """
    _, marker, rest = text.rpartition("####")
    if marker:
        return next(_numbers(rest.lstrip().split("\n")[0]), None)
    _, box, rest = text.rpartition("\\boxed{")
    numbers = list(_numbers(_inside_braces(rest) if box else text))
    return numbers[-1] if numbers else None


def final_number_reward(text: str, answer: str) -> float:
    """Give 1 where a text and a reference answer end in the same number, else 0.

    Args:
        text: the answer to judge.
        answer: the reference; without a number nothing is right.
    """
    number = final_number(text)
    return float(number is not None and number == final_number(answer))


def rouge2_reward(text: str, reference: str) -> float:
    """Give ROUGE-2: the F1 of the pairs of neighbouring words that a text and a reference share (Lin, 2004).

    Words are lower-case letters and digits, stemmed by Porter's rules as in the papers' own figures; a text is taken
    whole, across its lines. Only ASCII counts as a letter: it is a measure for English.

    Args:
        text: the summary to judge; without two words it gets 0.
        reference: what it is compared with.
    """
    return float(_rouge().score(reference, text)["rouge2"].fmeasure)


@functools.cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge2"], use_stemmer=True)


def bleu_reward(text: str, reference: str) -> float:
    """Give a sentence's BLEU between 0 and 1 (Papineni et al., 2002), as sacrebleu calculates it.

    Words are split by sacrebleu's default, 13a; n-grams up to 4, or up to the sentence's length where it is shorter
    (`effective_order`); counts of zero are smoothed by its default, "exp".

    Args:
        text: the translation to judge.
        reference: what it is compared with.
    """
    score = _bleu().sentence_score(text, [reference]).score / 100
    return min(max(score, 0.0), 1.0)  # a perfect one comes a rounding error above 1


@functools.cache
def _bleu() -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True)


def _inside_braces(text: str) -> str:
    """The text up to the brace that closes one opened before it, LaTeX fractions written with a slash."""
    depth = 1
    for i, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            text = text[:i]
            break
    text = text.replace("{,}", ",").replace(",\\!", ",")
    return re.sub(r"(\d?)\s*\\[dt]?frac\{(-?\d+)\}\{(\d+)\}", _with_slash, text, flags=re.ASCII)


def _with_slash(fraction: re.Match[str]) -> str:
    r"""Write `1\frac{1}{2}` as 1 1/2."""
    whole, above, below = fraction.groups()
    return f"{whole} {above}/{below}" if whole else f"{above}/{below}"


def _numbers(text: str) -> Iterator[Fraction]:
    """Every number of a text, in its order."""
    position = 0
    while position < len(text):
        found = _NUMBER.match(text, position)
        if found is None or not (found["whole"] or found["decimals"]):
            position += 1
            continue
        position = found.end()
        digits = (found["whole"] or "0").replace(",", "") + (found["decimals"] or "")
        if len(digits) > _LONGEST:
            continue
        value = Fraction(digits)
        part = _PART.match(text, position)
        divided = _DENOMINATOR.match(text, position)
        if part and not found["decimals"] and int(part[1]) < int(part[2]):
            value, position = value + Fraction(int(part[1]), int(part[2])), part.end()
        elif divided and len(divided[1]) <= _LONGEST and int(divided[1]):
            value, position = value / int(divided[1]), divided.end()
        yield -value if found["sign"] or found["late_sign"] else value
