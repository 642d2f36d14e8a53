"""HumanEval (Chen et al., 2021): a Python function from its docstring; the reward is 1 where it passes all tests.

It is a data set for measuring; where a head is trained on it all the same, a fixed fifth is kept for testing.
"""

import ast
from pathlib import Path

from .programs import CodeExample, block, code_reward, parse
from .rows import HubData, Row, Rows, text_of
from .task import Example, Split

HUB = HubData(repo="openai/openai_humaneval", splits=None)
QUESTION = """Complete this Python function.

{prompt}

Answer with the whole function in one ```python block."""


class HumanEval:
    """The task. Columns: `prompt`, `canonical_solution`, `test`, `entry_point`.

    Args:
        data: file or folder of rows. Default: the Hub's.
        allow_code_execution: run what the models write, in the sandbox; else nothing has a reward. Default False.
    """

    name = "humaneval"
    metric = "pass rate"
    max_tokens = 384

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
    prompt, name = text_of(row, "prompt"), text_of(row, "entry_point")
    module = parse(prompt, "prompt")
    others = [node for node in module.body if not (isinstance(node, ast.FunctionDef) and node.name == name)]
    given = ast.unparse(ast.Module(others, type_ignores=[]))
    return CodeExample(
        question=QUESTION.format(prompt=block(prompt)),
        answer=block(prompt + text_of(row, "canonical_solution")),
        # What the question gives is given to the tests again: some call it, and a program could have changed it.
        tests=f"{given}\n{text_of(row, 'test')}\ncheck({name})",
        names=(name,),
        given=given,
    )
