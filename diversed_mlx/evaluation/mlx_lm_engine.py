"""mlx-lm's own speculative decoding as one more method, on the same two models.

It takes a draft where it equals the target's own sample, so at temperature 0 it is lossless decoding and above that
it accepts with the chance that two samples agree. It tells which tokens are the draft's, and no chances.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.sample_utils import make_sampler

from ..block import Origin
from ..errors import DiversedError
from ..pair import Pair
from ..text import Detokenizer
from .engine import Settings
from .record import Reply, Round, Token


@dataclass(frozen=True)
class MlxLm:
    """Speculative decoding as mlx-lm has it.

    Args:
        pair: the models, with a draft.

    Raises:
        DiversedError: no draft.
    """

    pair: Pair

    def __post_init__(self):
        if self.pair.draft is None:
            raise DiversedError("mlx-lm needs a pair with a draft")

    def __call__(self, prompt: Sequence[int], settings: Settings, seed: int) -> Reply:
        """Answer a prompt.

        Raises:
            DiversedError: a draft length that is no number, which mlx-lm has not.
        """
        length, sampling, draft = settings.num_draft_tokens, settings.sampling, self.pair.draft
        if not isinstance(length, int):
            raise DiversedError(f"mlx-lm drafts a fixed number of tokens, not {length}")
        assert draft is not None
        room = settings.max_tokens
        if self.pair.context_length is not None:  # as this library's engine does
            room = min(room, self.pair.context_length - len(prompt))
        mx.random.seed(seed)  # its samplers draw from the global state
        began, first = time.perf_counter(), 0.0
        ids: list[int] = []
        drafted: list[bool] = []
        for response in stream_generate(
            self.pair.target.model,
            self.pair.tokenizer,
            list(prompt),
            max_tokens=room,
            draft_model=draft.model,
            num_draft_tokens=length,
            sampler=make_sampler(temp=sampling.temp, top_p=sampling.top_p, min_p=sampling.min_p, top_k=sampling.top_k),
        ):
            first = first or time.perf_counter() - began
            ids.append(response.token)
            drafted.append(response.from_draft)
        texts = self._texts(ids)
        tokens: list[Token] = []
        rounds: list[Round] = []
        for accepted, ended in runs(drafted):
            # A draft is never longer than what may still be said; of one that ends the answer, the rest does not count.
            proposed = accepted if not ended else min(length, room - len(tokens))
            origins: list[Origin] = ["accepted"] * accepted
            if ended:
                origins.append("bonus" if accepted == proposed else "corrected")
            for origin in origins:
                tokens.append(Token(text=texts[len(tokens)], origin=origin, target_weight=None))
            rounds.append(Round(proposed=proposed, accepted=accepted, tokens=len(origins), chances=None, ends=False))
        return Reply(tokens=tokens, rounds=rounds, first_token_seconds=first)

    def _texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, read as this library's engine reads it: models are compared, not detokenizers."""
        detokenizer = Detokenizer(self.pair.tokenizer)
        texts = [detokenizer.finish() if i in self.pair.stop_tokens else detokenizer.add(i) for i in ids]
        return [*texts[:-1], texts[-1] + detokenizer.finish()] if texts else []


def runs(drafted: Sequence[bool]) -> list[tuple[int, bool]]:
    """Divide an answer into rounds: each ends with the target's token, the last perhaps with an accepted draft.

    Args:
        drafted: whether each token is the draft's.

    Returns:
        For each round the accepted drafts, and whether a token of the target follows them.
    """
    found, accepted = [], 0
    for from_draft in drafted:
        if from_draft:
            accepted += 1
        else:
            found.append((accepted, True))
            accepted = 0
    return [*found, (accepted, False)] if accepted else found
