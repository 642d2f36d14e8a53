"""A comparison as one page of HTML that needs nothing beside it: figures, pictures, and answers token by token.

Everything that a model or a data set said is escaped. The page follows the reader's choice of light or dark.
"""

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from diversed_mlx.cli.tables import cell, columns, notes

if TYPE_CHECKING:
    from diversed_mlx.evaluation.record import Answer, Token
    from diversed_mlx.evaluation.rows import Row

SHOWN = 3  # examples whose answers are printed
STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --ground: #ffffff; --line: #cccccc; --weight: 213, 94, 0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --ground: #16181c; --line: #44484f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
div.wide { overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td small { display: block; opacity: .7; }
img { max-width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 14px/1.9 ui-monospace, monospace; margin: .2rem 0 1rem; }
.t { background: rgba(var(--weight), calc(var(--w) * .55)); border-bottom: 2px solid transparent; }
.accepted { border-bottom-color: #0072b2; }
.corrected { border-bottom: 2px dashed #d55e00; }
.bonus { border-bottom: 2px dotted #009e73; }
"""


def page(
    rows: "Sequence[Row]", answers: "Sequence[Answer]", metric: str, title: str, pictures: dict[str, bytes]
) -> str:
    """Write the page.

    Args:
        rows: the figures.
        answers: what they were made of; those to the first examples are printed.
        metric: what the task calls its reward.
        title: of the page.
        pictures: PNG files by what they show.
    """
    parts = [
        f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>",
        f'<meta name=viewport content="width=device-width"><style>{STYLE}</style><h1>{escape(title)}</h1>',
        _table(rows, metric),
        *(f"<p>{escape(line)}</p>" for line in notes(rows)),
        *(
            f'<h2>{escape(name)}</h2><img alt="{escape(name)}" src="data:image/png;base64,'
            f'{base64.b64encode(content).decode()}">'
            for name, content in pictures.items()
        ),
        "<h2>Answers, token by token</h2><p>The stronger a token's ground, the more weight on the target it was "
        "verified with. Underlined: <span class='t accepted' style='--w:0'>accepted from the draft</span>, "
        "<span class='t corrected' style='--w:0'>corrected by the target</span>, "
        "<span class='t bonus' style='--w:0'>the target's bonus</span>. Point at a token for the number.</p>",
    ]
    for number in sorted({answer.number for answer in answers})[:SHOWN]:
        told = {answer.method: answer for answer in answers if answer.number == number}
        parts.append(f"<h3>Example {number}</h3><pre>{escape(next(iter(told.values())).question)}</pre>")
        for row in rows:
            if (answer := told.get(row.method)) is not None:
                judged = "not judged" if answer.quality is None else f"{metric} {answer.quality:g}"
                parts.append(
                    f"<b>{escape(row.method)}</b> ({escape(judged)}, {len(answer.reply.rounds)} target passes)"
                    f"<pre>{''.join(_span(token) for token in answer.reply.tokens)}</pre>"
                )
    return "\n".join([*parts, "</html>\n"])


def _table(rows: "Sequence[Row]", metric: str) -> str:
    wanted = [column for group in columns(metric) for column in group]
    head = "".join(f"<th>{escape(column.title)}" for column in wanted)
    lines = []
    for row in rows:
        cells = (cell(column, row) for column in wanted)
        lines.append(
            f"<tr><td>{escape(row.method)}"
            + "".join(f"<td>{escape(value)}<small>{escape(interval)}</small>" for value, interval in cells)
        )
    return f"<div class=wide><table><tr><th>method{head}\n" + "\n".join(lines) + "</table></div>"


def _span(token: "Token") -> str:
    verified = token.target_weight is not None and token.origin != "bonus"
    weight = f"{token.target_weight:.3f}" if verified else "0"
    tip = f"{token.origin}, weight {weight}" if verified else token.origin
    return f'<span class="t {token.origin}" style="--w:{weight}" title="{tip}">{escape(token.text)}</span>'
