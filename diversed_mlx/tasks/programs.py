"""Between an answer and a program: what MBPP and HumanEval share. Knows how code is written, not how it is run."""

import ast
import re
import warnings
from dataclasses import dataclass

from ..errors import DiversedError
from ..sandbox import passes_tests
from .task import Example

SECONDS = 10.0  # for all tests of a program; of 300 references of MBPP the slowest takes 2.3 s on an idle machine

_BLOCK = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)  # one that was cut off goes to the end


@dataclass(frozen=True, kw_only=True)
class CodeExample(Example):
    """An example whose answer is a program.

    Args:
        tests: Python that raises where a program is wrong.
        names: what the tests take from the program.
        given: Python that stands before every program: imports, and what the question lets it use.
    """

    tests: str
    names: tuple[str, ...]
    given: str = ""


def code_reward(text: str, example: Example) -> float:
    """Give 1 where an answer's program passes the example's tests, else 0. Runs it, in the sandbox.

    Args:
        text: the answer.
        example: a `CodeExample`.

    Raises:
        DiversedError: this machine has no sandbox.
    """
    assert isinstance(example, CodeExample)
    program = f"{example.given}\n{find_code(text, example.names)}"
    return float(passes_tests(program, example.tests, names=example.names, seconds=SECONDS))


def find_code(text: str, names: tuple[str, ...]) -> str:
    """Find the program in an answer: the last block that defines a name, else the last block, else the whole text.

    Args:
        text: the answer.
        names: of which a program defines one.
    """
    blocks: list[str] = _BLOCK.findall(text.replace("\r\n", "\n"))
    defines = re.compile(rf"^(?:def|class|async def)\s+(?:{'|'.join(map(re.escape, names))})\b", re.MULTILINE)
    wanted = [block for block in blocks if defines.search(block)]
    return [text, *blocks, *wanted][-1]


def block(code: str) -> str:
    """Write code as an answer does."""
    return f"```python\n{code.strip()}\n```"


def parse(code: str, column: str) -> ast.Module:
    """Read code of a data set.

    Args:
        code: its source.
        column: where it stands.

    Raises:
        DiversedError: it is not Python; to be told with the row's place.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes such as "\w", which MBPP has
            return ast.parse(code)
    except (SyntaxError, ValueError) as error:
        raise DiversedError(f"column {column!r} is not Python: {error}") from error


def imports(module: ast.Module) -> str:
    """The lines of a module that import."""
    return "\n".join(ast.unparse(node) for node in module.body if isinstance(node, ast.Import | ast.ImportFrom))


def defined(module: ast.Module) -> tuple[str, ...]:
    """The functions and classes of a module, and the names it assigns."""
    names: dict[str, None] = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = None
        elif isinstance(node, ast.Assign):
            names |= {target.id: None for target in node.targets if isinstance(target, ast.Name)}
    return tuple(names)
