"""How an answer looks: its text as it comes, in one of three ways, and the figures behind it.

A screen takes the responses of one answer and writes them; which screen suits the terminal is decided here.
"""

import os
import shutil
import sys
from typing import TYPE_CHECKING, Protocol

import typer

from diversed_mlx.cli.marks import COLOURS, CONTROLS, TokenMarks, heat

if TYPE_CHECKING:
    from diversed_mlx.answer import Response
    from diversed_mlx.stats import Stats


def use_colour() -> bool:
    """Tell whether stdout takes colours and nobody asked for none; an empty NO_COLOR asks for nothing."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def has_strips() -> bool:
    """Tell whether strips of weights go with marked tokens; a file gets none: a line of it is a line of the answer."""
    return sys.stdout.isatty()


def legend(strips: bool) -> str:
    """What the look of a token means, and that of the strips where there are some."""
    if use_colour():
        names = ", ".join(typer.style(name, fg=colour) for name, colour in COLOURS.items())
    else:
        names = "accepted, [corrected], (bonus)"
    return f"tokens: {names}" + (f"; under them the weight on the target, {_heat_scale()}" if strips else "")


def _heat_scale() -> str:
    if use_colour():
        return "".join(heat(str(digit), digit) for digit in range(10)) + " from the draft alone to the target alone"
    return "0 for the draft alone to 9 for the target alone"


def harmless(text: str) -> str:
    """Replace control characters but tab and newline by U+FFFD on a terminal; a file gets the text as it is."""
    return text.translate(CONTROLS) if sys.stdout.isatty() else text


class Screen(Protocol):
    """Where the text of one answer appears."""

    def add(self, response: "Response") -> None:
        """Show one more token."""
        ...

    def finish(self) -> None:
        """End the answer's last line, whether the answer ended or was stopped."""
        ...


class PlainScreen:
    """The text as it comes."""

    def add(self, response: "Response") -> None:
        """Write the text of a token."""
        _write(harmless(response.text))

    def finish(self) -> None:
        """End the line."""
        _write("\n")


class TokenScreen:
    """The text with the origin of each token and, on a terminal, a strip of weights under each line."""

    def __init__(self):
        width = shutil.get_terminal_size().columns if has_strips() else None
        self._marks = TokenMarks(colour=use_colour(), strips=has_strips(), width=width)

    def add(self, response: "Response") -> None:
        """Write the text of a token with its mark."""
        _write(self._marks.add(harmless(response.text), response.origin, response.target_weight))

    def finish(self) -> None:
        """End the line, and write the strip under it."""
        _write(self._marks.end_line())


def make_screen(show_tokens: bool, markdown: bool) -> Screen:
    """Make the screen of one answer.

    Args:
        show_tokens: mark tokens by their origin.
        markdown: lay the text out as Markdown, where the terminal can.
    """
    if show_tokens:
        return TokenScreen()
    if markdown and use_colour():
        from diversed_mlx.cli.markdown import MarkdownScreen  # rich's Markdown takes a while to import

        return MarkdownScreen()
    return PlainScreen()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def count(number: int, what: str) -> str:
    """A number of things: 1 token, 2 tokens."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def summary(stats: "Stats") -> str:
    """One line of figures; what does not apply is left out."""
    parts = [
        count(stats.generated_tokens, "token"),
        f"{stats.generation_tps:.1f} tok/s",
    ]
    if stats.acceptance_rate is not None:
        parts.append(f"acceptance {stats.acceptance_rate:.1%} ({stats.accepted}/{stats.proposed})")
        parts.append(f"{stats.tokens_per_round:.2f} tokens per round")
    if stats.mean_target_weight is not None:
        parts.append(f"mean weight on the target {stats.mean_target_weight:.2f}")
    parts.append(f"prompt {count(stats.prompt_tokens, 'token')}, {stats.prompt_tps:.1f} tok/s")
    parts.append(f"peak memory {stats.peak_memory_gb:.2f} GB")
    return " | ".join(parts)
