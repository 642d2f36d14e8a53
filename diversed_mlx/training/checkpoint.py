"""The file that a stopped run goes on from: one safetensors file, written by rename, so it is always a whole one."""

import io
import json
import os
from pathlib import Path
from typing import cast

import mlx.core as mx

from ..errors import DiversedError

FILE = "checkpoint.safetensors"


def save(folder: Path, tensors: dict[str, mx.array], facts: dict) -> None:
    """Write a checkpoint.

    Args:
        folder: where runs keep theirs; it exists.
        tensors: by name.
        facts: everything that is not a tensor, as JSON writes it.

    Raises:
        DiversedError: it cannot be written; the one before is untouched.
    """
    partial = folder / f".{os.getpid()}-{FILE}"
    try:
        try:
            mx.save_safetensors(str(partial), tensors, metadata={"format": "mlx", "facts": json.dumps(facts)})
            os.replace(partial, folder / FILE)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        raise DiversedError(f"cannot write the checkpoint {folder / FILE}: {error}") from error


def read(folder: Path) -> bytes:
    """The bytes of a folder's checkpoint.

    Raises:
        DiversedError: there is none, or it cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        raise DiversedError(f"{folder} holds no run to go on with: {FILE} is missing")
    try:
        return path.read_bytes()
    except OSError as error:
        raise DiversedError(f"cannot read {path}: {error.strerror}") from error


def parse(content: bytes) -> tuple[dict[str, mx.array], dict]:
    """Turn what `read` gave back into tensors and facts.

    Raises:
        DiversedError: it is not what `save` wrote.
    """
    try:
        tensors, metadata = cast(
            tuple[dict, dict], mx.load(io.BytesIO(content), format="safetensors", return_metadata=True)
        )
        mx.eval(tensors)
        return tensors, json.loads(metadata["facts"])
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise DiversedError(f"{FILE} is not the checkpoint of a run: {error}") from error
