"""The loop: draft K tokens, one target pass, accept, rewind; one `Block` of tokens a round.

Tokens only: this file knows no text, no prompt format and no printing. Everything between two rounds is one MLX
graph, from the draft's first step to the token after the accepted ones, so the host waits once a round, for one
small array. The next draft step is under way before a block is handed out.
"""

import itertools
import math
import time
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, cast

import mlx.core as mx

from .acceptance import accepted_length, draw, next_token
from .block import Block, Origin, Outcome
from .cache import Cache
from .context import Context
from .draft_length import MAX_DRAFT_TOKENS, DraftLength
from .errors import DiversedError
from .lm import LM
from .pair import Pair
from .sampling import LogitsProcessor, Sampling, process
from .verifiers import Evidence, Verifier

CLEAR_EVERY = 256  # tokens between two releases of MLX's free buffers, as in mlx-lm
PLAIN_STRETCH = 8  # plain steps before the draft length is chosen again
READ_WITH_ROUND = 8  # missing tokens that a round reads itself; more are read in chunks, without their logits


class Drafted(NamedTuple):
    """One lazy step of the draft: token (1,), q (1, V), hidden (1, draft_size)."""

    token: mx.array
    q: mx.array
    hidden: mx.array


class Plain(NamedTuple):
    """One lazy step of the target alone: token (1,), p (1, V)."""

    token: mx.array
    p: mx.array


class Decoder:
    """Extends one context by one pair's tokens.

    Args:
        pair: the models.
        context: the committed tokens and caches; at least one token that the caches have not seen is committed.
        verifier: what to allow; None decodes with the target alone.
        sampling: how tokens are chosen.
        processors: functions on logits that see every token before a position, on both models.
        seed: makes the run repeatable.
        prefill_step_size: tokens read at a time before the first round.
        trace: whether to tell p and q of each token; costs a softmax at temperature 0.
    """

    def __init__(
        self,
        pair: Pair,
        context: Context,
        *,
        verifier: Verifier | None,
        sampling: Sampling,
        processors: Sequence[LogitsProcessor],
        seed: int,
        prefill_step_size: int,
        trace: bool,
    ):
        self.pair = pair
        self.context = context
        self.verifier = verifier
        self.sampling = sampling
        self.processors = processors
        self.prefill_step_size = prefill_step_size
        self.trace = trace
        self._key = mx.random.key(seed)

    def blocks(self, draft_length: DraftLength, max_tokens: int | None) -> Generator[Block, None, None]:
        """Decode until a stop token or a number of tokens.

        Args:
            draft_length: chooses the number of drafted tokens of each round; not asked without a verifier.
            max_tokens: most tokens to commit, None for no limit.

        Yields:
            One block a round. However this ends, both caches hold committed tokens only.
        """
        try:
            yield from self._rounds(draft_length, max_tokens)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:
            self.context.forget()
            raise
        finally:
            self.context.settle()

    def _rounds(self, draft_length: DraftLength, max_tokens: int | None) -> Iterator[Block]:
        tokens, stop_tokens = self.context.tokens, self.pair.stop_tokens
        end = None if max_tokens is None else len(tokens) + max_tokens
        self._read(self.pair.target, self.context.target_cache)
        if self.verifier is None:
            yield from self._plain(end)
            return
        cleared = len(tokens)
        pending = self._start(draft_length, end)
        started = time.perf_counter()  # what the draft had to catch up on is not a round's time
        while end is None or len(tokens) < end:
            if pending is None:
                # The last token of all, or a stretch in which drafting does not pay.
                stretch = len(tokens) + PLAIN_STRETCH
                for block in self._plain(stretch if end is None else min(stretch, end)):
                    draft_length.record(0, 0, 1, time.perf_counter() - started)
                    yield block
                    started = time.perf_counter()
                if tokens[-1] in stop_tokens:
                    return
                pending = self._start(draft_length, end)
                started = time.perf_counter()
                continue
            block = self._round(*pending)
            draft_length.record(block.proposed, block.accepted, len(block.tokens), time.perf_counter() - started)
            started = time.perf_counter()
            stopped = block.tokens[-1] in stop_tokens
            pending = None if stopped else self._start(draft_length, end)
            if len(tokens) - cleared >= CLEAR_EVERY:
                mx.clear_cache()
                cleared = len(tokens)
            busy = time.perf_counter() - started
            yield block
            started = time.perf_counter() - busy  # what the reader of the block did is not the round's time
            if stopped:
                return

    def _start(self, draft_length: DraftLength, end: int | None) -> tuple[mx.array, list[Drafted]] | None:
        """Begin a round: its uniforms (2 K + 1,) and the draft's first step, or None for plain decoding."""
        # The last token of a round is not drafted, so a draft never exceeds what may still be committed.
        room = MAX_DRAFT_TOKENS if end is None else end - len(self.context.tokens) - 1
        length = min(draft_length.next(), room)
        if length <= 0:
            return None
        draft, cache = self._draft()
        self._read(draft, cache)
        self._key, key = mx.random.split(self._key)
        uniforms = mx.random.uniform(shape=(2 * length + 1,), key=key)
        unread = mx.array(self.context.tokens[cache.offset :])
        return uniforms, [self._draft_step(unread, [], uniforms[0])]

    def _round(self, uniforms: mx.array, drafted: list[Drafted]) -> Block:
        """Finish a round that was started and commit its tokens."""
        context, length = self.context, uniforms.shape[0] // 2
        while len(drafted) < length:
            drafted.append(self._draft_step(drafted[-1].token, drafted, uniforms[len(drafted)]))
        draft_tokens = mx.concatenate([step.token for step in drafted])  # (K,)
        unread = mx.array(context.tokens[context.target_cache.offset :])
        hidden, logits = self.pair.target(mx.concatenate([unread, draft_tokens]), context.target_cache)
        target_logits = self._logits(logits[-length - 1 :], draft_tokens)  # (K + 1, V)
        p = self.sampling.probabilities(target_logits)  # not computed where no one uses it
        q = mx.concatenate([step.q for step in drafted])  # (K, V)
        assert self.verifier is not None
        allowance = self.verifier(
            Evidence(
                tokens=draft_tokens,
                q=q,
                p=p[:-1],
                target_logits=target_logits[:-1],
                draft_hidden=mx.concatenate([step.hidden for step in drafted]),
                target_hidden=hidden[-length - 1 : -1],
                greedy=self.sampling.greedy,
            )
        )
        accepted = accepted_length(allowance.accept, uniforms[length : 2 * length])
        bonus = target_logits[-1] if self.sampling.greedy else p[-1]
        follower = next_token(allowance, bonus, accepted, uniforms[2 * length], self.sampling.greedy)
        # One array for one wait; float32 holds every id below 2^24.
        outcome = [accepted[None], follower[None], draft_tokens, allowance.target_weight, allowance.accept]
        if self.trace:
            drafts = mx.concatenate([draft_tokens, follower[None]])
            tokens = mx.where(mx.arange(length + 1) < accepted, drafts, follower)[:, None]  # (K + 1, 1)
            no_draft = mx.full((1, 1), math.nan)  # nothing was drafted where the bonus stands
            outcome += [
                mx.take_along_axis(p, tokens, axis=-1)[:, 0],
                mx.concatenate([mx.take_along_axis(q, tokens[:-1], axis=-1), no_draft])[:, 0],
            ]
        values = mx.concatenate([array.astype(mx.float32) for array in outcome]).tolist()
        return self._commit(Outcome.read(cast(list[float], values), length))

    def _commit(self, outcome: Outcome) -> Block:
        """Rewind both caches to what was accepted, then commit the round's tokens up to a stop token."""
        accepted, draft_tokens = outcome.accepted, outcome.draft_tokens
        length, tokens, stop_tokens = len(draft_tokens), self.context.tokens, self.pair.stop_tokens
        new = [*draft_tokens[:accepted], outcome.follower]
        stop = next((i for i, token in enumerate(new) if token in stop_tokens), len(new) - 1)
        new = new[: stop + 1]
        possible = next((i + 1 for i, token in enumerate(draft_tokens) if token in stop_tokens), length)
        drafted = min(accepted, len(new))
        origins: list[Origin] = ["accepted"] * drafted
        target_weights = outcome.target_weights[: len(new)]
        if len(new) > drafted:
            origins.append("bonus" if accepted == length else "corrected")
            if accepted == length:
                target_weights.append(1.0)  # the bonus is the target's alone
        self.context.rewind(len(tokens) + drafted)
        tokens.extend(new)
        proposed = drafted if stop < accepted else length
        return Block(
            tokens=new,
            origins=origins,
            target_weights=target_weights,
            proposed=proposed,
            accepted=drafted,
            draft_tokens=draft_tokens[:possible],
            accept_probabilities=outcome.accept_probabilities[:possible],
            target_probabilities=outcome.target_probabilities[: len(new)],
            draft_probabilities=outcome.draft_probabilities[: len(new)],
        )

    def _plain(self, end: int | None) -> Iterator[Block]:
        """Decode with the target alone, each step begun before the last one's token is known."""
        context, tokens = self.context, self.context.tokens
        step = self._plain_step(mx.array(tokens[context.target_cache.offset :]), [])
        for count in itertools.count(1):
            last = end is not None and len(tokens) + 1 >= end
            ahead = step if last else self._plain_step(step.token, [step.token])
            value = cast(int, step.token.item())
            tokens.append(value)
            if count % CLEAR_EVERY == 0:
                mx.clear_cache()
            yield Block(
                tokens=[value],
                origins=["plain"],
                target_weights=[None],
                proposed=0,
                accepted=0,
                draft_tokens=[],
                accept_probabilities=[],
                target_probabilities=[cast(float, step.p[0, value].item()) if self.trace else None],
                draft_probabilities=[None],
            )
            if last or value in self.pair.stop_tokens:
                return
            step = ahead

    def _plain_step(self, unread: mx.array, ahead: list[mx.array]) -> Plain:
        """The target's next token, lazy; `ahead` are tokens that are not committed yet."""
        _, logits = self.pair.target(unread, self.context.target_cache)
        logits = self._logits(logits[-1:], mx.concatenate(ahead) if ahead else None)
        self._key, key = mx.random.split(self._key)
        p = self.sampling.probabilities(logits)  # (1, V)
        token = self._choose(logits, p, mx.random.uniform(shape=(1,), key=key))
        mx.async_eval(token, *([p] if self.trace else []))
        return Plain(token, p)

    def _draft_step(self, unread: mx.array, drafted: list[Drafted], uniform: mx.array) -> Drafted:
        draft, cache = self._draft()
        hidden, logits = draft(unread, cache)
        ahead = mx.concatenate([step.token for step in drafted]) if drafted else None
        logits = self._logits(logits[-1:], ahead)
        q = self.sampling.probabilities(logits)  # (1, V)
        token = self._choose(logits, q, uniform[None])
        mx.async_eval(token)
        return Drafted(token, q, hidden[-1:])

    def _draft(self) -> tuple[LM, Cache]:
        draft, cache = self.pair.draft, self.context.draft_cache
        if draft is None or cache is None:
            raise DiversedError(
                "this pair has no draft: load one, or pass verifier=None to decode with the target alone"
            )
        return draft, cache

    def _logits(self, logits: mx.array, ahead: mx.array | None) -> mx.array:
        """Processed logits of the last positions on the shared vocabulary, (R, V).

        `ahead` are the tokens after the committed ones that led there, drafted or not yet known.
        """
        if self.processors:
            history = mx.array(self.context.tokens)
            if ahead is not None:
                history = mx.concatenate([history, ahead.astype(history.dtype)])
            logits = process(self.processors, history, logits)
        return self.pair.shared_logits(logits)

    def _choose(self, logits: mx.array, probabilities: mx.array, uniform: mx.array) -> mx.array:
        """One token a row: (R, V), (R, V), (R,) -> (R,). Filters never remove the most likely one."""
        return mx.argmax(logits, axis=-1) if self.sampling.greedy else draw(probabilities, uniform)

    def _read(self, lm: LM, cache: Cache) -> None:
        """Read all committed tokens but the last, in chunks, where more than a few are missing."""
        tokens = self.context.tokens
        if len(tokens) - cache.offset <= READ_WITH_ROUND:
            return
        while cache.offset < len(tokens) - 1:
            lm(mx.array(tokens[cache.offset : -1][: self.prefill_step_size]), cache)
            mx.eval(cache.arrays())  # the logits stay lazy and are never computed
            mx.clear_cache()
