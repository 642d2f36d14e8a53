"""What one round of drafting and checking gave, in plain numbers. It knows no model and no array."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

Origin = Literal["accepted", "corrected", "bonus", "plain"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """The tokens of one round, up to the first stop token.

    Args:
        tokens: ids, at least one: the accepted drafts and then, unless a draft was a stop token, one of the target's.
        origins: where each comes from: accepted from the draft, the target's correction of a rejected one, its bonus
            after a fully accepted draft, or plain decoding.
        target_weights: weight on the target that each was verified with; None where the rule has none.
        proposed: drafted tokens; those behind a stop token are not counted.
        accepted: how many of them were accepted.
        draft_tokens: ids of the drafted tokens up to the first stop token among them, accepted or not.
        accept_probabilities: probability that each of `draft_tokens` is accepted if those before it are.
        target_probabilities: p of each of `tokens` where the decoder traces, else None; at temperature 0 as at 1.
        draft_probabilities: q of each, likewise; None for a bonus and in plain decoding, which have no q.
    """

    tokens: list[int]
    origins: list[Origin]
    target_weights: list[float | None]
    proposed: int
    accepted: int
    draft_tokens: list[int]
    accept_probabilities: list[float]
    target_probabilities: list[float | None]
    draft_probabilities: list[float | None]


class Outcome(NamedTuple):
    """What the host learns of a round with K drafts: the values of one array."""

    accepted: int
    follower: int
    draft_tokens: list[int]  # K
    target_weights: list[float | None]  # K
    accept_probabilities: list[float]  # K
    target_probabilities: list[float | None]  # K + 1, of the accepted drafts, then of the follower; None untraced
    draft_probabilities: list[float | None]  # K + 1, likewise

    @classmethod
    def read(cls, values: list[float], length: int) -> "Outcome":
        """Take the array apart: accepted, follower, then K tokens, K weights, K chances and, traced, p and q."""
        accepted, follower, rest = int(values[0]), int(values[1]), values[2:]
        tokens, weights, chances, traced = (
            rest[:length], rest[length : 2 * length], rest[2 * length : 3 * length], rest[3 * length :]
        )  # fmt: skip
        known = [None if math.isnan(value) else value for value in traced] or [None] * (2 * length + 2)
        return cls(
            accepted=accepted,
            follower=follower,
            draft_tokens=[int(token) for token in tokens],
            target_weights=[None if math.isnan(weight) else weight for weight in weights],
            accept_probabilities=chances,
            target_probabilities=known[: length + 1],
            draft_probabilities=known[length + 1 :],
        )
