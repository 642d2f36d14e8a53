"""Help on narrow terminals, where the usual tables would cut the names of options short."""

import shutil
import textwrap
from typing import Any

from typer.core import TyperCommand, TyperGroup

NARROW = 70  # columns below which a table has no room for names and texts side by side


def _columns() -> int:
    return max(shutil.get_terminal_size().columns, 20)


class Command(TyperCommand):
    """A command whose help has every name in full at any width."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: as a table, or below 70 columns each name on a line of its own."""
        if _columns() >= NARROW:
            super().format_help(ctx, formatter)
        else:
            formatter.write(_listing(self, ctx, []))


class Group(TyperGroup):
    """A group of commands with the same help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: as a table, or below 70 columns each name on a line of its own."""
        if _columns() >= NARROW:
            super().format_help(ctx, formatter)
        else:
            entries = [(name, self.commands[name].get_short_help_str(1000)) for name in self.list_commands(ctx)]
            formatter.write(_listing(self, ctx, entries))


def _listing(command: Any, ctx: Any, entries: list[tuple[str, str]]) -> str:
    """Everything that a help says, in lines that fit."""
    width = _columns()
    lines = [*textwrap.wrap(f"Usage: {ctx.command_path} [OPTIONS]", width), ""]
    lines += textwrap.wrap(command.help or "", width)
    records = [record for parameter in command.get_params(ctx) if (record := parameter.get_help_record(ctx))]
    for name, text in [*entries, *records]:
        # Choices may break at their bars; a name is never broken.
        lines += ["", *textwrap.wrap(name.replace("|", "| "), width, subsequent_indent="  ", break_on_hyphens=False)]
        lines += textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"
