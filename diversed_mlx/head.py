"""The ensemble head: from the hidden states of both models to the weight on the target.

The layout is that of the released research checkpoint: one linear layer on the draft's and the target's hidden
state, draft first, whose two outputs are the draft's and the target's share. This file knows one head and its
two files on disk; which head belongs to which pair is `heads.py`.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from .errors import DiversedError

WEIGHTS_FILE = "head.safetensors"
METADATA_FILE = "head.json"
METADATA_FIELDS = ("pair", "task", "data", "recipe", "seed", "metrics", "versions")
BENCH = "bench"  # figures by strictness, see `dial.py`; only in the files of heads that were measured


def recorded_fields(metadata: Mapping) -> dict:
    """Pick from metadata what `head.json` records: every field, and the bench where there is one."""
    fields = {field: metadata.get(field) for field in METADATA_FIELDS}
    return fields if metadata.get(BENCH) is None else fields | {BENCH: metadata[BENCH]}


class EnsembleHead(nn.Module):
    """Weight on the target from both hidden states, w = sigmoid(z_1 - z_0) (method "Ensemble head").

    A new head gives w = 1/2 everywhere: both rows of the layer start equal and the bias is 0.

    Args:
        draft_size: width of the draft's hidden state.
        target_size: width of the target's hidden state.
        metadata: what `head.json` records beside the sizes: pair, task, data, recipe, seed, metrics, versions, and
            maybe bench.
    """

    def __init__(self, draft_size: int, target_size: int, metadata: dict | None = None):
        super().__init__()
        self.summary = nn.Linear(draft_size + target_size, 2)
        row = 0.01 * mx.random.normal((1, draft_size + target_size), key=mx.random.key(0))
        self.summary.weight = mx.concatenate([row, row])
        self.summary.bias = mx.zeros(2)
        self._draft_size = draft_size
        self._target_size = target_size
        self._metadata = dict(metadata or {})

    @property
    def draft_size(self) -> int:
        """Width of the draft's hidden state."""
        return self._draft_size

    @property
    def target_size(self) -> int:
        """Width of the target's hidden state."""
        return self._target_size

    @property
    def metadata(self) -> dict:
        """What `head.json` records beside the sizes."""
        return self._metadata

    @property
    def fingerprint(self) -> str:
        """Hash of the weights, by which a head is known again."""
        digest = hashlib.sha256()
        for array in (self.summary.weight, self.summary.bias):
            digest.update(np.array(array.astype(mx.float32)).tobytes())
        return digest.hexdigest()[:16]

    def logit(self, draft_hidden: mx.array, target_hidden: mx.array) -> mx.array:
        """Logit z = z_1 - z_0 of the weight on the target.

        Args:
            draft_hidden: last hidden state of the draft, shape (..., draft_size).
            target_hidden: last hidden state of the target, shape (..., target_size).

        Returns:
            Shape (..., 1), float32 whatever the type of the head and of the models.
        """
        hidden = mx.concatenate([draft_hidden.astype(mx.float32), target_hidden.astype(mx.float32)], axis=-1)
        # The difference of the two rows first: half the work, and a softmax of two is a sigmoid of it.
        weight, bias = self.summary.weight.astype(mx.float32), self.summary.bias.astype(mx.float32)
        return hidden @ (weight[1:] - weight[:1]).T + (bias[1:] - bias[:1])

    def __call__(self, draft_hidden: mx.array, target_hidden: mx.array) -> mx.array:
        """Weight on the target, shape (..., 1); arguments as for `logit`."""
        return mx.sigmoid(self.logit(draft_hidden, target_hidden))

    def save(self, path: str | Path) -> None:
        """Write `head.safetensors` and `head.json` into a folder, each by rename.

        Args:
            path: the folder; made if it does not exist.

        Raises:
            DiversedError: the folder cannot be written.
        """
        folder = Path(path).expanduser()
        sizes = {"draft_size": self.draft_size, "target_size": self.target_size}
        recorded = recorded_fields(self.metadata)
        weights = folder / f".{os.getpid()}-{WEIGHTS_FILE}"
        metadata = folder / f".{os.getpid()}-{METADATA_FILE}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                mx.save_safetensors(
                    str(weights), {"summary.weight": self.summary.weight, "summary.bias": self.summary.bias}
                )
                metadata.write_text(json.dumps(sizes | recorded, indent=2) + "\n", encoding="utf-8")
                os.replace(weights, folder / WEIGHTS_FILE)
                os.replace(metadata, folder / METADATA_FILE)
            finally:
                weights.unlink(missing_ok=True)
                metadata.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:
            raise DiversedError(f"cannot write a head to {folder}: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> "EnsembleHead":
        """Read a folder that `save` wrote.

        Args:
            path: the folder.

        Raises:
            DiversedError: a missing or damaged file, sizes that disagree with the tensors, or a weight that is
                not a finite number.
        """
        folder = Path(path).expanduser()
        for name in (WEIGHTS_FILE, METADATA_FILE):
            if not (folder / name).is_file():
                raise DiversedError(f"{folder} holds no head: {name} is missing")
        try:
            metadata = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
            draft_size, target_size = metadata["draft_size"], metadata["target_size"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DiversedError(f"{folder / METADATA_FILE} is not a head's description: {error!r}") from error
        if not all(type(size) is int and size > 0 for size in (draft_size, target_size)):
            raise DiversedError(f"{folder / METADATA_FILE}: draft_size and target_size must be positive integers")
        try:
            tensors = cast(dict[str, mx.array], mx.load(str(folder / WEIGHTS_FILE)))
            mx.eval(tensors)
        except (OSError, RuntimeError, ValueError) as error:
            raise DiversedError(f"{folder / WEIGHTS_FILE} cannot be read: {error}") from error
        expected = {"summary.weight": (2, draft_size + target_size), "summary.bias": (2,)}
        found = {name: tensor.shape for name, tensor in tensors.items()}
        if found != expected:
            raise DiversedError(f"{folder / WEIGHTS_FILE} holds {found}, but head.json describes {expected}")
        for name, tensor in tensors.items():
            if not mx.issubdtype(tensor.dtype, mx.floating):
                raise DiversedError(f"{folder / WEIGHTS_FILE}: {name} is {tensor.dtype}, not a float type")
            if not mx.all(mx.isfinite(tensor)).item():
                raise DiversedError(f"{folder / WEIGHTS_FILE}: {name} holds NaN or infinity: train the head again")
        head = cls(draft_size, target_size, recorded_fields(metadata))
        head.summary.weight, head.summary.bias = tensors["summary.weight"], tensors["summary.bias"]
        return head
