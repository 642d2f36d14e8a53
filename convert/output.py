"""Files and folders that appear whole or not at all. Knows nothing of what is written."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diversed_mlx.errors import DiversedError


def require_new(path: str | Path) -> Path:
    """Check, before any work, that a folder can be made where nothing is yet.

    Args:
        path: where the folder shall appear.

    Returns:
        Its full path.

    Raises:
        DiversedError: something is there already, or its parent cannot be written.
    """
    path = Path(path).expanduser().absolute()
    if os.path.lexists(path):
        raise DiversedError(f"{path} exists already: name another folder, or remove it")
    parent = _existing(path)
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise DiversedError(f"cannot write {path}: {parent} is not a folder that you may write to")
    return path


def require_space(path: Path, needed: int) -> None:
    """Check, before any work, that a disk has room.

    Args:
        path: what shall be written.
        needed: bytes.

    Raises:
        DiversedError: it has not.
    """
    free = shutil.disk_usage(_existing(path)).free
    if free < needed:
        raise DiversedError(
            f"{path} needs about {needed / 1e9:.2f} GB, and its disk has {free / 1e9:.2f} GB free: "
            f"make room, or write elsewhere"
        )


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill, which becomes `path` if all goes well; nothing is left if not.

    Args:
        path: from `require_new`.

    Raises:
        DiversedError: it cannot be written.
    """
    require_new(path)
    made = [parent for parent in path.parents if not parent.exists()]
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    done = False
    try:
        partial.mkdir(parents=True)
        yield partial
        os.rename(partial, path)
        done = True
    except OSError as error:
        raise DiversedError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if not done:
            shutil.rmtree(partial, ignore_errors=True)
            for parent in made:  # the innermost first; those that others have used stay
                if parent.is_dir() and not any(parent.iterdir()):
                    parent.rmdir()


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Give a name to write to, and move it to `path` if all went well; nothing is left if not.

    Args:
        path: the file that shall appear.

    Raises:
        DiversedError: the file cannot be written.
    """
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        try:
            yield partial
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise DiversedError(f"cannot write {path}: {error.strerror or error}") from error


def _existing(path: Path) -> Path:
    """The nearest folder above a path that exists."""
    return next(parent for parent in path.parents if parent.exists())
