"""The command `diversed`: registers the commands, and turns errors into one line and an exit status.

Nothing heavy is imported before a command runs, so that `diversed --help` answers at once.
"""

import io
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from diversed_mlx.cli.bench import bench
from diversed_mlx.cli.chat import chat
from diversed_mlx.cli.convert import app as convert
from diversed_mlx.cli.demo import demo
from diversed_mlx.cli.generate import generate
from diversed_mlx.cli.train import train
from diversed_mlx.errors import DiversedError


class OneLineErrors(TyperGroup):
    """Prints a DiversedError as one line and exits with 1; a bug keeps its traceback, bad usage exits with 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except DiversedError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Relaxed speculative decoding for MLX: a small model drafts, a large one verifies, you choose how strictly.",
)
app.command()(chat)
app.command()(generate)
app.command()(train)
app.command()(bench)
app.command()(demo)
app.add_typer(convert, name="convert")


@app.callback()
def _program() -> None:
    """Keep the commands named even when there is only one."""


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an answer is worth more than a character the terminal lacks
    app()


if __name__ == "__main__":
    main()
