"""The help texts: every flag is there, they fit the terminal, and they come without the heavy imports."""

import re
import subprocess
import sys

import pytest
from test_cli_flags import COMMANDS
from test_cli_generate import run

HEAVY = ("mlx", "mlx_lm", "torch", "transformers", "datasets", "huggingface_hub", "numpy")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("command", [[], ["generate"], ["chat"]])
def test_help_fits_the_terminal(command, columns):
    lines = plain(run(*command, "--help", COLUMNS=str(columns)).stdout).splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("command", COMMANDS)
def test_help_at_80_columns_names_every_flag_in_full_and_says_what_it_does(command):
    shown = plain(run(command, "--help", COLUMNS="80").stdout)
    for parameter in COMMANDS[command].params:
        assert parameter.help
        for name in parameter.opts:
            assert re.search(rf"[ ,]{re.escape(name)}[ ,]", shown), name


@pytest.mark.parametrize("columns", [30, 40, 69])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_on_a_narrow_terminal_names_every_flag_in_full_too(command, columns):
    shown = plain(run(command, "--help", COLUMNS=str(columns)).stdout)
    assert max(map(len, shown.splitlines())) <= columns
    for parameter in COMMANDS[command].params:
        assert parameter.help.split()[0] in shown
        for name in parameter.opts:
            assert re.search(rf"(^|[ ,]){re.escape(name)}($|[ ,])", shown, re.MULTILINE), name


@pytest.mark.parametrize("command", COMMANDS)
def test_h_is_help(command):
    assert run(command, "-h").stdout == run(command, "--help").stdout


def test_help_lists_the_commands_with_a_phrase_each():
    shown = plain(run("--help").stdout)
    for name, command in COMMANDS.items():
        assert re.search(rf"{name} +{re.escape(command.help)}", shown)


def test_no_command_shows_the_help():
    assert run(code=2).stdout.strip() == run("--help").stdout.strip()


@pytest.mark.parametrize("args", [["generate", "--help"], ["chat", "--help"], ["generate", "--temp", "x"]])
def test_help_and_bad_usage_load_nothing_heavy(args):
    script = (
        "import sys\n"
        "from diversed_mlx.cli.main import main\n"
        f"sys.argv = {['diversed', *args]!r}\n"
        "try: main()\n"
        "except SystemExit as end: print('status', end.code)\n"
        f"print('loaded', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    status = 0 if "--help" in args else 2
    assert done.stdout.splitlines()[-2:] == [f"status {status}", "loaded []"], done.stderr
