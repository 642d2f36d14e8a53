"""A conversation on disk: one JSON file with the system prompt and the turns. Knows no model and no template."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DiversedError
from .text import require_unicode

FORMAT = "diversed conversation 1"
ROLES = ("user", "assistant")


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """What a conversation needs to go on where it was.

    Args:
        system: the system prompt, or None.
        messages: {"role", "content"} each, user and assistant in turn.
        turns: messages that were asked, those without an answer too: the seed of the next answer depends on it.

    Raises:
        DiversedError: values that are no conversation.
    """

    system: str | None
    messages: list[dict[str, str]]
    turns: int

    def __post_init__(self):
        if self.system is not None and not isinstance(self.system, str):
            raise DiversedError("the system prompt is not a text")
        if not isinstance(self.messages, list) or len(self.messages) % 2:
            raise DiversedError("the messages are no list of questions with an answer each")
        for index, message in enumerate(self.messages):
            if not isinstance(message, dict) or set(message) != {"role", "content"}:
                raise DiversedError(f"message {index + 1} is not an object with role and content")
            if message["role"] != ROLES[index % 2] or not isinstance(message["content"], str):
                raise DiversedError(f"message {index + 1} is not a text of the {ROLES[index % 2]}")
            require_unicode(message["content"])
        require_unicode(self.system or "")
        if type(self.turns) is not int or self.turns < len(self.messages) // 2:
            raise DiversedError("turns is not the number of messages that were asked")

    def write(self, path: str | Path) -> None:
        """Write the file, by rename.

        Args:
            path: where; an existing file is replaced if it is a saved conversation.

        Raises:
            DiversedError: something else is there, or it cannot be written.
        """
        described = {"format": FORMAT, "system": self.system, "turns": self.turns, "messages": self.messages}
        try:
            target = Path(os.path.realpath(Path(path).expanduser()))
            if target.exists() and not _is_saved(target):
                raise DiversedError(f"{path} is there and is not a saved conversation: choose another name")
            partial = target.with_name(f".{target.name[:200]}-{os.getpid()}")
            try:
                partial.write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
                os.replace(partial, target)
            finally:
                partial.unlink(missing_ok=True)
        except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name, a home that is not known
            raise DiversedError(f"cannot write {path}: {_reason(error)}") from error

    @classmethod
    def read(cls, path: str | Path) -> "Transcript":
        """Read a file that `write` made.

        Args:
            path: the file.

        Raises:
            DiversedError: it is not there, cannot be read, or is something else.
        """
        try:
            source = Path(path).expanduser()
            if not source.is_file():
                raise DiversedError(f"there is no file {path}")
            described: Any = json.loads(source.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise DiversedError(f"{path} is not a saved conversation: it is not JSON in UTF-8") from error
        except (OSError, RuntimeError) as error:
            raise DiversedError(f"cannot read {path}: {_reason(error)}") from error
        if not isinstance(described, dict) or described.get("format") != FORMAT:
            raise DiversedError(f'{path} is not a saved conversation: its format is not "{FORMAT}"')
        try:
            return cls(system=described["system"], messages=described["messages"], turns=described["turns"])
        except KeyError as error:
            raise DiversedError(f"{path} is damaged: {error} is missing") from error
        except DiversedError as error:
            raise DiversedError(f"{path} is damaged: {error}") from error


def _is_saved(path: Path) -> bool:
    try:
        Transcript.read(path)
    except DiversedError:
        return False
    return True


def _reason(error: Exception) -> str:
    """What the system says, without its number."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
