"""Tokens to text: the detokenizer, stop strings, and the responses that a caller sees.

The ring around `speculate.py`: it turns blocks into one `Response` a token and decides when the text is finished.
It knows no chat template and does not print.
"""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import cast

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .context import Context
from .draft_length import MAX_DRAFT_TOKENS, make_draft_length
from .errors import DiversedError
from .pair import Pair
from .sampling import LogitsProcessor, Sampling
from .speculate import Block, Decoder, Origin
from .verifiers import Lossless, Verifier


@dataclass(frozen=True, kw_only=True)
class Options:
    """Everything that shapes an answer beside the pair and the prompt.

    Args:
        verifier: what to allow of the draft; None decodes with the target alone. Default `Lossless()`.
        sampling: how tokens are chosen. Default `Sampling()`, temperature 1.
        num_draft_tokens: tokens drafted a round, 1 to 64, or "auto". Default 4.
        max_tokens: most tokens of the answer, -1 for as many as the context holds. Default 256.
        seed: at least 0; the same seed gives the same answer, unless "auto" measures times. Default 0.
        stop: strings that end the answer and are not part of it. Default none.
        logits_processors: functions of mlx-lm's form; each must depend on its two arguments alone, since positions
            are processed before it is known which of them stand. Default none.
        prefill_step_size: tokens of the prompt read at a time, at least 1. Default 2048.

    Raises:
        DiversedError: a value out of its range.
    """

    verifier: Verifier | None = field(default_factory=Lossless)
    sampling: Sampling = field(default_factory=Sampling)
    num_draft_tokens: int | str = 4
    max_tokens: int = 256
    seed: int = 0
    stop: Sequence[str] = ()
    logits_processors: Sequence[LogitsProcessor] = ()
    prefill_step_size: int = 2048

    def __post_init__(self):
        length = self.num_draft_tokens
        if length != "auto" and not (isinstance(length, int) and 1 <= length <= MAX_DRAFT_TOKENS):
            raise DiversedError(f'num_draft_tokens must be from 1 to {MAX_DRAFT_TOKENS} or "auto", not {length!r}')
        if self.max_tokens < -1:
            raise DiversedError(f"max_tokens must be -1 (no limit) or at least 0, not {self.max_tokens}")
        if not 0 <= self.seed < 2**64:
            raise DiversedError(f"seed must be from 0 to 2^64 - 1, not {self.seed}")
        if isinstance(self.stop, str) or not all(self.stop):
            raise DiversedError("stop must be a list of strings, none of them empty")
        for text in self.stop:
            require_unicode(text)
        if self.prefill_step_size < 1:
            raise DiversedError(f"prefill_step_size must be at least 1, not {self.prefill_step_size}")


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
        generation_tps: tokens of the answer a second, from its first token on.
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


@dataclass(frozen=True, kw_only=True)
class Response:
    """One token of an answer and the text that became readable with it.

    Args:
        text: new text, often empty: characters split over tokens and possible beginnings of a stop string wait.
        token: the token's id; a stop token has one response too, and no text of its own.
        origin: "accepted" from the draft, the target's "corrected" or "bonus" token, or "plain" decoding.
        target_weight: weight on the target that the token was verified with, 1 for a bonus, None without one.
        finish_reason: None until the last response, then "stop" or "length".
        stats: figures up to this token.
    """

    text: str
    token: int
    origin: Origin
    target_weight: float | None
    finish_reason: str | None
    stats: Stats

    @property
    def from_draft(self) -> bool:
        """True for a token that the draft proposed."""
        return self.origin == "accepted"


class Detokenizer:
    """Text of a growing list of tokens, each character once and only when it is whole.

    A few tokens are decoded with their predecessors and without, and the difference is new: byte tokens, a
    tokenizer's own handling of leading spaces, and runs of ids that only decode together all come out as
    `tokenizer.decode` of the whole list gives them, at a cost that does not grow with the list.

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
        found = [at for at in map(self._held.find, self._stop) if at >= 0]
        if found:
            return self._held[: min(found)], True
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


class Meter:
    """Counts tokens and rounds and takes the times of one answer."""

    def __init__(self, prompt_tokens: int, cached_tokens: int):
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = cached_tokens
        self._began = time.perf_counter()
        self._first: float | None = None
        self._generated = self._rounds = self._proposed = self._accepted = self._weighed = 0
        self._weight = 0.0

    def begin_block(self) -> None:
        """Count a round."""
        if self._first is None:
            self._first = time.perf_counter()
        self._rounds += 1

    def count(self, block: Block, index: int) -> None:
        """Count one token of a block, and with the last accepted one the drafts that were rejected behind it."""
        self._generated += 1
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
        read = self._prompt_tokens - self._cached_tokens
        return Stats(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated,
            rounds=self._rounds,
            proposed=self._proposed,
            accepted=self._accepted,
            mean_target_weight=self._weight / self._weighed if self._weighed else None,
            prompt_tps=read / max(first - self._began, 1e-9),
            generation_tps=self._generated / max(now - first, 1e-9),
            peak_memory_gb=mx.get_peak_memory() / 1e9,
        )


def answer(pair: Pair, context: Context, prompt: Sequence[int], options: Options) -> Generator[Response, None, None]:
    """Decode an answer to a prompt in a context that may already hold its beginning.

    Args:
        pair: the models.
        context: the sequence; afterwards it holds the prompt and every token that was handed out.
        prompt: token ids.
        options: everything else.

    Yields:
        One response a token.

    Raises:
        DiversedError: an empty prompt, one that does not fit, or a verifier without a draft.
    """
    if options.verifier is not None and pair.draft is None:
        raise DiversedError("this pair has no draft: load one, or pass verifier=None to decode with the target alone")
    limit = _token_limit(pair, prompt, options.max_tokens)
    if limit == 0:
        return
    context.start(prompt)
    meter = Meter(len(prompt), context.target_cache.offset)
    detokenizer, stops = Detokenizer(pair.tokenizer), StopStrings(options.stop)
    decoder = Decoder(
        pair,
        context,
        verifier=options.verifier,
        sampling=options.sampling,
        processors=options.logits_processors,
        seed=options.seed,
        prefill_step_size=options.prefill_step_size,
    )
    handed_out = len(prompt)
    end = None if limit is None else len(prompt) + limit
    blocks = decoder.blocks(make_draft_length(options.num_draft_tokens), limit)
    try:
        for block in blocks:
            meter.begin_block()
            for index, token in enumerate(block.tokens):
                meter.count(block, index)
                handed_out += 1
                reason = None
                if token in pair.stop_tokens:
                    text, stopped = stops.add(detokenizer.finish())
                    reason = "stop"
                else:
                    text, stopped = stops.add(detokenizer.add(token))
                    if not stopped and handed_out == end:
                        rest, stopped = stops.add(detokenizer.finish())
                        text, reason = text + rest, "length"
                if stopped:
                    reason = "stop"
                elif reason is not None:
                    text += stops.finish()
                yield Response(
                    text=text,
                    token=token,
                    origin=block.origins[index],
                    target_weight=block.target_weights[index],
                    finish_reason=reason,
                    stats=meter.stats(),
                )
                if reason is not None:
                    return
    finally:
        blocks.close()
        context.truncate(handed_out)


def _token_limit(pair: Pair, prompt: Sequence[int], max_tokens: int) -> int | None:
    """Most tokens that the answer may have, None for no limit."""
    if len(prompt) == 0:
        raise DiversedError("the prompt is empty")
    for lm in (pair.target, pair.draft):
        if lm is not None and not all(0 <= token < lm.logits_size for token in prompt):
            bad = next(token for token in prompt if not 0 <= token < lm.logits_size)
            raise DiversedError(f"token {bad} of the prompt is outside the vocabulary of {lm.name}")
    if pair.context_length is None:
        return None if max_tokens == -1 else max_tokens
    room = pair.context_length - len(prompt)
    if room <= 0:
        raise DiversedError(
            f"the prompt has {len(prompt)} tokens and the context of this pair holds {pair.context_length}: shorten it"
        )
    return room if max_tokens == -1 else min(max_tokens, room)


def encode(pair: Pair, prompt: str | Sequence[int] | mx.array) -> list[int]:
    """Turn a prompt into token ids.

    Args:
        pair: gives the tokenizer.
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
    bos = pair.tokenizer.bos_token
    return pair.tokenizer.encode(prompt, add_special_tokens=bos is None or not prompt.startswith(bos))


def require_unicode(text: str) -> None:
    """Refuse text that no tokenizer can read.

    Raises:
        DiversedError: text with lone surrogates, which is how Python keeps bytes that are not UTF-8.
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DiversedError("the text is not valid UTF-8: convert it first")


def stream_generate(
    pair: Pair,
    prompt: str | Sequence[int] | mx.array,
    *,
    verifier: Verifier | None = Lossless(),
    sampling: Sampling = Sampling(),
    num_draft_tokens: int | str = 4,
    max_tokens: int = 256,
    seed: int = 0,
    stop: Sequence[str] = (),
    logits_processors: Sequence[LogitsProcessor] = (),
    prefill_step_size: int = 2048,
    max_kv_size: int | None = None,
    kv_bits: int | None = None,
) -> Generator[Response, None, None]:
    """Answer a prompt, one response a token.

    Args:
        pair: from `load_pair`.
        prompt: text as the models shall see it (no chat template is applied), or token ids, shape (T,).
        verifier: what to allow of the draft; None decodes with the target alone. Default `Lossless()`.
        sampling: how tokens are chosen. Default `Sampling()`, temperature 1.
        num_draft_tokens: tokens drafted a round, 1 to 64, or "auto". Default 4.
        max_tokens: most tokens of the answer, -1 for as many as the context holds. Default 256.
        seed: at least 0; the same seed gives the same answer, unless "auto" measures times. Default 0.
        stop: strings that end the answer and are not part of it. Default none.
        logits_processors: functions of mlx-lm's form, see `Options`. Default none.
        prefill_step_size: tokens of the prompt read at a time. Default 2048.
        max_kv_size: tokens that a layer attends to at most, see `LM.make_cache`. Default None, all.
        kv_bits: bits of a quantised cache, see `LM.make_cache`. Default None, not quantised.

    Yields:
        Responses; only the last has a finish reason.

    Raises:
        DiversedError: an argument out of its range, or a prompt that is empty or does not fit.
    """
    options = Options(
        verifier=verifier,
        sampling=sampling,
        num_draft_tokens=num_draft_tokens,
        max_tokens=max_tokens,
        seed=seed,
        stop=stop,
        logits_processors=logits_processors,
        prefill_step_size=prefill_step_size,
    )
    yield from answer(pair, pair.make_context(max_kv_size, kv_bits), encode(pair, prompt), options)


def generate(
    pair: Pair,
    prompt: str | Sequence[int] | mx.array,
    *,
    verifier: Verifier | None = Lossless(),
    sampling: Sampling = Sampling(),
    num_draft_tokens: int | str = 4,
    max_tokens: int = 256,
    seed: int = 0,
    stop: Sequence[str] = (),
    logits_processors: Sequence[LogitsProcessor] = (),
    prefill_step_size: int = 2048,
    max_kv_size: int | None = None,
    kv_bits: int | None = None,
) -> str:
    """Answer a prompt and return the whole text; arguments and errors as for `stream_generate`."""
    responses = stream_generate(
        pair,
        prompt,
        verifier=verifier,
        sampling=sampling,
        num_draft_tokens=num_draft_tokens,
        max_tokens=max_tokens,
        seed=seed,
        stop=stop,
        logits_processors=logits_processors,
        prefill_step_size=prefill_step_size,
        max_kv_size=max_kv_size,
        kv_bits=kv_bits,
    )
    return "".join(response.text for response in responses)
