"""Rows in files: JSONL, JSON (a list of objects) or parquet, alone or in a folder with a file or more for each split.

They are read by plain readers, so that nothing is written beside them and an error can name the line. Knows no task.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DiversedError

Row = Mapping[str, Any]

SUFFIXES = (".jsonl", ".json", ".parquet")


def find_files(data: Path) -> dict[str | None, list[Path]]:
    """Find the files of a data set.

    Args:
        data: a folder, or a file.

    Returns:
        The files of each split, "train", "test" and "validation"; or under None the one that is not divided.

    Raises:
        DiversedError: there are none, or more than one way to read them.
    """
    data = data.expanduser()
    try:
        if not data.exists():
            raise DiversedError(f"{data}: no such file or folder")
        if not data.is_dir():
            if data.suffix not in SUFFIXES:
                raise DiversedError(f"{data}: rows must be in a file that ends in {', '.join(SUFFIXES)}")
            return {None: [data]}
        files = sorted(path for path in data.iterdir() if path.suffix in SUFFIXES)
    except OSError as error:
        raise DiversedError(f"cannot read {data}: {error.strerror}") from error
    found: dict[str | None, list[Path]] = {}
    for path in files:
        for split in ("train", "test", "validation"):
            if path.stem == split or path.stem.startswith(f"{split}-"):
                found.setdefault(split, []).append(path)
    for split, paths in found.items():
        if len(paths) > 1 and any(path.stem == split for path in paths):
            raise DiversedError(f"{data} has several files of {split}: {', '.join(p.name for p in paths)}; keep one")
    if found:
        return found
    if len(files) == 1:
        return {None: files}
    names = ", ".join(path.name for path in files)
    raise DiversedError(
        f"{data} has no train.jsonl and test.jsonl (or .json, .parquet)"
        + (f"; to use one of {names}, give that file" if files else "")
    )


def read_file(path: Path) -> list[Row]:
    """Read the rows of a JSONL, JSON or parquet file.

    Args:
        path: its name says which.

    Raises:
        DiversedError: it cannot be read, or is something else; with the line where that shows.
    """
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path)
        content = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DiversedError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DiversedError(f"{path} is not UTF-8 text") from error
    if path.suffix == ".json":
        rows = _parse(content, path)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DiversedError(f"{path} is not a list of objects; one object a line belongs in a .jsonl file")
        return rows
    rows = []
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            rows.append(_parse(line, path, number))
            if not isinstance(rows[-1], dict):
                raise DiversedError(f'{path}, line {number}: not an object such as {{"question": ...}}')
    return rows


def _parse(text: str, path: Path, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DiversedError(f"{path}, line {line or error.lineno}: not JSON ({error.msg})") from error
    except RecursionError as error:
        raise DiversedError(f"{path}, line {line or 1}: nested too deep") from error


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path).read().to_pylist()
    except pyarrow.ArrowException as error:
        raise DiversedError(f"{path} is not a parquet file: {str(error).splitlines()[0]}") from error
