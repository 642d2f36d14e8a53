"""MBPP (Austin et al., 2021): a small Python function from a sentence; the reward is 1 where it passes all tests."""

import ast
from pathlib import Path

from ..errors import DiversedError
from .programs import CodeExample, block, code_reward, defined, imports, parse
from .rows import HubData, Row, Rows, text_of
from .task import Example, Split

HUB = HubData(repo="google-research-datasets/mbpp", config="full")
# One test is shown, for the function's name and the form of its arguments. With all of them shown, an answer could be
# a list of what they expect.
QUESTION = """{text}

Write it in Python, so that this holds:

{test}

Answer with the whole program in one ```python block."""


class Mbpp:
    """The task. Columns: `text` or `prompt`, `code`, `test_list`, and where they are `test_setup_code`, `test_imports`.

    Args:
        data: file or folder of rows. Default: the Hub's.
        allow_code_execution: run what the models write, in the sandbox; else nothing has a reward. Default False.
    """

    name = "mbpp"
    metric = "pass rate"
    max_tokens = 256

    def __init__(self, data: Path | None = None, *, allow_code_execution: bool = False):
        self._rows = Rows(HUB, _example, data=data)
        self._may_run = allow_code_execution

    def examples(self, split: Split, n: int, seed: int = 0) -> list[Example]:
        """Give n examples; see `Rows.examples`."""
        return self._rows.examples(split, n, seed)

    def reward(self, text: str, example: Example) -> float | None:
        """Give 1 where the program passes all tests, else 0; None where it may not be run."""
        return code_reward(text, example) if self._may_run else None


def _example(row: Row) -> Example:
    text = text_of(row, "text" if "text" in row else "prompt")
    code = text_of(row, "code").replace("\r\n", "\n")
    tests = row.get("test_list")
    if not (isinstance(tests, list) and tests and all(isinstance(test, str) for test in tests)):
        raise DiversedError("column 'test_list' must be a list of tests")
    module = parse(code, "code")
    needed = [*(row.get("test_imports") or ()), _imports_for(module, tests), row.get("test_setup_code") or ""]
    return CodeExample(
        question=QUESTION.format(text=text.strip(), test=tests[0]),
        answer=block(code),
        tests="\n".join(part.replace("\r\n", "\n") for part in (*needed, *tests)),
        names=defined(module),
    )


def _imports_for(module: ast.Module, tests: list[str]) -> str:
    """The reference's imports, where a test uses one: there they are the tests' own, which no program can change."""
    used = {node.id for node in ast.walk(parse("\n".join(tests), "test_list")) if isinstance(node, ast.Name)}
    return "\n".join(line for line in imports(module).split("\n") if used & _bound(line))


def _bound(line: str) -> set[str]:
    return {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.parse(line).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
