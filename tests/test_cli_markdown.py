"""Answers as Markdown: the blocks, that nothing of the text is lost, and that drawings are taken back whole."""

import re
from types import SimpleNamespace
from typing import cast

import pytest

from diversed_mlx.answer import Response
from diversed_mlx.cli import markdown
from diversed_mlx.cli.markdown import MarkdownScreen, render, split_blocks

STYLES = re.compile(r"\x1b\[[\d;]*m")
TEXT = """# Title

A **bold** word with <b>tags</b> and a line
of its own.

1. one
2. two

   still two

```python
x = 1

y = 2
```

| a | b |
|---|---|
| 1 | 2 |

The end"""


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "20")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def plain(text: str) -> list[str]:
    return [STYLES.sub("", line).rstrip() for line, _ in render(text)]


def test_a_block_ends_where_nothing_to_come_can_change_it():
    blocks, rest = split_blocks(TEXT)
    assert "".join([*blocks, rest]) == TEXT
    assert [block.split("\n")[0] for block in blocks] == [
        "# Title", "A **bold** word with <b>tags</b> and a line", "1. one", "```python", "| a | b |",
    ]  # fmt: skip
    assert rest == "The end"
    assert split_blocks("one\n\n") == ([], "one\n\n")
    assert split_blocks("```\na\n\nb\n") == ([], "```\na\n\nb\n")


def test_text_keeps_its_lines_and_its_tags_and_fits():
    assert plain("a <b>x</b>\nb") == ["a <b>x</b>", "b"]
    assert plain("see [it](http://x.y)") == ["see it (http://x.y)"]
    assert plain("```\n<p>\n\n**a**\n```") == [" <p>", "", " **a**"]
    assert plain("word " * 20) == ["word word word word word word word word"] * 2 + ["word word word word"]
    assert all(cells <= 40 for block in split_blocks(TEXT)[0] for _, cells in render(block))
    assert "\x1b[1m" in render("**a**")[0][0]


def screen_of(written: str, columns: int = 40) -> list[str]:
    """What a terminal shows of text with the few commands that are used here."""
    rows, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\d*[AJ]|\r|\n|[^\x1b\r\n]", STYLES.sub("", written)):
        if part.endswith("A") and part[0] == "\x1b":
            row -= int(part[2:-1])
            assert row >= 0
        elif part == "\x1b[J":
            rows[row:] = [rows[row][:column]]
        elif part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        else:
            if column == columns:
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            rows[row] = rows[row][:column].ljust(column) + part + rows[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in rows]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_whatever_was_drawn_meanwhile_the_end_is_the_whole_answer_once(monkeypatch, capsys, size):
    monkeypatch.setattr(markdown, "PERIOD", 0.0)
    screen = MarkdownScreen()
    for at in range(0, len(TEXT), size):
        screen.add(cast(Response, SimpleNamespace(text=TEXT[at : at + size])))
    screen.finish()
    blocks, rest = split_blocks(TEXT)
    expected = "\n\n".join("\n".join(plain(block)) for block in [*blocks, rest])
    assert "\n".join(screen_of(capsys.readouterr().out)) == expected + "\n"


def test_an_unfinished_block_is_drawn_no_taller_than_the_screen_and_then_whole(monkeypatch, capsys):
    monkeypatch.setattr(markdown, "PERIOD", 0.0)
    screen = MarkdownScreen()
    lines = "".join(f"line {number}\n" for number in range(100))
    screen.add(cast(Response, SimpleNamespace(text=lines)))
    assert len(capsys.readouterr().out.split("\n")) == 18
    screen.finish()
    assert screen_of(capsys.readouterr().out.removeprefix("\r\x1b[17A\x1b[J"))[:100] == lines.splitlines()


def test_a_terminal_that_became_narrower_has_more_rows_to_take_back(monkeypatch, capsys):
    monkeypatch.setattr(markdown, "PERIOD", 0.0)
    screen = MarkdownScreen()
    screen.add(cast(Response, SimpleNamespace(text="a" * 38 + "\nb")))
    monkeypatch.setenv("COLUMNS", "20")
    capsys.readouterr()
    screen.finish()
    assert capsys.readouterr().out.startswith("\r\x1b[2A\x1b[J")  # 38 cells are two rows now


def test_control_characters_do_not_reach_the_terminal(capsys):
    screen = MarkdownScreen()
    screen.add(cast(Response, SimpleNamespace(text="a\x1b[2Jb\x07")))
    screen.finish()
    shown = screen_of(capsys.readouterr().out)
    assert shown == ["a\ufffd[2Jb\ufffd", ""]


def test_an_answer_without_text_shows_nothing(capsys):
    MarkdownScreen().finish()
    assert capsys.readouterr().out == ""
