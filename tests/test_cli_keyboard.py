"""Typing: messages of several lines, long pastes, what is typed too early, and the history of earlier sessions."""

import json
import sys

import pytest
from test_cli_terminal import PROMPT, Terminal

from diversed_mlx.cli.keyboard import BLOCK

KEYBOARD = """
import json, sys, time
from pathlib import Path
from diversed_mlx.cli.keyboard import Echo, Keyboard
history, messages = map(Path, sys.argv[1:])
keyboard, echo = Keyboard(history), Echo()
with echo.session(), messages.open("a") as file:
    with echo.silent():
        print("busy", flush=True)
        time.sleep(1)
    while True:
        try:
            print(json.dumps(keyboard.read()), file=file, flush=True)
        except EOFError:
            break
"""


def type_messages(keys: list[bytes], tmp_path, *, busy: bool = False, **env: str) -> list[str]:
    """Type keys, each at a prompt or all of them before the first; return the messages that came of them."""
    (tmp_path / "messages").unlink(missing_ok=True)
    script = [sys.executable, "-c", KEYBOARD, str(tmp_path / "home" / "history"), str(tmp_path / "messages")]
    with Terminal(script, **env) as terminal:
        terminal.read(until=b"busy\n" if busy else PROMPT)
        for part in keys:
            for at in range(0, len(part), 1000):  # as much as a terminal takes at a time
                terminal.write(part[at : at + 1000])
            terminal.read(until=PROMPT)
        if busy:
            terminal.read(until=PROMPT)
        terminal.type(b"\x04")
        terminal.rest()
        assert terminal.process.wait(60) == 0
    return [json.loads(line) for line in (tmp_path / "messages").read_text().splitlines()]


LONG = "".join(chr(97 + i * i % 26) for i in range(10_000))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (b"one\\\ntwo\\\nthree\n", "one\ntwo\nthree"),
        (BLOCK.encode() + b"one\n\n two\n" + BLOCK.encode() + b"\n", "one\n\n two"),
        (BLOCK.encode() + b"one" + BLOCK.encode() + b"\n", "one"),
        (LONG.encode() + b"\n", LONG),
        ("grüß 😀\n".encode(), "grüß 😀"),
    ],
    ids=["backslash", "block", "block in a line", "10,000 characters", "UTF-8"],
)
def test_a_message_of_several_lines_or_of_10000_characters_comes_in_one_piece(tmp_path, keys, message):
    assert type_messages([keys], tmp_path) == [message]


def test_a_paste_in_brackets_is_one_message(tmp_path):
    keys = b"\x1b[200~one\rtwo\r" + LONG[:5000].encode() + b"\x1b[201~\n"
    assert type_messages([keys], tmp_path, TERM="xterm-256color") == ["one\ntwo\n" + LONG[:5000]]


def test_what_is_typed_while_busy_is_not_lost(tmp_path):
    assert type_messages([LONG.encode() + b"\n"], tmp_path, busy=True) == [LONG]


def test_the_arrow_keys_find_what_an_earlier_session_asked(tmp_path):
    first = b"one \\ two\n"
    assert type_messages([first, b"\x1b[200~a\rb\x1b[201~\n"], tmp_path, TERM="xterm") == ["one \\ two", "a\nb"]
    path = tmp_path / "home" / "history"
    assert path.read_text() == "one \\\\ two\na\\nb\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert type_messages([b"\x1b[A\n", b"\x1b[A\x1b[A\x1b[A\n"], tmp_path, TERM="xterm") == ["a\nb", "one \\ two"]


def test_the_history_is_limited(tmp_path):
    path = tmp_path / "home" / "history"
    path.parent.mkdir()
    path.write_text("".join(f"{number}\n" for number in range(1500)))
    assert type_messages([b"last\n", LONG.encode() + b"\n"], tmp_path) == ["last", LONG]
    assert path.read_text().splitlines() == [*map(str, range(500, 1500)), "last"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["history"]


def test_a_home_that_cannot_be_written_costs_the_history_only(tmp_path):
    (tmp_path / "home").write_text("a file")
    assert type_messages([b"one\n", b"two\n"], tmp_path) == ["one", "two"]
