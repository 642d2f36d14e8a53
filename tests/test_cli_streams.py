"""Standard streams that are closed or full, and a Ctrl-C key that bounces: one line each, never a traceback."""

import signal
import sys
import time

import pytest
from test_cli_terminal import START, environment, process

from diversed_mlx.cli.streams import one_interrupt_a_key

TINY = ["--draft", "tiny-draft", "--target", "tiny-target", "-m", "5"]


def shell(redirection: str, *arguments: str):
    """Run the command with its streams redirected."""
    return process(["bash", "-c", f'"$@" {redirection}', "bash", sys.executable, "-c", START, *arguments])


@pytest.mark.parametrize(
    "arguments",
    [("generate", "-p", "hi", *TINY), ("--help",), pytest.param(("demo", "--n-examples", "2"), marks=pytest.mark.slow)],
)
def test_a_full_disk_is_one_line(arguments):
    done = shell("> /dev/full", *arguments)
    assert done.stderr.splitlines()[-1] == b"error: cannot write the answer: No space left on device"
    assert b"Traceback" not in done.stderr
    assert done.returncode == 1


def test_a_closed_stdout_is_one_line():
    done = shell(">&-", "generate", "-p", "hi", *TINY)
    assert done.stderr == b"error: stdout is closed, so there is nowhere to answer\n"
    assert done.returncode == 1


def test_a_closed_stdin_is_an_empty_one():
    done = shell("<&-", "generate", "-p", "-", *TINY)
    assert (done.returncode, done.stderr) == (1, b"error: the prompt is empty\n")
    done = shell("<&-", "chat", *TINY)
    assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_without_a_stderr_there_is_no_traceback_on_stdout(redirection):
    done = shell(redirection, "generate", "-p", "hi", *TINY)
    assert b"Traceback" not in done.stdout
    assert done.returncode == (0 if redirection == "2>&-" else 1)


@pytest.fixture
def handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_many_interrupts_in_a_moment_are_one(handler, monkeypatch):
    one_interrupt_a_key()
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    for _ in range(5):  # a key that is held: each belongs to the one before
        now += 0.1
        signal.raise_signal(signal.SIGINT)
    now += 0.4
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_shell_that_switched_interrupts_off_is_obeyed(handler):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    one_interrupt_a_key()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_the_environment_of_these_tests_has_no_home():
    assert environment()["DIVERSED_HOME"].startswith("/dev/null")
