"""`diversed demo`: problems answered in each way and measured, offline, on the embedded pair."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diversed_mlx.cli.marks import lines_with_weights
from diversed_mlx.cli.options import Temp, device, note
from diversed_mlx.cli.printer import legend, use_colour
from diversed_mlx.errors import DiversedError

if TYPE_CHECKING:
    from diversed_mlx.evaluation.record import Answer
    from diversed_mlx.evaluation.rows import Row

TOLD = 2  # problems whose answers are printed
TITLES = {"none": "target alone", "draft": "draft alone"}


def demo(
    n_examples: Annotated[int, typer.Option(min=2, help="Problems that are measured.")] = 12,
    methods: Annotated[
        str,
        typer.Option(
            help="What is compared, by commas: none, draft, lossless, static:W, dynamic[:S], lenient:L, cascade-opt:A, "
            "cascade-token:A, mlx-lm."
        ),
    ] = "none,lossless,static:0.95,dynamic",
    head: Annotated[
        str | None,
        typer.Option(help="Head of the dynamic method.", show_default="yours for this pair, else the one that ships"),
    ] = None,
    temp: Temp = 1.0,
    num_draft_tokens: Annotated[int, typer.Option(min=1, max=64, help="Tokens drafted a round.")] = 4,
    seed: Annotated[int, typer.Option(min=0, max=2**61, help="Makes a run repeatable, but for its times.")] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the table's figures to a file.")
    ] = None,
) -> None:
    """Answer word problems with the embedded pair, side by side, and measure each way."""
    from tqdm import tqdm

    from diversed_mlx.evaluation.engine import Settings
    from diversed_mlx.evaluation.methods import expand, make_method
    from diversed_mlx.evaluation.rows import summarise
    from diversed_mlx.evaluation.runner import run
    from diversed_mlx.files import write_whole
    from diversed_mlx.heads import find_head, load_head, other_task
    from diversed_mlx.pair import load_pair
    from diversed_mlx.sampling import Sampling
    from diversed_mlx.tasks.arithmetic import Arithmetic

    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise DiversedError(f"cannot write {json_file}: its folder does not exist")
    pair = load_pair(target="tiny-target", draft="tiny-draft")
    found = head or find_head(pair, "arithmetic")
    trained = load_head(found, pair) if found is not None else None
    if trained is not None and (other := other_task(trained, "arithmetic")) is not None:
        note(f"warning: the head {found} was trained for {other}: expect less quality on other tasks")
    compared = {method: make_method(method, pair, trained) for method in expand(methods)}
    task = Arithmetic()
    answers: list[Answer] = []
    results = run(
        pair,
        task,
        task.examples("test", n_examples, seed),
        compared,
        Settings(sampling=Sampling(temp=temp), num_draft_tokens=num_draft_tokens, max_tokens=task.max_tokens),
        seed=seed,
    )
    typer.echo("A small draft proposes, a larger target checks: how strictly is the question.")
    typer.echo(legend(strips=True))
    progress = tqdm(total=n_examples * len(compared), unit="answer", leave=False)
    for answer in results:
        answers.append(answer)
        progress.update()
        if len(answers) == TOLD * len(compared):
            progress.clear()
            _tell(answers, list(compared))
    progress.close()
    rows = summarise(answers)
    _table(rows, n_examples)
    if json_file is not None:
        described = {
            "task": task.name, "n": n_examples, "temp": temp, "num_draft_tokens": num_draft_tokens, "seed": seed,
            "device": device(), "rows": [row.to_json() for row in rows],
        }  # fmt: skip
        write_whole(json_file, json.dumps(described, indent=2) + "\n")
        note(f"wrote {json_file}")


def _tell(answers: "Sequence[Answer]", methods: list[str]) -> None:
    for question in dict.fromkeys(answer.question for answer in answers):
        typer.echo(f"\n{question}")
        told = {answer.method: answer for answer in answers if answer.question == question}
        for method in methods:
            answer = told[method]
            verdict = "right" if answer.quality == 1 else "wrong"
            typer.echo(f"\n  {TITLES.get(method, method)} ({verdict}, {len(answer.reply.rounds)} target passes)")
            for line in lines_with_weights(answer.reply.tokens, colour=use_colour()):
                typer.echo(f"    {line}")


def _table(rows: "Sequence[Row]", n_examples: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{n_examples} problems, 95 % intervals in brackets")
    for column in ("method", "accuracy", "acceptance", "tokens/round", "tokens/s", "speed-up"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        table.add_row(
            TITLES.get(row.method, row.method),
            _share(row.quality, row.quality_ci),
            _share(row.acceptance_rate, row.acceptance_ci),
            f"{row.tokens_per_round:.2f}",
            f"{row.generation_tps:.0f}",
            "-" if row.speedup is None or row.speedup_ci is None
            else f"{row.speedup:.2f} [{row.speedup_ci[0]:.2f}, {row.speedup_ci[1]:.2f}]",
        )  # fmt: skip
    typer.echo()
    Console(no_color=not use_colour(), width=None if use_colour() else 100).print(table)
    typer.echo("acceptance = accepted / proposed draft tokens; speed-up is over the target alone, on this machine")


def _share(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None or interval is None:
        return "-"
    return f"{value:.1%} [{interval[0]:.1%}, {interval[1]:.1%}]"
