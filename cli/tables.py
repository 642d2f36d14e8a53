"""The rows of a comparison as tables: on a screen of 80 columns, and as markdown."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import typer

if TYPE_CHECKING:
    from diversed_mlx.evaluation.intervals import Interval
    from diversed_mlx.evaluation.rows import Row

FORMULA = "acceptance = accepted / proposed draft tokens"
WIDTH = 80  # columns of a plain terminal


class Column(NamedTuple):
    """A figure of a row: its title, the value with its interval, and how a number of it is written."""

    title: str
    value: "Callable[[Row], float | None]"
    interval: "Callable[[Row], Interval | None]"
    write: Callable[[float], str]


def _percent(value: float) -> str:
    return f"{100 * value:z.1f}"


def _one(value: float) -> str:
    return f"{value:z.1f}"


def _two(value: float) -> str:
    return f"{value:z.2f}"


def _three(value: float) -> str:
    return f"{value:z.3f}"


def columns(metric: str) -> tuple[list[Column], list[Column]]:
    """What is told of quality and agreement, and what of speed.

    Args:
        metric: what the task calls its reward.
    """
    agreement = [
        Column(f"{metric[:9]} %", lambda r: r.quality, lambda r: r.quality_ci, _percent),
        Column("less alone", lambda r: r.quality_difference, lambda r: r.quality_difference_ci, _percent),
        Column("acceptance %", lambda r: r.acceptance_rate, lambda r: r.acceptance_ci, _percent),
        Column("tokens/round", lambda r: r.tokens_per_round, lambda r: r.tokens_per_round_ci, _two),
        Column("less theory", lambda r: r.prediction_error, lambda r: r.prediction_error_ci, _two),
    ]
    speed = [
        Column("tokens/s", lambda r: r.generation_tps, lambda r: r.generation_tps_ci, _one),
        Column("speed-up", lambda r: r.speedup, lambda r: r.speedup_ci, _two),
        Column("s/answer", lambda r: r.seconds, lambda r: r.seconds_ci, _two),
        Column("s to first", lambda r: r.first_token_seconds, lambda r: r.first_token_seconds_ci, _three),
        Column("weight", lambda r: r.mean_target_weight, lambda r: r.mean_target_weight_ci, _two),
        Column("peak GB", lambda r: r.peak_memory_gb, lambda r: None, _three),
    ]
    return agreement, speed


def print_tables(rows: "Sequence[Row]", metric: str, length: int | str, temp: float) -> None:
    """Print two tables, an interval under each figure.

    Args:
        rows: a comparison's.
        metric: what the task calls its reward.
        length: K.
        temp: the temperature.
    """
    typer.echo(f"{rows[0].n} questions, temperature {temp:g}, K = {length}; 95 % intervals under the figures")
    for group in columns(metric):
        cells = [[row.method, *(cell(column, row) for column in group)] for row in rows]
        lines = [["method", *(column.title for column in group)]]
        for row in cells:
            lines += [[row[0], *(value for value, _ in row[1:])], ["", *(interval for _, interval in row[1:])]]
        typer.echo("\n" + "\n".join(_aligned(lines)))
    typer.echo()
    for line in notes(rows):
        typer.echo(line)


def _aligned(lines: list[list[str]]) -> list[str]:
    """Pad columns, the first to the right of its text and the others to the left, as far apart as the width allows."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    gap = " " * (2 if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else 1)
    return [
        gap.join([line[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(line[1:], widths[1:], strict=True))])
        .rstrip()
        for line in lines
    ]  # fmt: skip


def markdown_table(rows: "Sequence[Row]", metric: str) -> str:
    """The figures as one table in markdown.

    Args:
        rows: a comparison's.
        metric: what the task calls its reward.
    """
    all_columns = [column for group in columns(metric) for column in group]
    lines = ["| method | " + " | ".join(column.title for column in all_columns) + " |"]
    lines.append("|---" * (len(all_columns) + 1) + "|")
    for row in rows:
        lines.append(f"| {row.method} | " + " | ".join(_joined(cell(column, row)) for column in all_columns) + " |")
    return "\n".join([*lines, "", *notes(rows), ""])


def notes(rows: "Sequence[Row]") -> list[str]:
    """What a reader has to know about the figures.

    Args:
        rows: a comparison's.
    """
    lines = [
        FORMULA,
        "tokens/round = generated tokens / target passes",
        "less alone: quality less the target alone's, in points, examples paired",
        "less theory: tokens/round less what the drafts make expected; chance's range",
        "speed-up: tokens/s over the target alone's, on this machine, examples paired",
        "peak GB: with both models loaded, whatever the method uses",
    ]
    unjudged = [f"{row.method} {row.unjudged}" for row in rows if row.unjudged]
    if unjudged:
        lines.append(f"NOT JUDGED, left out of the quality: {', '.join(unjudged)} of {rows[0].n} answers")
    return lines


def cell(column: Column, row: "Row") -> tuple[str, str]:
    """A figure and its interval as text, a dash and nothing where there is none.

    Args:
        column: which figure.
        row: whose.
    """
    value, interval = column.value(row), column.interval(row)
    if value is None:
        return "-", ""
    if interval is None:
        return column.write(value), ""
    low, high = (column.write(end) for end in interval)
    return column.write(value), f"{low} to {high}" if low.startswith("-") else f"{low}-{high}"


def _joined(cell: tuple[str, str]) -> str:
    value, interval = cell
    return f"{value} ({interval})" if interval else value
