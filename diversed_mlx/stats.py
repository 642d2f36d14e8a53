"""The figures of an answer: what was proposed and accepted, and how fast. Counts blocks, knows no text."""

import time
from dataclasses import dataclass

import mlx.core as mx

from .block import Block


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Counts and speeds of an answer so far.

    Args:
        prompt_tokens: tokens of the prompt.
        cached_tokens: how many of them the target had already read.
        generated_tokens: tokens of the answer, a stop token included.
        rounds: target passes that gave them.
        proposed: drafted tokens, without those behind the end of the answer.
        accepted: how many of them were accepted.
        mean_target_weight: mean weight on the target where a drafted token was verified; None without any.
        prompt_tps: tokens of the prompt read a second.
        generation_tps: tokens a second after the first round, 0 if there was no other.
        peak_memory_gb: most memory that MLX held, in 10^9 bytes.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    rounds: int
    proposed: int
    accepted: int
    mean_target_weight: float | None
    prompt_tps: float
    generation_tps: float
    peak_memory_gb: float

    @property
    def acceptance_rate(self) -> float | None:
        """Acceptance rate: accepted / proposed, or None if nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def tokens_per_round(self) -> float | None:
        """Mean of generated_tokens / rounds, or None before the first round."""
        return self.generated_tokens / self.rounds if self.rounds else None


class Meter:
    """Counts tokens and rounds and takes the times of one answer."""

    def __init__(self, prompt_tokens: int, cached_tokens: int):
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = cached_tokens
        self._began = time.perf_counter()
        self._first: float | None = None
        self._generated = self._timed = self._rounds = self._proposed = self._accepted = self._weighed = 0
        self._weight = 0.0

    def begin_block(self) -> None:
        """Count a round."""
        if self._first is None:
            self._first = time.perf_counter()
        self._rounds += 1

    def count(self, block: Block, index: int) -> None:
        """Count one token of a block, and with the last accepted one the drafts that were rejected behind it."""
        self._generated += 1
        self._timed += self._rounds > 1  # the first round's time belongs to the prompt, and so do its tokens
        origin, weight = block.origins[index], block.target_weights[index]
        if origin == "accepted":
            self._proposed += 1
            self._accepted += 1
        else:
            self._proposed += block.proposed - block.accepted
        if weight is not None and origin in ("accepted", "corrected"):
            self._weight += weight
            self._weighed += 1

    def stats(self) -> Stats:
        """The figures so far."""
        now = time.perf_counter()
        first = now if self._first is None else self._first
        read = 0 if self._first is None else self._prompt_tokens - self._cached_tokens
        return Stats(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated,
            rounds=self._rounds,
            proposed=self._proposed,
            accepted=self._accepted,
            mean_target_weight=self._weight / self._weighed if self._weighed else None,
            prompt_tps=read / max(first - self._began, 1e-9),
            generation_tps=self._timed / max(now - first, 1e-9),
            peak_memory_gb=mx.get_peak_memory() / 1e9,
        )
