"""Files that appear whole or not at all."""

import os
from pathlib import Path

from .errors import DiversedError


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file by rename: whoever reads it sees the old content or the new, never a part.

    Args:
        path: in a folder that exists.
        content: text, as UTF-8, or bytes.

    Raises:
        DiversedError: it cannot be written; what was there is untouched.
    """
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        try:
            partial.write_bytes(content.encode() if isinstance(content, str) else content)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise DiversedError(f"cannot write {path}: {error.strerror}") from error
