"""Tokens marked by where they come from, and a strip of the weights they were verified with under each line.

A weight is a digit under each cell of its token, from 0, the draft alone, to 9, the target alone; with colours the
digit stands on a cell that goes from blue to red. Knows no stream: it turns tokens into what is to be written.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from diversed_mlx.answer import Response
    from diversed_mlx.evaluation.record import Token

COLOURS = {"accepted": typer.colors.GREEN, "corrected": typer.colors.RED, "bonus": typer.colors.CYAN}
MARKS = {"corrected": "[{}]", "bonus": "({})"}  # where there is no colour
HEAT = (17, 18, 19, 55, 54, 90, 89, 125, 124, 160)  # of the 256 colours: blue, violet, red; white is legible on all
# A model may say anything; what would move the cursor or ring the bell is shown as not printable.
CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
TAB = " " * 4


def heat(text: str, digit: int) -> str:
    """Text on the colour of a weight, a digit from 0 to 9."""
    return typer.style(text, fg=231, bg=HEAT[digit])


class TokenMarks:
    """Marks the tokens of one answer as they come.

    Args:
        colour: mark by colours, else by brackets.
        strips: follow each line by a strip of weights.
        width: cells in which a line must fit with its strip; None for no limit.
    """

    def __init__(self, *, colour: bool, strips: bool, width: int | None = None):
        self._colour, self._strips, self._width = colour, strips, width
        self._cells = 0  # of the line so far
        self._strip = ""

    def add(self, text: str, origin: str, target_weight: float | None) -> str:
        """Return what to write for the text of one token."""
        written = ""
        digit = None if target_weight is None else min(9, int(10 * target_weight))
        for index, piece in enumerate(text.split("\n")):
            if index:
                written += self.end_line()
            if piece:
                marked = piece if self._colour else MARKS.get(origin, "{}").format(piece)
                written += self._lay(marked, origin, digit)
        return written

    def end_line(self) -> str:
        """Return what ends the line: a newline, and the strip with its own if it says anything."""
        strip = self._strip.rstrip()
        self._cells, self._strip = 0, ""
        return f"\n{strip}\n" if strip else "\n"

    def _lay(self, text: str, origin: str, digit: int | None) -> str:
        """Put text on the line, and on further ones where it does not fit."""
        if not self._strips:
            return self._styled(text, origin)
        from rich.cells import cell_len

        written, line = "", ""
        for character in text.replace("\t", TAB):
            cells = cell_len(character)
            if self._width is not None and self._cells + cells > self._width > cells:
                written += self._styled(line, origin) + self.end_line()
                line = ""
            line += character
            self._cells += cells
            self._strip += " " * cells if digit is None else self._heat(str(digit) * cells, digit)
        return written + self._styled(line, origin)

    def _styled(self, text: str, origin: str) -> str:
        return typer.style(text, fg=COLOURS.get(origin)) if self._colour and text else text

    def _heat(self, cells: str, digit: int) -> str:
        return heat(cells, digit) if self._colour and cells else cells


def lines_with_weights(responses: "Iterable[Response] | Iterable[Token]", *, colour: bool) -> Iterator[str]:
    """Lay out a whole answer in lines, each followed by its strip if its tokens have weights.

    Args:
        responses: of one answer.
        colour: mark by colours, else by brackets.
    """
    marks = TokenMarks(colour=colour, strips=True)
    text = "".join(marks.add(r.text.translate(CONTROLS), r.origin, r.target_weight) for r in responses)
    yield from (text + marks.end_line()).removesuffix("\n").split("\n")
