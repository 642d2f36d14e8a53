"""The side of the sandbox that runs the tests. No line of the program is ever run in this process.

Where a test uses a function of the program, there stands a `Remote`: a call goes over to the program's side and comes
back as plain data, and everything that compares happens here. So whatever the program does where it is, passing means
that it gave the right answers.
"""

import builtins
import functools
import json
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from .confine import confine
from .wire import OPERATIONS, Channel, decode, encode

Ask = Callable[..., Any]


class Remote:
    """Stands for an object of the program's side: a function, or what it returned that is no plain data.

    It equals nothing and is neither true nor false: a test that compares it fails.

    Args:
        ask: has an operation done on the program's side.
        number: of the object there.
    """

    def __init__(self, ask: Ask, number: int):
        object.__setattr__(self, "_Remote__ask", ask)
        object.__setattr__(self, "_Remote__number", number)

    def _do(self, operation: str, *args: Any, **named: Any) -> Any:
        return object.__getattribute__(self, "_Remote__ask")(operation, self, *args, **named)

    def _refuse(self, *_: object) -> Any:
        raise TypeError("the program returned an object that is no plain data")

    __eq__ = __ne__ = __bool__ = _refuse
    __hash__ = object.__hash__


for _operation in OPERATIONS:
    setattr(Remote, f"__{_operation}__", functools.partialmethod(Remote._do, _operation))


def main(reading: int, writing: int) -> None:
    """Confine this process, judge the job on standard input, and write `ready` and `passed` on standard output.

    Args:
        reading: descriptor on which the program's side answers.
        writing: descriptor on which it is asked.
    """
    channel = Channel(reading, writing)
    job = json.load(sys.stdin)
    sys.set_int_max_str_digits(0)
    sys.stdout = sys.stderr  # what tests print goes where all else goes: nowhere
    unconfined = confine(job["memory_mb"], job["cpu_seconds"]) or channel.receive()
    _write(f"unconfined: {unconfined}" if unconfined else "ready")
    if unconfined:
        return
    signal.setitimer(signal.ITIMER_REAL, job["seconds"])  # nothing handles it: it ends this process
    try:
        _judge(channel, job["program"], job["tests"], job["names"])
    except BaseException:
        return
    _write("passed")


def _write(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _judge(channel: Channel, program: str, tests: str, names: list[str] | None) -> None:
    """Run the tests; whatever they raise means that the program is not right."""

    def number_of(value: Any) -> int:
        if isinstance(value, Remote):
            return object.__getattribute__(value, "_Remote__number")
        raise TypeError(f"a test gives the program {type(value).__name__}, which is no plain data")

    def ask(operation: str, *args: Any, **named: Any) -> Any:
        channel.send([operation, *encode([args, named], number_of)])
        answer = channel.receive()
        if "raised" in answer:
            raise _error(answer["raised"])
        return decode(answer["value"], functools.partial(Remote, ask))

    code = compile(tests, "tests.py", "exec")
    defined = ask("load", program)
    if names is None:
        names = [name for name in _names(code) if not hasattr(builtins, name)]
    # Set before the tests run: what they import or define themselves stands above the program's.
    namespace: dict[str, Any] = {"__name__": "tests"}
    namespace |= {name: ask("getattr", Remote(ask, 0), name) for name in names if name in defined}
    exec(code, namespace)


def _names(code: types.CodeType) -> Iterator[str]:
    """Every name that code uses, and the code in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _error(name: str) -> Exception:
    """An error of the kind that the program raised, where it is one of Python's own."""
    kind = getattr(builtins, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    return kind("raised by the program")
