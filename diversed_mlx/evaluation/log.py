"""The answers of a comparison on disk: a line each, so that one that was stopped at any moment can go on.

The first line is the setting; a comparison goes on only under the same one.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from ..errors import DiversedError
from ..files import write_whole
from .record import Answer

FILE = "answers.jsonl"


class AnswerLog:
    """A comparison's folder.

    Args:
        folder: where the log lies; made if it does not exist.
        setting: everything that answers depend on, as JSON writes it.
    """

    def __init__(self, folder: Path, setting: dict):
        self.path = folder / FILE
        self._setting = json.loads(json.dumps(setting))

    def begin(self) -> None:
        """Write the first line.

        Raises:
            DiversedError: there is a log already, or it cannot be written.
        """
        if self.path.exists():
            raise DiversedError(
                f"{self.path.parent} holds a comparison already: go on with --resume, or choose another --output"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiversedError(f"cannot make the folder {self.path.parent}: {error.strerror}") from error
        write_whole(self.path, json.dumps({"setting": self._setting}) + "\n")

    def resume(self, questions: Sequence[str]) -> list[Answer]:
        """Read the answers so far, and drop a last line that was being written when the run was killed.

        Args:
            questions: of the examples, by number.

        Raises:
            DiversedError: there is no log, or it is damaged or of another setting.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            raise DiversedError(f"{self.path.parent} holds no comparison to go on with: {FILE} is missing") from None
        except OSError as error:
            raise DiversedError(f"cannot read {self.path}: {error.strerror}") from error
        lines = content.split(b"\n")
        torn = lines.pop()
        if not lines:
            raise DiversedError(f"{self.path} is not the log of a comparison: it has no first line")
        self._require_same(_parse(self.path, 1, lines[0]))
        answers = []
        for number, line in enumerate(lines[1:], start=2):
            plain = _parse(self.path, number, line)
            try:
                answer = Answer.from_json(plain)
                same = questions[answer.number] == answer.question
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise DiversedError(f"{self.path}, line {number}: not an answer: {error!r}") from error
            if not same:
                raise DiversedError(
                    f"{self.path}, line {number}: example {answer.number} was another question: the data changed"
                )
            answers.append(answer)
        if torn:
            write_whole(self.path, content[: -len(torn)].decode())
        return answers

    def append(self, answer: Answer) -> None:
        """Add an answer.

        Raises:
            DiversedError: it cannot be written.
        """
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(answer.to_json()) + "\n")
        except OSError as error:
            raise DiversedError(f"cannot write {self.path}: {error.strerror}") from error

    def _require_same(self, first: dict) -> None:
        found = first.get("setting")
        if not isinstance(found, dict):
            raise DiversedError(f"{self.path} is not the log of a comparison: its first line is no setting")
        for key in dict.fromkeys([*self._setting, *found]):
            if found.get(key) != self._setting.get(key):
                raise DiversedError(
                    f"the comparison in {self.path.parent} has another {key}, {json.dumps(found.get(key))}: go on with "
                    "what it began with, or choose another --output"
                )


def _parse(path: Path, number: int, line: bytes) -> dict:
    try:
        plain = json.loads(line)
    except ValueError as error:
        raise DiversedError(f"{path}, line {number}: not valid JSON: {error}") from error
    if not isinstance(plain, dict):
        raise DiversedError(f"{path}, line {number}: not an answer")
    return plain
