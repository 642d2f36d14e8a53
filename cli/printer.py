"""How an answer looks: its text as it comes, the origin of each token if asked, and the figures behind it."""

import os
import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from diversed_mlx.answer import Response
    from diversed_mlx.stats import Stats

COLOURS = {"accepted": typer.colors.GREEN, "corrected": typer.colors.RED, "bonus": typer.colors.CYAN}
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
