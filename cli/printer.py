"""How an answer looks: its text as it comes, the origin of each token if asked, and the figures behind it."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from diversed_mlx.answer import Response
    from diversed_mlx.evaluation.record import Token
    from diversed_mlx.stats import Stats

COLOURS = {"accepted": typer.colors.GREEN, "corrected": typer.colors.RED, "bonus": typer.colors.CYAN}
# A model may say anything; what would move the cursor or ring the bell is shown as not printable.
CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
HEAT = (17, 18, 19, 55, 54, 90, 89, 125, 124, 160)  # of the 256 colours: blue, violet, red; white is legible on all
MARKS = {"corrected": "[{}]", "bonus": "({})"}  # where there is no colour


def use_colour() -> bool:
    """Tell whether stdout takes colours and nobody asked for none."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def legend() -> str:
    """What the look of a token means under --show-tokens."""
    if use_colour():
        return "tokens: " + ", ".join(typer.style(name, fg=colour) for name, colour in COLOURS.items())
    return "tokens: accepted, [corrected], (bonus)"


def show(response: "Response", show_tokens: bool) -> None:
    """Print the text of one response, marked by the token's origin if asked."""
    text = response.text
    if show_tokens and text:
        if use_colour():
            text = typer.style(text, fg=COLOURS.get(response.origin))
        else:
            text = MARKS.get(response.origin, "{}").format(text)
    sys.stdout.write(text)
    sys.stdout.flush()


def heat_scale() -> str:
    """What the strip under an answer means."""
    if use_colour():
        return "".join(_heat(str(digit), digit) for digit in range(10)) + " from the draft alone to the target alone"
    return "0 for the draft alone to 9 for the target alone"


def lines_with_weights(responses: "Sequence[Response] | Sequence[Token]") -> Iterator[str]:
    """Lay out an answer in lines, each followed by a heat strip of the weights its tokens were verified with.

    A weight is a digit under each character of its token, from 0, the draft alone, to 9, the target alone; on a
    terminal with colours the digit stands on a cell that goes from blue to red.
    """
    text, strip = "", ""
    for response in responses:
        weight = response.target_weight
        digit = None if weight is None else min(9, int(10 * weight))
        for part in response.text.translate(CONTROLS).splitlines(keepends=True):
            piece = part.rstrip("\n")
            mark = "{}" if use_colour() or not piece else MARKS.get(response.origin, "{}")
            marked = mark.format(piece)
            text += typer.style(marked, fg=COLOURS.get(response.origin)) if use_colour() and marked else marked
            cells = " " if digit is None else str(digit)
            cells *= len(marked)
            strip += _heat(cells, digit) if use_colour() and digit is not None and cells else cells
            if part != piece:
                yield from (text, strip.rstrip())
                text, strip = "", ""
    if text:
        yield from (text, strip.rstrip())


def _heat(text: str, digit: int) -> str:
    return typer.style(text, fg=231, bg=HEAT[digit])


def summary(stats: "Stats") -> str:
    """One line of figures; what does not apply is left out."""
    parts = [
        f"{stats.generated_tokens} tokens",
        f"{stats.generation_tps:.1f} tok/s",
    ]
    if stats.acceptance_rate is not None:
        parts.append(f"acceptance {stats.acceptance_rate:.1%} ({stats.accepted}/{stats.proposed})")
        parts.append(f"{stats.tokens_per_round:.2f} tokens per round")
    if stats.mean_target_weight is not None:
        parts.append(f"mean weight on the target {stats.mean_target_weight:.2f}")
    parts.append(f"prompt {stats.prompt_tokens} tokens, {stats.prompt_tps:.1f} tok/s")
    parts.append(f"peak memory {stats.peak_memory_gb:.2f} GB")
    return " | ".join(parts)
