"""Examples of a data set: from its rows, of the Hub or of files of your own, those of a split and a seed.

Files have the columns of the Hub's data set: a folder with train.jsonl and test.jsonl (or validation.jsonl), also in
parts such as train-00000-of-00002.parquet as the Hub stores them; or one file, of which a fixed fifth is for testing.
"""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import DiversedError
from .files import Row, find_files, read_file
from .hub_rows import HubData, load_from_hub
from .task import Example, Split

TEST_SHARE = 1 / 5  # of a data set that has no split of its own


class Rows:
    """Gives examples of a data set, the same for the same seed.

    Args:
        hub: where the rows come from unless they are given.
        example: makes an example of a row.
        data: a file or folder of rows. Default: the Hub's.
        category: which rows of a Spec-Bench file are used; None where such a file has none for the task.

    Raises:
        DiversedError: `data` holds no such files.
    """

    def __init__(
        self, hub: HubData, example: Callable[[Row], Example], *, data: Path | None = None, category: str | None = None
    ):
        self._hub, self._example, self._category = hub, example, category
        self._files = None if data is None else find_files(data)
        self._read: dict[str, tuple[str, Sequence[Row]]] = {}

    def examples(self, split: Split, n: int, seed: int = 0) -> list[Example]:
        """Give n examples, shuffled; fewer of the same seed are the first of more.

        Args:
            split: "train" or "test"; no question is in both, unless the data set's own splits share one.
            n: how many.
            seed: Default 0.

        Raises:
            DiversedError: there are fewer, they cannot be read, or a row lacks what an example needs.
        """
        divided = self._hub.splits is None if self._files is None else None in self._files
        where, rows = self._rows(None if divided else split)
        indices: Sequence[int] = range(len(rows))
        if divided:
            indices = [i for i in indices if is_for_testing(self._make(where, rows, i).question) == (split == "test")]
        if n > len(indices):
            share = f" (of {len(rows)}, a fixed fifth is for testing)" if divided else ""
            raise DiversedError(f"{where} has {len(indices)} {split} examples{share}: {n} are too many")
        return [self._make(where, rows, indices[i]) for i in draw(len(indices), n, seed)]

    def _rows(self, split: Split | None) -> tuple[str, Sequence[Row]]:
        """The rows of a split, or all of an undivided data set, with what to call them; read once."""
        key = split or "all"
        if key not in self._read:
            if self._files is None:
                name = "test" if self._hub.splits is None else self._hub.splits[split == "test"]
                self._read[key] = f"{self._hub.repo} ({name})", load_from_hub(self._hub, name)
            else:
                self._read[key] = self._read_files(self._files, split)
        return self._read[key]

    def _read_files(self, files: Mapping[str | None, list[Path]], split: Split | None) -> tuple[str, list[Row]]:
        names = {None: [None], "train": ["train"], "test": ["test", "validation"]}[split]
        found = next((files[name] for name in names if name in files), None)
        if found is None:
            folder = next(iter(files.values()))[0].parent
            raise DiversedError(f"{folder} has no {' or '.join(f'{name}.jsonl' for name in names)}")
        where = str(found[0]) if len(found) == 1 else f"{found[0].parent} ({split})"
        rows = [row for path in found for row in read_file(path)]
        if rows and {"category", "turns", "reference"} <= rows[0].keys():
            rows = self._spec_bench(where, rows)
        if not rows:
            raise DiversedError(f"{where} has no rows")
        return where, rows

    def _spec_bench(self, where: str, rows: list[Row]) -> list[Row]:
        used = [row for row in rows if row.get("category") == self._category]
        if not used:
            raise DiversedError(
                f"{where}: rows of Spec-Bench, none of which is for this task; there are "
                + ", ".join(sorted({str(row.get("category")) for row in rows}))
            )
        return used

    def _make(self, where: str, rows: Sequence[Row], index: int) -> Example:
        try:
            return self._example(rows[index])
        except DiversedError as error:
            raise DiversedError(f"{where}, row {index + 1}: {error}") from error


def text_of(row: Row, column: str) -> str:
    """Give a column's text.

    Args:
        row: what has columns.
        column: its name.

    Raises:
        DiversedError: there is no such column, or something else is in it; to be told with the row's place.
    """
    if column not in row:
        raise DiversedError(f"no column {column!r}; there are {', '.join(sorted(row))}")
    if not isinstance(row[column], str):
        raise DiversedError(f"column {column!r} holds {type(row[column]).__name__}, not text")
    return row[column]


def first_text(row: Row, column: str) -> str:
    """Give the first text of a column that holds a list of them.

    Args:
        row: what has columns.
        column: its name.

    Raises:
        DiversedError: there is none.
    """
    texts = row.get(column)
    if not (isinstance(texts, list) and texts and isinstance(texts[0], str)):
        raise DiversedError(f"column {column!r} must be a list of texts")
    return texts[0]


def is_for_testing(question: str) -> bool:
    """Say in which split a question of an undivided data set is: it depends on nothing else."""
    return int.from_bytes(hashlib.sha256(question.encode("utf-8", "replace")).digest()[:4]) < TEST_SHARE * 2**32


def draw(size: int, n: int, seed: int) -> list[int]:
    """Draw n different numbers below size; fewer of the same seed are the first of more.

    Args:
        size: how many there are.
        n: at most `size`.
        seed: decides which.
    """
    rng = random.Random(seed)
    drawn: dict[int, None] = {}
    while len(drawn) < n:
        drawn[rng.randrange(size)] = None
    return list(drawn)
