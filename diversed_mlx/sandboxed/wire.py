"""What the two sides of the sandbox say to each other: one line of JSON a message, in which only plain data stands.

A value comes over as what it holds, never as an object that could have methods of its own. What cannot is kept where
it is, and a number for it comes over. Knows pipes, no tests.
"""

import json
import operator
import os
from collections.abc import Callable
from typing import Any

LONGEST = 8_000_000  # bytes of a message; more is a program that floods the judge

# What may be done to an object that stayed on the other side. No comparison is here: it would show the program what is
# expected of it, and let it decide whether it is right.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *args, **named: function(*args, **named),
    "getattr": getattr,
    "setattr": setattr,
    "getitem": operator.getitem,
    "iter": iter,
    "next": next,
    "len": len,
    "str": str,
    "repr": repr,
}


class Channel:
    """Messages over two pipes.

    Args:
        reading: descriptor of the pipe that brings messages.
        writing: descriptor of the pipe that takes them.
    """

    def __init__(self, reading: int, writing: int):
        self._reading, self._writing = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")

    def send(self, message: Any) -> None:
        """Write a message."""
        self._writing.write(json.dumps(message).encode() + b"\n")
        self._writing.flush()

    def receive(self) -> Any:
        """Read a message.

        Raises:
            EOFError: the other side is gone, or says more than a message may hold.
            ValueError: it is not JSON.
        """
        line = self._reading.readline(LONGEST)
        if not line.endswith(b"\n"):
            raise EOFError
        return json.loads(line)


def encode(value: Any, keep: Callable[[Any], int]) -> Any:
    """Put a value into what JSON can hold.

    Args:
        value: plain data (of subclasses only what the plain type holds), or any other object.
        keep: gives a number for an object that is not plain data.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [encode(item, keep) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key, keep), encode(item, keep)] for key, item in value.items()]}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(item, keep) for item in value]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": list(value)}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    return {"kept": keep(value)}


def decode(data: Any, kept: Callable[[int], Any]) -> Any:
    """Take a value out of what `encode` made.

    Args:
        data: what JSON held; the other side may have written anything.
        kept: gives what stands here for an object that was kept, by its number.

    Raises:
        Exception: of many kinds, where `encode` did not make it.
    """
    if isinstance(data, list):
        return [decode(item, kept) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "kept":
        return kept(content)
    items = decode(content, kept)
    if kind == "dict":
        return dict(items)
    if kind in ("complex", "range"):
        return {"complex": complex, "range": range}[kind](*items)
    return {"tuple": tuple, "set": set, "frozenset": frozenset, "bytes": bytes}[kind](items)
