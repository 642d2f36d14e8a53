"""How a method answers a prompt, and this library's own engine doing so. It knows no task and no name of a method."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..answer import Options, answer
from ..block import Block
from ..pair import Pair
from ..sampling import Sampling
from ..verifiers import Verifier
from .record import DECIMALS, Reply, Round, Token, rounded


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What all methods of a comparison share.

    Args:
        sampling: how tokens are chosen.
        num_draft_tokens: K, or "auto".
        max_tokens: most tokens of an answer.
    """

    sampling: Sampling
    num_draft_tokens: int | str
    max_tokens: int


class Method(Protocol):
    """A way to answer."""

    def __call__(self, prompt: Sequence[int], settings: Settings, seed: int) -> Reply:
        """Answer a prompt."""
        ...


@dataclass(frozen=True)
class Engine:
    """This library's engine.

    Args:
        pair: the models that take part.
        verifier: how drafts are checked; None decodes with the pair's target alone.
    """

    pair: Pair
    verifier: Verifier | None

    def __call__(self, prompt: Sequence[int], settings: Settings, seed: int) -> Reply:
        """Answer a prompt; the first token's time includes reading it."""
        options = Options(
            verifier=self.verifier,
            sampling=settings.sampling,
            num_draft_tokens=settings.num_draft_tokens,
            max_tokens=settings.max_tokens,
            seed=seed,
        )
        began, first = time.perf_counter(), 0.0
        tokens: list[Token] = []
        blocks: list[Block] = []
        for response in answer(self.pair, self.pair.make_context(), prompt, options):
            first = first or time.perf_counter() - began
            if not blocks or blocks[-1] is not response.block:
                blocks.append(response.block)
            tokens.append(
                Token(text=response.text, origin=response.origin, target_weight=rounded(response.target_weight))
            )
        return Reply(tokens=tokens, rounds=[self._round(block) for block in blocks], first_token_seconds=first)

    def _round(self, block: Block) -> Round:
        return Round(
            proposed=block.proposed,
            accepted=block.accepted,
            tokens=len(block.tokens),
            chances=[round(chance, DECIMALS) for chance in block.accept_probabilities],
            ends=bool(block.draft_tokens) and block.draft_tokens[-1] in self.pair.stop_tokens,
        )
