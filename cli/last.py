"""The last answer, token by token: where each comes from, what it was checked with, and what was rejected."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from diversed_mlx.cli.marks import COLOURS, CONTROLS
from diversed_mlx.cli.printer import use_colour

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from diversed_mlx.answer import Response

PAGE = 40  # tokens shown at once where there is no screen to fill
NARROW = 64  # columns below which the table is drawn closer
COLUMNS = ("#", "token", "from", "w", "p", "q", "chance")
EXPLAINED = (
    "w weight on the target; p target's and q draft's probability of the token; chance that the draft was accepted"
)


class Line(NamedTuple):
    """One line of the table; a rejected draft has no number."""

    number: int | None
    token: int
    origin: str
    weight: float | None
    p: float | None
    q: float | None
    chance: float | None
    last_of_round: bool


def lines(responses: "Sequence[Response]") -> Iterator[Line]:
    """Tell an answer, each rejected draft before the token that took its place."""
    place = 0  # in the round
    for number, response in enumerate(responses, start=1):
        block = response.block
        if number > 1 and block is not responses[number - 2].block:
            place = 0
        last = number == len(responses) or responses[number].block is not block
        chance = None
        if response.origin == "accepted":
            chance = block.accept_probabilities[place]
        elif response.origin == "corrected" and place < len(block.draft_tokens):
            rejected, its_chance = block.draft_tokens[place], block.accept_probabilities[place]
            yield Line(None, rejected, "rejected", response.target_weight, None, None, its_chance, False)
        yield Line(
            number, response.token, response.origin, response.target_weight, response.target_probability,
            response.draft_probability, chance, last,
        )  # fmt: skip
        place += 1


def show_last(responses: "Sequence[Response]", tokenizer: "TokenizerWrapper", first: int) -> None:
    """Print a page of the table on stderr.

    Args:
        responses: of the answer.
        tokenizer: gives each token's text.
        first: number of the first token shown, from 1.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 100
    narrow = width < NARROW
    table = Table(box=None if narrow else box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0) if narrow else (0, 1))
    for column in COLUMNS:
        flexible = column == "token"
        table.add_column(
            column, justify="left" if column in ("token", "from") else "right", no_wrap=True, overflow="ellipsis",
            min_width=4 if flexible else None, max_width=24 if flexible else None,
        )  # fmt: skip
    room = shutil.get_terminal_size().lines - 8  # for the heading, the lines under the table and the next prompt
    # Three quarters: rejected drafts and the space between rounds take lines too.
    page = range(first, first + (max(room * 3 // 4, 5) if sys.stderr.isatty() else PAGE))
    following = 0  # number of the token that a rejected draft stands before
    for line in lines(responses):
        following = line.number or following + 1
        if following not in page:
            continue
        style = COLOURS.get(line.origin, "dim" if line.origin == "rejected" else "")
        text = tokenizer.decode([line.token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        cells = (_share(line.weight), _share(line.p), _share(line.q), _share(line.chance))
        origin = line.origin[:3] if narrow else line.origin
        table.add_row(
            str(line.number or ""), Text(visible(text), style), Text(origin, style), *cells,
            end_section=line.last_of_round and not narrow,
        )  # fmt: skip
    console = Console(stderr=True, no_color=not use_colour(), width=width, highlight=False, soft_wrap=False)
    console.print(table)
    console.print(EXPLAINED)
    if len(responses) > page[-1]:
        console.print(f"tokens {first} to {page[-1]} of {len(responses)}; /last {page[-1] + 1} goes on")


def visible(text: str) -> str:
    """A token's text with what has no shape made visible."""
    shown = text.replace("\n", "\\n").replace("\t", "\\t").translate(CONTROLS)
    return shown.replace(" ", "\u00b7") or "\u00b7"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
