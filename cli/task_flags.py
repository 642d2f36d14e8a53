"""The flags that say what is asked: a task by name or in a file of one's own, and where its rows come from."""

from pathlib import Path
from typing import Annotated

import typer

DATA = "Data"

TaskName = Annotated[
    str | None,
    typer.Argument(
        help="arithmetic, gsm8k, cnndm, xsum, mbpp, humaneval or wmt; leave it out with --task-file.",
        show_default=False,
    ),
]
Rows = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder or file of JSONL or parquet rows with the task's columns.",
        show_default="the Hub's",
        rich_help_panel=DATA,
    ),
]
TaskFile = Annotated[
    Path | None, typer.Option(help="Python file that defines a task of your own.", rich_help_panel=DATA)
]
AllowCodeExecution = Annotated[
    bool,
    typer.Option("--allow-code-execution", help="Run code that the models write, to judge it.", rich_help_panel=DATA),
]
