"""One sequence: the committed tokens and what each model has read of them.

The invariant, true between any two rounds and after any way to stop: a cache holds exactly the first
`cache.offset` committed tokens. Whatever a model has not read is fed as `committed[cache.offset:]`, so full
acceptance, Ctrl-C, a prompt that shares a beginning with the last one and an edited history are all one case.
"""

from collections.abc import Sequence

from .cache import Cache


class Context:
    """Committed tokens and a cache for each model.

    Args:
        target_cache: the target's.
        draft_cache: the draft's, or None without a draft.
    """

    def __init__(self, target_cache: Cache, draft_cache: Cache | None):
        self.tokens: list[int] = []
        self.target_cache = target_cache
        self.draft_cache = draft_cache

    @property
    def caches(self) -> list[Cache]:
        """The caches of the models that take part."""
        return [self.target_cache] if self.draft_cache is None else [self.target_cache, self.draft_cache]

    def rewind(self, n: int) -> None:
        """Bring both caches back to at most n tokens and leave the committed ones alone."""
        for cache in self.caches:
            cache.rewind(n)

    def settle(self) -> None:
        """Bring both caches back to committed tokens after a round that did not finish, at any moment."""
        self.rewind(len(self.tokens))

    def truncate(self, n: int) -> None:
        """Keep the first n committed tokens."""
        self.rewind(n)
        del self.tokens[n:]

    def start(self, prompt: Sequence[int]) -> None:
        """Make a prompt the committed tokens, keeping what the caches already hold of it.

        Args:
            prompt: token ids, at least one.
        """
        self.settle()
        shared = 0
        for old, new in zip(self.tokens, prompt, strict=False):
            if old != new:
                break
            shared += 1
        # The last token is read again even if it was: its logits are the first prediction.
        self.truncate(min(shared, len(prompt) - 1))
        self.tokens.extend(prompt[len(self.tokens) :])

    def reset(self) -> None:
        """Forget everything."""
        self.tokens.clear()
        self.forget()

    def forget(self) -> None:
        """Empty both caches and keep the tokens: after an error, arrays may never have got their values."""
        for cache in self.caches:
            cache.reset()
