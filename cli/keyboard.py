"""Where messages come from: a person at a terminal, with history and messages of several lines, or a pipe.

At a terminal the line is edited by readline. Between prompts the terminal neither echoes, which would garble the
answer, nor collects lines itself, which would cut a long paste at 4096 characters.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from diversed_mlx.errors import DiversedError

try:
    import termios
except ImportError:  # where there are no such terminals
    termios = None

PROMPT, CONTINUED = ">> ", ".. "
BLOCK = '"""'  # begins and ends a message of several lines
KEPT = 1000  # messages in the history
LONGEST = 4000  # characters of one that is kept
ESCAPED = re.compile(r"\\(n|\\)")  # how the history writes a newline and a backslash


class Messages(Protocol):
    """Where the next message comes from."""

    def read(self) -> str:
        """Wait for a message; EOFError at the end."""
        ...


class Pipe:
    """One message a line, exactly as it is, in UTF-8 whatever the locale says of terminals."""

    def __init__(self):
        self._line = 0

    def read(self) -> str:
        """Take the next line.

        Raises:
            EOFError: there is none.
            DiversedError: it is not UTF-8; the lines before it were answered.
        """
        data = sys.stdin.buffer.readline()
        self._line += 1
        if not data:
            raise EOFError
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DiversedError(f"stdin is not valid UTF-8: line {self._line}: {error}") from error
        return text.removesuffix("\n").removesuffix("\r")


class Keyboard:
    """A person who types.

    Args:
        history: file that keeps what was typed from one session to the next; without rights to it there is no history.
    """

    def __init__(self, history: Path):
        self._history = History(history)

    def read(self) -> str:
        """Ask for a message.

        A line that ends in a backslash goes on in the next one, and so does what begins with three quotes, until three
        more. Ctrl-D in a further line ends the message.

        Raises:
            EOFError: Ctrl-D.
            KeyboardInterrupt: Ctrl-C; what was typed of the message is dropped.
        """
        line = self._line(PROMPT)
        if line.startswith(BLOCK):
            return self._block(line.removeprefix(BLOCK))
        lines = [line]
        with suppress(EOFError):
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(self._line(CONTINUED))
        return "\n".join(lines)

    def _block(self, line: str) -> str:
        lines = [line]
        with suppress(EOFError):
            while not lines[-1].rstrip().endswith(BLOCK):
                lines.append(self._line(CONTINUED))
            lines[-1] = lines[-1].rstrip().removesuffix(BLOCK)
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str:
        line = input(prompt).rstrip("\n")  # a paste may bring newlines with it
        self._history.add(line)
        return line


class History:
    """What was typed, in a file that is for the user's eyes only: one entry a line, the latest last.

    Args:
        path: the file; made when there is something to keep.
    """

    def __init__(self, path: Path):
        self._path = path
        try:
            import readline
        except ImportError:  # Python can be built without it: typing then works as in any command
            return
        if "libedit" in (readline.__doc__ or ""):  # as on macOS (not run by us); it has no bracketed paste
            readline.parse_and_bind("bind ^I ed-insert")
        else:
            if os.environ.get("TERM") != "dumb":  # which would show the question for it
                readline.parse_and_bind("set enable-bracketed-paste on")  # a paste of several lines is one message
            readline.parse_and_bind("tab: tab-insert")
        entries = self._read()
        if len(entries) > KEPT:
            self._shorten(entries[-KEPT:])
        readline.clear_history()
        for entry in entries[-KEPT:]:
            readline.add_history(ESCAPED.sub(lambda found: "\n" if found[1] == "n" else "\\", entry))

    def add(self, line: str) -> None:
        """Keep what was typed, at once: a session may end in any way."""
        if line.strip() and len(line) <= LONGEST:
            escaped = line.replace("\\", "\\\\").replace("\n", "\\n")
            self._write(os.O_APPEND, [escaped], self._path)

    def _read(self) -> list[str]:
        try:
            return self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []

    def _shorten(self, entries: list[str]) -> None:
        partial = self._path.with_name(f".{self._path.name}-{os.getpid()}")
        self._write(os.O_TRUNC, entries, partial)
        with suppress(OSError):
            os.replace(partial, self._path)

    def _write(self, mode: int, entries: list[str], path: Path) -> None:
        with suppress(OSError):  # a home that cannot be written costs the history and nothing else
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | mode, 0o600)
            try:
                os.write(file, "".join(f"{entry}\n" for entry in entries).encode("utf-8", "replace"))
            finally:
                os.close(file)


class Echo:
    """The terminal's own handling of keys, out of the way as long as a chat lasts."""

    def __init__(self):
        self._before = None
        with suppress(ImportError, OSError):
            import readline  # noqa: F401  without it the terminal must collect lines, for nobody else does

            if termios is not None and sys.stdin.isatty() and sys.stdout.isatty():  # else Python does without it
                self._before = termios.tcgetattr(sys.stdin.fileno())

    @contextmanager
    def session(self) -> Iterator[None]:
        """Let keys through one by one instead of by lines; readline shows them when it asks."""
        self._set(canonical=False, echo=True)
        try:
            yield
        finally:
            self._set(canonical=True, echo=True)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Show nothing of what is typed meanwhile; the next prompt gets it."""
        self._set(canonical=False, echo=False)
        try:
            yield
        finally:
            self._set(canonical=False, echo=True)

    def _set(self, *, canonical: bool, echo: bool) -> None:
        """Switch parts of what was set before the session off, or on again."""
        if termios is None or self._before is None:
            return
        mode = [*self._before[:6], list(self._before[6])]
        mode[3] &= ~((0 if canonical else termios.ICANON) | (0 if echo else termios.ECHO))
        if not canonical:
            mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        with suppress(OSError, termios.error):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, mode)
