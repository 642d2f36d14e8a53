"""Between tokens and text: reading a prompt, the streaming detokenizer, stop strings.

Knows a tokenizer and strings; no models, no sampling, no chat template.
"""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .errors import DiversedError


def require_unicode(text: str) -> None:
    """Refuse text that no tokenizer can read.

    Raises:
        DiversedError: text with lone surrogates, which is how Python keeps bytes that are not UTF-8.
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DiversedError("the text is not valid UTF-8: convert it first")


def encode(tokenizer: TokenizerWrapper, prompt: str | Sequence[int] | mx.array) -> list[int]:
    """Turn a prompt into token ids.

    Args:
        tokenizer: the pair's.
        prompt: text, or ids as a list or an array of shape (T,).

    Raises:
        DiversedError: text with halves of a character, as invalid UTF-8 leaves behind.
    """
    if isinstance(prompt, mx.array):
        return cast(list[int], prompt.tolist())
    if not isinstance(prompt, str):
        return [int(token) for token in prompt]
    require_unicode(prompt)
    if not prompt:
        return []
    # A template or a person may have written the BOS token already.
    bos = tokenizer.bos_token
    return tokenizer.encode(prompt, add_special_tokens=bos is None or not prompt.startswith(bos))


class Detokenizer:
    """Text of a growing list of tokens, each character once and only when it is whole.

    A few tokens are decoded with their predecessors and without, and the difference is new: byte tokens, a
    tokenizer's own handling of leading spaces, and runs of ids that only decode together all come out as
    `tokenizer.decode` of the whole list gives them, at a cost that does not grow with the list. Only where a
    tokenizer with byte fallback meets bytes that are no UTF-8 can a replacement character more or less come out.

    Args:
        tokenizer: any tokenizer with `decode`.
    """

    def __init__(self, tokenizer: TokenizerWrapper):
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = 0  # of the tokens that are decoded with the new ones
        self._done = 0  # tokens whose text was handed out

    def add(self, token: int) -> str:
        """Add a token and return the text that is now whole, maybe none."""
        self._tokens.append(token)
        return self._new_text(final=False)

    def finish(self) -> str:
        """Return what is left; bytes that never became a character are replacement characters."""
        return self._new_text(final=True)

    def _new_text(self, final: bool) -> str:
        before = self._decode(self._tokens[self._start : self._done])
        text = self._decode(self._tokens[self._start :])
        if not final and (text.endswith("\ufffd") or len(text) <= len(before)):
            return ""
        self._start, self._done = self._done, len(self._tokens)
        return text[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


class StopStrings:
    """Finds the first stop string in text that comes in pieces, holding back what may become one.

    Args:
        stop: the strings.
    """

    def __init__(self, stop: Sequence[str]):
        self._stop = tuple(stop)
        self._held = ""

    def add(self, text: str) -> tuple[str, bool]:
        """Add text; return what is safe to hand out, and whether a stop string was reached."""
        self._held += text
        # The match that ends first is the one that a reader of single characters finds: pieces make no difference.
        found = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            return self._held[: min(found)[1]], True
        keep = max((self._overlap(stop) for stop in self._stop), default=0)
        safe, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return safe, False

    def finish(self) -> str:
        """Return what was held back and did not become a stop string."""
        return self._held

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins the stop string."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if stop.startswith(self._held[-n:])), 0)
