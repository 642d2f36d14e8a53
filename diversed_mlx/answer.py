"""One answer: a prompt in, responses with text out, finished by a stop token, a stop string or a length.

The ring around `speculate.py`: it turns blocks into one `Response` a token and decides when the text is finished.
It knows no chat template and does not print.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from .block import Block, Origin
from .context import Context
from .draft_length import MAX_DRAFT_TOKENS, Start, make_draft_length
from .errors import DiversedError
from .pair import Pair
from .sampling import LogitsProcessor, Sampling
from .speculate import Decoder
from .stats import Meter, Stats
from .text import Detokenizer, StopStrings, encode, require_unicode
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
        trace: whether responses tell p and q of their tokens; costs a softmax at temperature 0. Default False.
        auto_start: where the draft length "auto" starts, from `tuning.store.find_start`. Default None: it measures
            first. Nothing is looked up by itself, so that a library call does not depend on what lies in a home folder.

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
    trace: bool = False
    auto_start: Start | None = None

    def __post_init__(self):
        length = self.num_draft_tokens
        if length != "auto" and not (isinstance(length, int) and 1 <= length <= MAX_DRAFT_TOKENS):
            raise DiversedError(f'num_draft_tokens must be from 1 to {MAX_DRAFT_TOKENS} or "auto", not {length!r}')
        if self.auto_start is not None and length != "auto":
            raise DiversedError('auto_start belongs to num_draft_tokens="auto"')
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
class Response:
    """One token of an answer and the text that became readable with it.

    Args:
        text: new text, often empty: characters split over tokens and possible beginnings of a stop string wait.
        token: the token's id; a stop token has one response too, and no text of its own.
        origin: "accepted" from the draft, the target's "corrected" or "bonus" token, or "plain" decoding.
        target_weight: weight on the target that the token was verified with, 1 for a bonus, None without one.
        target_probability: p of the token where `Options.trace` asks for it, else None; at temperature 0 as at 1.
        draft_probability: q of the token, likewise; None for a bonus and in plain decoding.
        finish_reason: None until the last response, then "stop" or "length".
        stats: figures up to this token.
        block: the round that the token is of.
    """

    text: str
    token: int
    origin: Origin
    target_weight: float | None
    target_probability: float | None
    draft_probability: float | None
    finish_reason: str | None
    stats: Stats
    block: Block

    @property
    def from_draft(self) -> bool:
        """True for a token that the draft proposed."""
        return self.origin == "accepted"


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
        trace=options.trace,
    )
    handed_out = len(prompt)
    end = None if limit is None else len(prompt) + limit
    blocks = decoder.blocks(make_draft_length(options.num_draft_tokens, options.auto_start), limit)
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
                    target_probability=block.target_probabilities[index],
                    draft_probability=block.draft_probabilities[index],
                    finish_reason=reason,
                    stats=meter.stats(),
                    block=block,
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
    yield from answer(pair, pair.make_context(max_kv_size, kv_bits), encode(pair.tokenizer, prompt), options)


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
