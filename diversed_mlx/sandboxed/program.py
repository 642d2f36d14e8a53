"""The side of the sandbox that runs the program. It never sees the tests, only the arguments of one call at a time.

Nothing here defends itself: the program may change all of it, and could still only answer calls.
"""

import sys
import types
from typing import Any

from .confine import confine
from .wire import OPERATIONS, Channel, decode, encode


def main(reading: int, writing: int, memory_mb: int, cpu_seconds: int) -> None:
    """Confine this process, run the program that the judge sends, then do what it asks for until it is gone.

    Args:
        reading: descriptor on which the judge asks.
        writing: descriptor on which it is answered.
        memory_mb: most memory.
        cpu_seconds: most processor time.
    """
    channel = Channel(reading, writing)
    sys.set_int_max_str_digits(0)
    channel.send(confine(memory_mb, cpu_seconds))
    # A name other than __main__: what a program does when it is started by hand is not part of its answer. A module
    # that is known to Python, because dataclasses and others look theirs up.
    module = types.ModuleType("program")
    sys.modules["program"] = module
    kept: list[Any] = [module]

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    def load(source: str) -> list[str]:
        exec(compile(source, "program.py", "exec"), vars(module))
        return list(vars(module))

    while True:
        operation, *message = channel.receive()
        try:
            args, named = decode(message, kept.__getitem__)
            result = load(*args) if operation == "load" else OPERATIONS[operation](*args, **named)
            answer = {"value": encode(result, keep)}
        except BaseException as error:
            answer = {"raised": type(error).__name__}
        channel.send(answer)
