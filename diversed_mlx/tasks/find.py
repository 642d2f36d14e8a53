"""Finds a task by its name, or in a file of the user's own."""

import sys
import traceback
import types
from pathlib import Path

from ..errors import DiversedError
from .task import Task

TASK_NAMES = ("arithmetic", "gsm8k", "cnndm", "xsum", "mbpp", "humaneval", "wmt")
RUN_CODE = ("mbpp", "humaneval")


def load_task(
    name: str, *, data: Path | None = None, task_file: Path | None = None, allow_code_execution: bool = False
) -> Task:
    """Give a task.

    Args:
        name: one of `TASK_NAMES`; empty with a task file.
        data: file or folder of rows with the task's columns. Default: the Hub's data set.
        task_file: a Python file that defines `task`, an object like those of this package (see `Task`). It is run.
        allow_code_execution: run programs that models write, which some tasks' rewards need. Default False.

    Raises:
        DiversedError: no such task or file, rows where none are used, or a permission that is missing.
    """
    if task_file is not None:
        if name or data is not None:
            raise DiversedError(f"a task file stands alone: leave out {name or '--data'}, or --task-file")
        return _read_task_file(task_file.expanduser())
    if name not in TASK_NAMES:
        raise DiversedError(f"{name!r} is no task; there are {', '.join(TASK_NAMES)}")
    if name in RUN_CODE and not allow_code_execution:
        raise DiversedError(f"{name} runs model-written code: allow it with --allow-code-execution")
    match name:
        case "arithmetic":
            from .arithmetic import Arithmetic

            if data is not None:
                raise DiversedError("arithmetic makes its own problems: leave out --data")
            return Arithmetic()
        case "gsm8k":
            from .gsm8k import Gsm8k

            return Gsm8k(data)
        case "cnndm":
            from .cnndm import CnnDm

            return CnnDm(data)
        case "xsum":
            from .xsum import XSum

            return XSum(data)
        case "mbpp":
            from .mbpp import Mbpp

            return Mbpp(data, allow_code_execution=True)
        case "humaneval":
            from .humaneval import HumanEval

            return HumanEval(data, allow_code_execution=True)
        case _:
            from .wmt import Wmt

            return Wmt(data)


def _read_task_file(path: Path) -> Task:
    """Run the file as a module of its own; nothing is written beside it."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise DiversedError(f"cannot read {path}: {error.strerror}") from error
    module = types.ModuleType("diversed_task_file")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for it
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) and not lines else (lines or [None])[-1]
        where = f"{path}, line {line}" if line else str(path)
        raise DiversedError(f"{where}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    task = getattr(module, "task", None)
    if task is None or isinstance(task, type):
        raise DiversedError(f"{path} must define `task`, an object with name, metric, max_tokens, examples and reward")
    for attribute, right, wanted in (
        ("name", lambda value: isinstance(value, str) and value, "a text"),
        ("metric", lambda value: isinstance(value, str) and value, "a text"),
        ("max_tokens", lambda value: type(value) is int and value > 0, "a whole number above 0"),
        ("examples", callable, "a method examples(split, n, seed)"),
        ("reward", callable, "a method reward(text, example)"),
    ):
        if not right(getattr(task, attribute, None)):
            raise DiversedError(f"{path}: `task.{attribute}` must be {wanted}")
    return task
