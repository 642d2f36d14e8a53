"""A draft and a target that can work together, and the checks that make them a pair.

After this file nothing has to ask again: both models have the same tokens on `vocab_size` ids, both caches can be
rewound, and `stop_tokens` and `context_length` hold for both.
"""

import mlx.core as mx

from .cache import require_rewindable
from .context import Context
from .errors import DiversedError
from .hub import resolve
from .lm import LM
from .memory import keep_resident, require_fit


class Pair:
    """A target, with or without a draft, on one vocabulary.

    Args:
        target: the model whose answers are wanted; its tokenizer, template and stop tokens are the pair's.
        draft: the small model that proposes; None to decode with the target alone.

    Raises:
        DiversedError: the two do not share a vocabulary, the draft does not know a stop token, or a cache cannot be
            rewound.
    """

    def __init__(self, target: LM, draft: LM | None = None):
        self.target = target
        self.draft = draft
        self.tokenizer = target.tokenizer
        known = _tokens(target)
        if draft is not None:
            require_rewindable(draft.make_cache(), f"the draft {draft.name}")
            require_rewindable(target.make_cache(), f"the target {target.name}")
            known = _shared_tokens(known, target, draft)
        if not known:
            raise DiversedError(f"{target.name}: the tokenizer names no token that the model can predict")
        self.vocab_size = max(known) + 1
        # Ids that no tokenizer names, between those that one does, must never be emitted either.
        gaps = [token for token in range(self.vocab_size) if token not in known]
        self._nameless = mx.array(gaps) if gaps else None
        self.stop_tokens = frozenset(token for token in self.tokenizer.eos_token_ids if token in known)
        lengths = [lm.context_length for lm in (target, draft) if lm is not None]
        self.context_length = min((length for length in lengths if length is not None), default=None)

    def shared_logits(self, logits: mx.array) -> mx.array:
        """Cut logits to the shared vocabulary, so that a padded tail or a nameless id never gets mass.

        Args:
            logits: of either model, shape (R, W) with W at least `vocab_size`.

        Returns:
            Shape (R, vocab_size).
        """
        logits = logits[:, : self.vocab_size]
        if self._nameless is not None:
            logits = mx.put_along_axis(logits, self._nameless[None], mx.array(-mx.inf, logits.dtype), axis=-1)
        return logits

    def make_context(self, max_kv_size: int | None = None, kv_bits: int | None = None) -> Context:
        """Make an empty sequence with a cache for each model; arguments as for `LM.make_cache`."""
        return Context(
            target_cache=self.target.make_cache(max_kv_size, kv_bits),
            draft_cache=self.draft.make_cache(max_kv_size, kv_bits) if self.draft is not None else None,
        )


def load_pair(target: str, draft: str | None = None, *, trust_remote_code: bool = False) -> Pair:
    """Load a target and, if given, a draft, and check that they are a pair.

    Args:
        target: an alias, a folder or a Hub id.
        draft: the same; the target's own name shares one copy of the weights. Default None, the target alone.
        trust_remote_code: run Python code that comes with a checkpoint. Default False.

    Raises:
        DiversedError: a model that cannot be found or read, does not fit in memory, or does not pair.
    """
    target_source = resolve(target)
    draft_source = resolve(draft) if draft is not None else None
    require_fit([source for source in (target_source, draft_source) if source is not None])
    target_lm = LM.load(target_source, trust_remote_code=trust_remote_code)
    draft_lm = None
    if draft_source == target_source:
        draft_lm = target_lm
    elif draft_source is not None:
        draft_lm = LM.load(draft_source, trust_remote_code=trust_remote_code)
    keep_resident()
    return Pair(target_lm, draft_lm)


def _tokens(lm: LM) -> dict[int, str]:
    """Text of each id that both the tokenizer names and the logits reach: three numbers that often differ."""
    return {token: text for text, token in lm.tokenizer.get_vocab().items() if token < lm.logits_size}


def _shared_tokens(target_tokens: dict[int, str], target: LM, draft: LM) -> dict[int, str]:
    """Ids on which both tokenizers agree; refuses two vocabularies that are not one."""
    draft_tokens = _tokens(draft)
    for token in sorted(target_tokens.keys() & draft_tokens.keys()):
        if target_tokens[token] != draft_tokens[token]:
            raise DiversedError(
                f"{draft.name} and {target.name} do not share a vocabulary: token {token} is "
                f"{draft_tokens[token]!r} in the draft and {target_tokens[token]!r} in the target"
            )
    # Added tokens may differ, as between releases of one family: they are then not used. Ordinary ones may not.
    added = target.tokenizer.added_tokens_decoder
    for token in sorted(target_tokens.keys() - draft_tokens.keys()):
        if token not in added:
            raise DiversedError(
                f"{draft.name} and {target.name} do not share a vocabulary: token {token} is "
                f"{target_tokens[token]!r} in the target and unknown to the draft"
            )
        if token in target.tokenizer.eos_token_ids:
            raise DiversedError(
                f"{draft.name} does not know the stop token {token} ({target_tokens[token]!r}) of {target.name}: "
                f"use a draft of the same family and generation"
            )
    return {token: text for token, text in target_tokens.items() if token in draft_tokens}
