"""An answer laid out as Markdown while it comes.

A block (paragraph, list, fenced code, table) is drawn again and again at the end of the screen until it is finished,
and then once for good: what is finished never moves. Only as much of an unfinished block is drawn as the screen has
room for, and its rows are counted anew at each drawing, for the terminal may have been made narrower in between.
"""

import re
import shutil
import sys
import time
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console
from rich.markdown import Markdown

from diversed_mlx.cli.marks import CONTROLS

if TYPE_CHECKING:
    from diversed_mlx.answer import Response

PERIOD = 0.08  # seconds between drawings: a slow terminal must not slow the models
STYLE = re.compile(r"\x1b\[[\d;]*m")
PADDING = re.compile(r" +((?:\x1b\[[\d;]*m)*)$")  # rich fills lines up, and a copied answer should have no such spaces
FENCE = re.compile(r" {0,3}(```|~~~)")
# Tags are text here: an answer about HTML must show them.
PARSER = MarkdownIt().enable(["strikethrough", "table"]).disable(["html_block", "html_inline"])


class MarkdownScreen:
    """Draws the text of one answer."""

    def __init__(self):
        self._pending = ""  # text of the block that is not finished
        self._drawn: list[int] = []  # cells of each line of its drawing
        self._next = 0.0  # time of the next drawing
        self._begun = False  # whether a finished block stands above

    def add(self, response: "Response") -> None:
        """Take the text of a token, and draw."""
        self._pending += response.text.translate(CONTROLS)
        finished, self._pending = split_blocks(self._pending)
        if finished:
            self._settle(finished)
        if time.monotonic() >= self._next:
            self._draw()
            self._next = time.monotonic() + PERIOD

    def finish(self) -> None:
        """Draw what is left for good."""
        self._settle([self._pending])
        self._pending = ""

    def _settle(self, blocks: list[str]) -> None:
        written = self._erase()
        for block in blocks:
            if lines := render(block):
                written += ("\n" if self._begun else "") + "".join(f"{line}\n" for line, _ in lines)
                self._begun = True
        _write(written)

    def _draw(self) -> None:
        lines = render(self._pending)
        if not lines:
            return
        if self._begun:
            lines = [("", 0), *lines]
        lines = lines[-max(shutil.get_terminal_size().lines - 2, 1) :]
        erased = self._erase()
        self._drawn = [cells for _, cells in lines]
        _write(erased + "\n".join(line for line, _ in lines))

    def _erase(self) -> str:
        """What removes the drawing; the cursor is at the end of its last line."""
        if not self._drawn:
            return ""
        width = max(shutil.get_terminal_size().columns, 1)
        rows = sum(max(1, -(-cells // width)) for cells in self._drawn)
        self._drawn = []
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "") + "\x1b[J"


def split_blocks(text: str) -> tuple[list[str], str]:
    """Split text into blocks that nothing to come can change, and the rest.

    A block ends at an empty line outside fenced code that a line follows which is not indented, for an indented one may
    belong to a list before it.
    """
    blocks, start, position, fence, empty = [], 0, 0, "", False
    for line in text.splitlines(keepends=True):
        if empty and not fence and line[0] not in " \t\n":
            blocks.append(text[start:position])
            start = position
        if mark := FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        empty = line.endswith("\n") and not line.strip()
        position += len(line)
    return blocks, text[start:]


def render(block: str) -> list[tuple[str, int]]:
    """Lay out a block of Markdown: lines with their styles, and the cells of each."""
    width = max(shutil.get_terminal_size().columns, 10)
    console = Console(force_terminal=True, width=width, legacy_windows=False)
    markdown = Markdown(block, code_theme="ansi_dark", hyperlinks=False)
    markdown.parsed = PARSER.parse(_keep_breaks(block))
    with console.capture() as captured:
        console.print(markdown)
    lines = []
    for line in captured.get().split("\n"):
        shown = PADDING.sub(r"\1", line)
        lines.append((shown, cell_len(STYLE.sub("", shown))))
    while lines and lines[0][1] == 0:
        lines.pop(0)
    while lines and lines[-1][1] == 0:
        lines.pop()
    return lines


def _keep_breaks(block: str) -> str:
    """Let a line of a paragraph stay a line, as the model wrote it: poems, addresses, steps of a calculation."""
    fence, kept = "", []
    for line in block.split("\n"):
        if mark := FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        kept.append(line if fence or not line.strip() else line + "  ")
    return "\n".join(kept)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
