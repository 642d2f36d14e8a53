"""Scores of a text against a reference: pure functions that take any text and never raise."""

import re
from collections.abc import Iterator
from fractions import Fraction

# A sign that is not a hyphen between words or numbers, a currency, then digits with or without thousands separators.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w.)])[-−]\s?)?[$€£¥]?\s?(?P<late_sign>(?<=[$€£¥])[-−])?"
    r"(?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?P<decimals>\.\d+)?",
    re.ASCII,
)
_DENOMINATOR = re.compile(r"\s?/\s?(\d+)(?![\d/.])", re.ASCII)
_LONGEST = 64  # digits of a number that is still one; more are a model repeating itself


def final_number(text: str) -> Fraction | None:
    r"""Find the number that a worked answer gives as its result.

    It is the first one after the last `####`; else the last one within the last `\boxed{...}`; else the last one of
    the text. Thousands separators, currencies, decimals, fractions, negative numbers and units are understood.

    Args:
        text: the answer.

    Returns:
        Its exact value, or None where there is none.
    """
    _, marker, rest = text.rpartition("####")
    if marker:
        return next(_numbers(rest.split("\n")[0]), None)
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


def _inside_braces(text: str) -> str:
    """The text up to the brace that closes one opened before it, LaTeX fractions written with a slash."""
    depth = 1
    for i, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            text = text[:i]
            break
    return re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text).replace("{,}", ",")


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
        divided = _DENOMINATOR.match(text, position)
        if divided and len(divided[1]) <= _LONGEST and int(divided[1]):
            value, position = value / int(divided[1]), divided.end()
        yield -value if found["sign"] or found["late_sign"] else value
