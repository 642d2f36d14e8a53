"""The command as a real process: a terminal, Ctrl-C and Ctrl-D, closed pipes, bytes, and other encodings."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import pytest
from test_cli_chat import cold_start, text
from test_cli_generate import LOSSLESS_NOTE, library

from diversed_mlx import Conversation, Options, Sampling
from diversed_mlx.cli.marks import CONTROLS, HEAT
from diversed_mlx.cli.slash import HELP

# A shell may have started these tests with Ctrl-C switched off, as for `make test &`; a person's shell has not.
START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.stdin is not None and sys.stdin.isatty():
    import fcntl, termios
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from diversed_mlx.cli.main import main
main()
"""
PROMPT = b">> "


PLAIN_C = {"LC_ALL": "C", "PYTHONUTF8": "0"}  # the locale of a bare server
LATIN = PLAIN_C | {"PYTHONIOENCODING": "latin-1"}
ENCODING = ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONUTF8", "PYTHONIOENCODING", "NO_COLOR")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ENCODING}
    return kept | {"DIVERSED_HOME": "/dev/null/none", "HF_HUB_OFFLINE": "1", "LC_ALL": "C.UTF-8", "TERM": "dumb"} | more


def command(name: str, checkpoints, *args: object) -> list[str | bytes]:
    models = ("--draft", checkpoints["draft"], "--target", checkpoints["target"])
    parts = [sys.executable, "-c", START, name, *models, *args]
    return [part if isinstance(part, bytes) else str(part) for part in parts]


def process(arguments, *, input: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(arguments, input=input, capture_output=True, env=environment(**(env or {})), timeout=120)


class Terminal:
    """A process on a terminal of its own, which echoes nothing and changes no byte."""

    def __init__(self, arguments, **env: str):
        self._master, slave = pty.openpty()
        mode = termios.tcgetattr(slave)
        mode[1] &= ~termios.OPOST
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, mode)
        self.process = subprocess.Popen(
            arguments, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment(**env)
        )
        os.close(slave)
        self._unread = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, keys: bytes) -> None:
        time.sleep(0.3)  # a person sees a prompt before typing; Python drops a Ctrl-C in the moment it appears
        os.write(self._master, keys)

    def read(self, size: int = 0, until: bytes = b"") -> bytes:
        """Take what the process shows, up to a number of bytes or some text, or until it ends."""
        deadline = time.monotonic() + 60
        while len(self._unread) < size or until not in self._unread:
            ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
            assert ready, f"waited in vain, with {self._unread!r}"
            try:
                data = os.read(self._master, 65536)
            except OSError:  # how Linux says that the other side is closed
                data = b""
            if not data:
                until = b""
                break
            self._unread += data
        end = self._unread.index(until) + len(until) if until else len(self._unread)
        shown, self._unread = self._unread[:end], self._unread[end:]
        return shown

    def write(self, keys: bytes) -> None:
        """Type at once, as a paste does."""
        os.write(self._master, keys)

    def rest(self) -> bytes:
        """Take everything up to the end of the process."""
        return self.read(size=1 << 30)

    def interrupt(self) -> None:
        os.write(self._master, b"\x03")


def visible(responses) -> str:
    """The text as a terminal gets it."""
    return text(responses).translate(CONTROLS)


def turns(pair, *messages: str) -> list[list]:
    conversation = Conversation(pair, Options(sampling=Sampling(temp=0.0), max_tokens=60))
    return [list(conversation.ask(message)) for message in messages]


# Ctrl-C and Ctrl-D


@pytest.fixture(scope="module")
def session(checkpoints) -> dict[str, str | int]:
    """One session: Ctrl-C at the prompt, then in an answer, a whole answer, and Ctrl-D."""
    # The draft is never right and long: answers take seconds, and Ctrl-C comes in their midst.
    slow = command("chat", {**checkpoints, "draft": checkpoints["adversary"]}, "-m", 60, "--num-draft-tokens", 32)
    with Terminal(slow) as terminal:
        seen = {"greeting": terminal.read(until=PROMPT)}
        terminal.type(b"dropped\x03")
        seen["dropped"] = terminal.read(until=PROMPT)
        terminal.type(b"hi\n")
        begun = terminal.read(size=8)
        terminal.interrupt()
        seen["stopped"] = begun + terminal.read(until=PROMPT)
        terminal.type(b"ho\n")
        seen["whole"] = terminal.read(until=PROMPT)
        terminal.type(b"\x04")
        seen["bye"] = terminal.rest()
        return {name: shown.decode() for name, shown in seen.items()} | {"status": terminal.process.wait(60)}


def test_a_terminal_is_greeted_with_the_commands(session):
    words = " ".join(session["greeting"].split())  # long lines break between words
    assert words == f"{LOSSLESS_NOTE} {HELP} >>"
    assert max(map(len, session["greeting"].split("\n"))) <= 80


def test_ctrl_c_at_the_prompt_drops_the_line_and_leaves_the_session(session):
    assert session["dropped"] == "\n>> "


def test_ctrl_c_stops_the_answer_and_leaves_the_session(session, pair):
    shown, end = session["stopped"].split("\nstopped\n")
    (whole,) = turns(pair, "hi")
    assert visible(whole).startswith(shown)
    assert 0 < len(shown) < len(visible(whole))
    assert re.match(r"\d+ tokens \| ", end)
    assert end.endswith("GB\n>> ")


def test_the_turn_after_ctrl_c_is_that_of_a_cold_start(session, pair):
    shown = session["stopped"].split("\nstopped\n")[0]
    (whole,) = turns(pair, "hi")
    # The interrupt may have come between remembering a token and showing it.
    replies = {shown}
    for end in range(len(whole)):
        if visible(whole[:end]) == shown:
            replies |= {text(whole[:end]), text(whole[: end + 1])}
    answers = {visible(cold_start(pair, "hi", reply, 60).ask("ho")) for reply in replies}
    assert re.split(r"\n\d+ tokens \|", session["whole"])[0] in answers


def test_ctrl_d_leaves_with_0(session):
    assert (session["bye"], session["status"]) == ("\n", 0)


@pytest.mark.slow
def test_ctrl_c_in_generate_exits_with_130(checkpoints):
    with Terminal(command("generate", checkpoints, "-p", "hi", "-m", -1)) as terminal:
        begun = terminal.read(size=len(LOSSLESS_NOTE) + 9)
        terminal.interrupt()
        shown = (begun + terminal.rest()).decode()
        assert terminal.process.wait(60) == 130
    assert "Traceback" not in shown
    assert "tok/s" not in shown


@pytest.mark.slow
def test_ctrl_c_while_models_load_exits_with_130(checkpoints):
    for delay in (0.3, 0.6):
        with Terminal(command("chat", checkpoints)) as terminal:
            time.sleep(delay)
            terminal.interrupt()
            shown = terminal.rest()
            assert (terminal.process.wait(60), b"Traceback" in shown) == (130, False), shown


@pytest.mark.slow
def test_a_terminal_shows_tokens_in_colour_unless_told_otherwise(checkpoints):
    arguments = command("generate", checkpoints, "-p", "hi", "-m", 20, "--show-tokens")
    with Terminal(arguments, TERM="xterm-256color") as terminal:
        shown = terminal.rest()
    assert b"\x1b[32maccepted\x1b[0m, \x1b[31mcorrected\x1b[0m, \x1b[36mbonus\x1b[0m" in shown
    assert b"\x1b[31m" in shown.splitlines()[3]
    with Terminal(arguments, TERM="xterm-256color", NO_COLOR="1") as terminal:
        shown = terminal.rest()
    assert b"tokens: accepted, [corrected], (bonus)" in shown
    assert b"\x1b" not in shown


# Pipes


@pytest.mark.parametrize("name", ["generate", pytest.param("chat", marks=pytest.mark.slow)])
def test_a_reader_that_goes_away_ends_the_command_quietly(checkpoints, name):
    arguments = command(name, checkpoints, "-m", -1, *(["-p", "hi"] if name == "generate" else []))
    pipe = ["bash", "-c", '"$@" | head -c 5; exit "${PIPESTATUS[0]}"', "bash"]
    done = process([*pipe, *arguments], input=b"hi\nho\n")
    assert len(done.stdout) == 5
    assert done.stderr.decode() == LOSSLESS_NOTE + "\n"
    assert done.returncode in (1, 128 + signal.SIGPIPE)


@pytest.mark.slow
def test_the_answer_appears_while_it_is_made(checkpoints):
    with Terminal(command("generate", checkpoints, "-p", "hi", "-m", 1500)) as terminal:
        terminal.read(size=len(LOSSLESS_NOTE) + 2)
        assert terminal.process.poll() is None, "a byte can be read long before the end"


# Bytes and encodings


@pytest.mark.slow
def test_a_prompt_of_bytes_that_are_not_utf_8_is_refused_in_one_line(checkpoints):
    done = process(command("generate", checkpoints, "-m", 5, "-p", b"a\xff"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == f"{LOSSLESS_NOTE}\nerror: the text is not valid UTF-8: convert it first\n"


@pytest.mark.slow
def test_bytes_on_stdin_that_are_not_utf_8_are_refused_in_one_line(checkpoints):
    done = process(command("generate", checkpoints, "-m", 5, "-p", "-"), input=b"a\xff")
    assert (done.returncode, done.stdout) == (1, b"")
    assert re.fullmatch(rb"error: stdin is not valid UTF-8: .+\n", done.stderr)


@pytest.mark.slow
def test_a_prompt_on_stdin_is_utf_8_in_any_locale(checkpoints, pair):
    done = process(
        command("generate", checkpoints, "-m", 5, "-p", "-", "--verifier", "none"),
        input="grüß 😀".encode(),
        env=PLAIN_C | {"PYTHONIOENCODING": "utf-8"},
    )
    assert done.stdout.decode() == library(pair, "grüß 😀", verifier=None, max_tokens=5)["text"] + "\n"


@pytest.mark.slow
def test_a_missing_model_without_network_is_one_clear_line():
    done = process([sys.executable, "-c", START, "generate", "-p", "hi", "--target", "no/such", "--verifier", "none"])
    assert (done.returncode, done.stdout) == (1, b"")
    assert re.fullmatch(
        rb"error: no/such is not in the local Hub cache and the Hub cannot be reached: .+\n", done.stderr
    )


@pytest.mark.parametrize("flags", [(), pytest.param(("--json",), marks=pytest.mark.slow)])
def test_an_answer_is_printed_where_the_locale_cannot_show_all_of_it(checkpoints, pair, flags):
    done = process(command("generate", checkpoints, "-m", 30, "-p", "hi", *flags), env=LATIN)
    assert done.returncode == 0, done.stderr.decode()
    expected = library(pair, max_tokens=30)["text"]
    assert not expected.isascii()
    shown = json.loads(done.stdout)["text"] if flags else done.stdout.decode("latin-1")
    assert shown == (expected if flags else expected.encode("latin-1", "replace").decode("latin-1") + "\n")


@pytest.mark.slow
def test_a_chat_goes_on_where_the_locale_cannot_show_all_of_it(checkpoints):
    done = process(command("chat", checkpoints, "-m", 20), input=b"hi\nho\n", env=LATIN)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr.count(b"20 tokens") == 2


@pytest.mark.slow
def test_a_message_in_utf_8_is_understood_in_any_locale(checkpoints, pair):
    done = process(command("chat", checkpoints, "-m", 5), input="grüß 😀\n".encode(), env=LATIN)
    expected = library(pair, "grüß 😀", max_tokens=5)["text"]
    assert done.stdout == expected.encode("latin-1", "replace") + b"\n"


def test_python_m_runs_the_command():
    done = process([sys.executable, "-m", "diversed_mlx.cli.main", "--help"])
    assert b"generate" in done.stdout


def test_a_key_that_bounces_stops_the_answer_and_not_the_session(checkpoints):
    slow = command("chat", {**checkpoints, "draft": checkpoints["adversary"]}, "-m", 200, "--num-draft-tokens", 32)
    with Terminal(slow) as terminal:
        terminal.read(until=PROMPT)
        terminal.type(b"hi\n")
        terminal.read(size=4)
        for _ in range(5):
            terminal.interrupt()
            time.sleep(0.005)
        shown = terminal.read(until=PROMPT)
        assert shown.count(b"stopped\n") == 1
        terminal.type(b"/stats\n")
        assert b"session: 1 answer" in terminal.read(until=PROMPT)
        terminal.type(b"\x04")
        terminal.rest()
        assert terminal.process.wait(60) == 0


# The screen


def chat_on_a_screen(checkpoints, *args: object, keys: bytes = b"hi\n", columns: int = 60, **env: str) -> str:
    """What a terminal shows of a chat with one message."""
    with Terminal(
        command("chat", checkpoints, *args), **{"TERM": "xterm-256color", "COLUMNS": str(columns), **env}
    ) as t:
        t.read(until=PROMPT)
        t.type(keys)
        shown = t.read(until=b"GB")
        t.read(until=PROMPT)
        t.type(b"q\n")
        t.rest()
    return shown.decode()


def test_tokens_are_coloured_over_a_strip_of_weights_that_fits_the_screen(checkpoints, pair):
    shown = chat_on_a_screen(checkpoints, "-m", 100, "--show-tokens", columns=40)
    assert f"48;5;{HEAT[9]}m" in shown
    plain = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", shown).replace("\r", "").split("\n")
    (answer,) = turns(pair, "hi")
    strips = [line for line in plain if re.fullmatch(r"[ 9]*9", line)]
    assert len(strips) >= 2
    assert max(map(len, plain[:4])) <= 40
    lines = [plain[plain.index(strip) - 1] for strip in strips[:1]]
    assert visible(answer).startswith(lines[0].split("\n")[0][:5])


def test_markdown_can_be_turned_off_and_plain_terminals_get_none(checkpoints, pair):
    (answer,) = turns(pair, "hi")
    for args, env in ((("--no-markdown",), {}), ((), {"NO_COLOR": "1"}), ((), {"TERM": "dumb"})):
        shown = chat_on_a_screen(checkpoints, "-m", 60, *args, **env)
        assert visible(answer) in shown.replace("\r", "")
    shown = chat_on_a_screen(checkpoints, "-m", 60, NO_COLOR="")  # empty is unset
    assert "\x1b[J" in shown
