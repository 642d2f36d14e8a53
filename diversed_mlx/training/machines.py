"""Several machines under `mlx.launch`: each samples its own prompts, sums are taken over all, rank 0 writes.

Only MLX's standard collectives. Alone, every function returns what it was given.
"""

from dataclasses import dataclass
from typing import cast

import mlx.core as mx
import numpy as np

from ..errors import DiversedError


@dataclass(frozen=True)
class Machines:
    """The group of processes that train one head.

    Args:
        group: of MLX; with one member where there is no launcher.
    """

    group: mx.distributed.Group

    @classmethod
    def join(cls) -> "Machines":
        """Join the group that `mlx.launch` made, or be alone.

        Raises:
            DiversedError: the launcher's other processes cannot be reached.
        """
        try:
            return cls(mx.distributed.init())
        except (RuntimeError, ValueError) as error:
            raise DiversedError(f"cannot reach the other machines of this run: {error}") from error

    @property
    def rank(self) -> int:
        """Which member this is, from 0."""
        return self.group.rank()

    @property
    def size(self) -> int:
        """How many members there are."""
        return self.group.size()

    @property
    def leads(self) -> bool:
        """Whether this one writes files and speaks."""
        return self.rank == 0

    def total(self, arrays: list[mx.array]) -> list[mx.array]:
        """Sum arrays over all members, in one exchange.

        Args:
            arrays: float32, of the same shapes everywhere.

        Raises:
            DiversedError: a member is gone.
        """
        if self.size == 1:
            return arrays
        # One flat array: a ring pays for each exchange, not for its few kilobytes. The sum is made on the CPU, where
        # the collectives of every backend run.
        flat = mx.concatenate([array.reshape(-1) for array in arrays])
        try:
            summed = mx.distributed.all_sum(flat, group=self.group)
            mx.eval(summed)
        except RuntimeError as error:
            raise DiversedError(
                f"another machine of this run is gone ({error}): start all again with --resume"
            ) from error
        sums, start = [], 0
        for array in arrays:
            sums.append(summed[start : start + array.size].reshape(array.shape))
            start += array.size
        return sums

    def share(self, content: bytes) -> bytes:
        """Give every member what rank 0 has.

        Args:
            content: on rank 0; elsewhere it is not looked at.

        Raises:
            DiversedError: a member is gone.
        """
        if self.size == 1:
            return content
        mine = np.frombuffer(content if self.leads else b"", np.uint8).astype(np.float32)
        (length,) = self.total([mx.array([float(len(mine))])])
        padded = np.zeros(int(cast(float, length.item())), np.float32)
        padded[: len(mine)] = mine
        (shared,) = self.total([mx.array(padded)])
        return np.array(shared).astype(np.uint8).tobytes()
