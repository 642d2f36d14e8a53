"""The shape of the house: what ships, which way imports point, and what stays out of a quick start."""

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "diversed_mlx"

# A unit is a module of diversed_mlx, or a whole package in it. It may import units of earlier layers only, never of
# its own layer, so no cycle can form. A new unit gets its place here first.
LAYERS = (
    ("aliases", "errors", "home", "machine", "sandboxed"),
    (
        "acceptance",
        "block",
        "cache",
        "config",
        "draft_length",
        "files",
        "head",
        "hub",
        "rewards",
        "sampling",
        "sandbox",
    ),
    ("context", "dial", "memory", "tasks", "theory", "verifiers"),
    ("lm",),
    ("pair",),
    ("heads",),
    ("speculate",),
    ("stats", "text"),
    ("answer", "transcript"),
    ("conversation",),
    ("convert", "evaluation", "training", "tuning"),
    ("doctor",),
    ("__init__",),
    ("cli",),
)
LEVEL = {unit: level for level, layer in enumerate(LAYERS) for unit in layer}
# Beside the order: who else may import these.
IMPORTED_ONLY_BY = {"convert": {"cli"}, "cli": set()}

# Parsing arguments and drawing on the terminal, which only cli/ does.
FRONT_END = {"argparse", "click", "rich", "typer"}
# What `diversed --help` must not wait for.
HEAVY = ("mlx", "mlx_lm", "torch", "transformers", "datasets", "huggingface_hub", "numpy")


def source_files() -> list[tuple[str, Path]]:
    """Every Python file that ships, each once, with its dotted name below the package: head, cli.main, __init__."""
    found = []
    for folder, _, names in os.walk(ROOT / PACKAGE, followlinks=True):
        for name in sorted(names):
            if name.endswith(".py"):
                path = Path(folder, name)
                inside = path.relative_to(ROOT / PACKAGE).with_suffix("")
                found.append((".".join(inside.parts), path))
    return sorted(found)


FILES = source_files()
each_file = pytest.mark.parametrize(("name", "path"), FILES, ids=[name for name, _ in FILES])


def imported_modules(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of each import anywhere in a file, those inside functions too.

    `from a import b` counts as a.b, for b may be a module.
    """
    parts = [PACKAGE, *name.split(".")][:-1]  # the package that relative imports start from
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*start, *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def unit_of(module: str) -> str:
    """The unit that an absolute name inside the package belongs to; a name of the package itself is __init__'s."""
    first = [*module.split(".")[1:2], "__init__"][0]
    return first if first in LEVEL or first in {name.split(".")[0] for name, _ in FILES} else "__init__"


def test_every_package_of_the_tree_ships():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    tree = [f"{PACKAGE}.{name}".removesuffix(".__init__") for name, _ in FILES if name.split(".")[-1] == "__init__"]
    assert sorted(listed) == sorted(tree), "pyproject.toml's [tool.setuptools] packages and the tree differ"


@pytest.mark.parametrize("name", ["cli", "convert"])
def test_the_links_are_relative(name):
    assert os.readlink(ROOT / PACKAGE / name) == f"../{name}"


@each_file
def test_imports_point_to_earlier_layers(name, path):
    unit = name.split(".")[0]
    assert unit in LEVEL, f"{path.relative_to(ROOT)} is in no layer: give {unit!r} its place in LAYERS, in this file"
    for line, module in imported_modules(name, path):
        other = unit_of(module) if module.split(".")[0] == PACKAGE else unit
        if other == unit:
            continue
        where = f"{path.relative_to(ROOT)}:{line}: {unit} imports {other}"
        assert LEVEL.get(other, len(LAYERS)) < LEVEL[unit], f"{where}, which is not in an earlier layer"
        assert unit in IMPORTED_ONLY_BY.get(other, {unit}), f"{where}, which is not for it"


@each_file
def test_torch_is_imported_only_in_convert(name, path):
    found = [line for line, module in imported_modules(name, path) if module.split(".")[0] == "torch"]
    assert not found or name.split(".")[0] == "convert", f"{path.relative_to(ROOT)} imports torch on lines {found}"


@each_file
def test_only_the_command_line_prints_and_parses_arguments(name, path):
    if name.split(".")[0] == "cli":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    printed = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "print"]
    front_end = [line for line, module in imported_modules(name, path) if module.split(".")[0] in FRONT_END]
    assert not printed, f"{path.relative_to(ROOT)} prints on lines {printed}"
    assert not front_end, f"{path.relative_to(ROOT)} imports one of {sorted(FRONT_END)} on lines {front_end}"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("import diversed_mlx", id="import diversed_mlx"),
        pytest.param(
            "from diversed_mlx.cli.main import main\n"
            "sys.argv = ['diversed', '--help']\n"
            "try: main()\n"
            "except SystemExit as end: assert not end.code",
            id="diversed --help",
        ),
    ],
)
def test_a_quick_start_loads_nothing_heavy(script):
    report = f"\nprint('loaded:', [name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{script}{report}"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded: []"
