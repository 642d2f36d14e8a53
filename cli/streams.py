"""The three standard streams and Ctrl-C, made safe before a command runs and when it ends.

A stream may be closed, full, or in an encoding that lacks a character; a key that is held down is many Ctrl-C.
"""

import errno
import io
import os
import signal
import sys
import time
from types import FrameType

SAME_KEY = 0.3  # seconds in which further Ctrl-C belong to the first
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EBADF}


def open_closed_streams() -> bool:
    """Put the null device where a standard stream is closed, so that no file of ours gets its number.

    Returns:
        Whether there was a stdout.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)  # the lowest free number: this one
    there = sys.stdout is not None
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  as long as the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an answer is worth more than a character the terminal lacks
    return there


def one_interrupt_a_key() -> None:
    """Let Ctrl-C raise once for a key that bounces or is held, so that what it interrupts can end in order."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # somebody decided otherwise, as a shell does for what it starts in the background
    latest = float("-inf")

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal latest
        now = time.monotonic()
        again, latest = now - latest < SAME_KEY, now
        if not again:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)


def discard_stdout() -> None:
    """Send what Python still wants to write to the null device: it could only fail again, with a traceback."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
