"""The command `diversed`: registers the commands, and turns errors into one line and an exit status.

Nothing heavy is imported before a command runs, so that `diversed --help` answers at once.
"""

import errno
import sys
from contextlib import suppress
from typing import Any

import typer

from diversed_mlx.cli.bench import bench
from diversed_mlx.cli.chat import chat
from diversed_mlx.cli.convert import app as convert
from diversed_mlx.cli.demo import demo
from diversed_mlx.cli.doctor import doctor
from diversed_mlx.cli.generate import generate
from diversed_mlx.cli.help import Command, Group
from diversed_mlx.cli.streams import FULL, discard_stdout, one_interrupt_a_key, open_closed_streams
from diversed_mlx.cli.train import train
from diversed_mlx.cli.tune import tune
from diversed_mlx.errors import DiversedError


class OneLineErrors(Group):
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
app.command(cls=Command)(chat)
app.command(cls=Command)(generate)
app.command(cls=Command)(train)
app.command(cls=Command)(bench)
app.command(cls=Command)(demo)
app.command(cls=Command)(tune)
app.command(cls=Command)(doctor)
app.add_typer(convert, name="convert")


@app.callback()
def _program() -> None:
    """Keep the commands named even when there is only one."""


def main() -> None:
    """Run the command line."""
    if not open_closed_streams():
        typer.echo("error: stdout is closed, so there is nowhere to answer", err=True)
        sys.exit(1)
    one_interrupt_a_key()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, *FULL):
            raise
        discard_stdout()
        if error.errno != errno.EPIPE:  # a reader that went away knows
            with suppress(OSError):  # stderr may be as full
                typer.echo(f"error: cannot write the answer: {error.strerror}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
