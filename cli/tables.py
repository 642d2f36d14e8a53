"""The rows of a comparison as tables: on a screen of 80 columns, and as markdown."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import typer

from diversed_mlx.cli.printer import use_colour

if TYPE_CHECKING:
    from diversed_mlx.evaluation.intervals import Interval
    from diversed_mlx.evaluation.rows import Row

FORMULA = "acceptance = accepted / proposed draft tokens; tokens/round = generated tokens / target passes"
NARROW = 80  # columns where nobody looks, as in a file


class Column(NamedTuple):
    """A figure of a row: its title, the value with its interval, and how a number of it is written."""

    title: str
    value: "Callable[[Row], float | None]"
    interval: "Callable[[Row], Interval | None]"
    write: Callable[[float], str]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _two(value: float) -> str:
    return f"{value:.2f}"


def _one(value: float) -> str:
    return f"{value:.1f}"


def _three(value: float) -> str:
    return f"{value:.3f}"


def columns(metric: str) -> tuple[list[Column], list[Column]]:
    """What is told of quality and agreement, and what of speed.

    Args:
        metric: what the task calls its reward.
    """
    agreement = [
        Column(f"{metric} %", lambda r: r.quality, lambda r: r.quality_ci, _percent),
        Column("less alone", lambda r: r.quality_difference, lambda r: r.quality_difference_ci, _percent),
        Column("acceptance %", lambda r: r.acceptance_rate, lambda r: r.acceptance_ci, _percent),
        Column("tokens/round", lambda r: r.tokens_per_round, lambda r: r.tokens_per_round_ci, _two),
        Column("less theory", lambda r: r.prediction_error, lambda r: r.prediction_error_ci, _three),
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
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(no_color=not use_colour(), width=None if use_colour() else NARROW)
    typer.echo(f"\n{rows[0].n} questions, temperature {temp:g}, K = {length}; 95 % intervals under the figures")
    for group in columns(metric):
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        table.add_column("method", no_wrap=True)
        for column in group:
            table.add_column(column.title, justify="right")
        for row in rows:
            table.add_row(row.method, *(_cell(column, row, "\n") for column in group))
        console.print(table)
    for line in notes(rows):
        typer.echo(line)


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
        lines.append(f"| {row.method} | " + " | ".join(_cell(column, row, " ") for column in all_columns) + " |")
    return "\n".join([*lines, "", *notes(rows), ""])


def notes(rows: "Sequence[Row]") -> list[str]:
    """What a reader has to know about the figures.

    Args:
        rows: a comparison's.
    """
    lines = [
        FORMULA,
        "less alone: quality less that of the target alone, in points, examples paired",
        "less theory: tokens/round less what its own drafts make expected; the interval should hold 0",
        "speed-up: tokens/s over the target alone, on this machine; peak GB with both models loaded",
    ]
    unjudged = [f"{row.method} {row.unjudged}" for row in rows if row.unjudged]
    if unjudged:
        lines.append(f"NOT JUDGED and left out of the quality: {', '.join(unjudged)} of {rows[0].n} answers")
    return lines


def _cell(column: Column, row: "Row", between: str) -> str:
    value, interval = column.value(row), column.interval(row)
    if value is None:
        return "-"
    if interval is None:
        return column.write(value)
    # A dash between the ends reads well unless one of them is negative.
    return f"{column.write(value)}{between}({', '.join(column.write(end) for end in interval)})"
