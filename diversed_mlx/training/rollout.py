"""Answers sampled from the mixture that a head verifies against, and the few numbers a token that training keeps.

Both models read the same tokens, many answers at once, with mlx-lm's batch caches. Kept are the head's input, p(x),
q(x), TV(q, p) and the mask: nothing as wide as the vocabulary. This file knows no reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from ..acceptance import draw
from ..cache import Cache
from ..errors import DiversedError
from ..head import EnsembleHead
from ..lm import LM
from ..pair import Pair
from ..sampling import Sampling
from .objective import log_mixture

LOOK_EVERY = 8  # tokens between two looks at which answers have ended
READ_STEP = 512  # prompt tokens read at a time


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Answers of one update, N = prompts x samples rows of up to T tokens; the samples of a prompt are neighbours.

    Args:
        tokens: ids, shape (N, T).
        mask: 1 up to and including the stop token, shape (N, T), float32.
        draft_hidden: the draft's hidden state that each token was predicted from, shape (N, T, draft_size).
        target_hidden: the target's, shape (N, T, target_size).
        p: target probability of each token, shape (N, T), float32.
        q: draft probability of each token, shape (N, T), float32.
        distance: TV(q, p) at each position, shape (N, T), float32.
        log_mixture: log nu(x) of the head that sampled, shape (N, T), float32.
    """

    tokens: mx.array
    mask: mx.array
    draft_hidden: mx.array
    target_hidden: mx.array
    p: mx.array
    q: mx.array
    distance: mx.array
    log_mixture: mx.array

    @property
    def nbytes(self) -> int:
        """Bytes kept: N T (4 (d_q + d_p) + 24) in float32, half of the first part in half precision."""
        return sum(array.nbytes for array in vars(self).values())

    def texts(self, pair: Pair) -> list[str]:
        """The answers as text, without their stop tokens."""
        lengths = mx.sum(self.mask, axis=1).astype(mx.int32).tolist()
        rows = self.tokens.tolist()
        return [
            pair.tokenizer.decode([token for token in row[:length] if token not in pair.stop_tokens])
            for row, length in zip(rows, lengths, strict=True)  # type: ignore[arg-type]
        ]


def sample(
    pair: Pair,
    prompts: Sequence[Sequence[int]],
    head: EnsembleHead,
    *,
    samples: int,
    sampling: Sampling,
    max_tokens: int,
    uniforms: mx.array,
    strictness: float = 0.0,
) -> Rollouts:
    """Sample answers from nu_t = w_t p_t + (1 - w_t) q_t, token by token.

    Args:
        pair: the models.
        prompts: token ids, one prompt each.
        head: gives the weights.
        samples: answers to each prompt.
        sampling: makes p and q, as when a pair decodes; its temperature is above 0.
        max_tokens: most tokens of an answer.
        uniforms: what decides each draw, shape (prompts x samples, max_tokens).
        strictness: added to the head's logit; inf samples from the target alone. Default 0.0.

    Raises:
        DiversedError: a model whose layers have no batch cache.
    """
    draft = pair.draft
    assert draft is not None
    target_layers = _read_prompts(pair.target, prompts, samples)
    draft_layers = _read_prompts(draft, prompts, samples)
    token = mx.array([prompt[-1] for prompt in prompts for _ in range(samples)])  # (R,)
    stops = mx.array(sorted(pair.stop_tokens), token.dtype)
    rows = mx.arange(len(token))  # (R,) which answers are still being written
    alive = mx.ones(token.shape)  # (R,) 1 until the stop token was drawn
    columns: list[tuple[mx.array, ...]] = []
    stretches: list[tuple[mx.array, list[mx.array]]] = []
    for step in range(max_tokens):
        draft_hidden, draft_logits = draft.batch(token[:, None], draft_layers)
        target_hidden, target_logits = pair.target.batch(token[:, None], target_layers)
        q = sampling.probabilities(pair.shared_logits(draft_logits[:, -1]))  # (R, V)
        p = sampling.probabilities(pair.shared_logits(target_logits[:, -1]))  # (R, V)
        draft_hidden, target_hidden = draft_hidden[:, -1], target_hidden[:, -1]
        logit = head.logit(draft_hidden, target_hidden)[..., 0] + strictness  # (R,)
        weight = mx.sigmoid(logit)[:, None]
        token = draw(weight * p + (1 - weight) * q, uniforms[rows, step])  # (R,)
        p_x, q_x = (mx.take_along_axis(x, token[:, None], axis=-1)[:, 0] for x in (p, q))
        distance = 0.5 * mx.sum(mx.abs(p - q), axis=-1)
        columns.append((token, alive, draft_hidden, target_hidden, p_x, q_x, distance, log_mixture(logit, p_x, q_x)))
        alive = alive * ~mx.any(token[:, None] == stops[None], axis=-1)
        mx.async_eval(alive, columns[-1])
        if step % LOOK_EVERY == LOOK_EVERY - 1 or step == max_tokens - 1:
            # What has ended is dropped: the models then read only what is still being written.
            stretches.append((rows, [mx.stack(list(arrays), axis=1) for arrays in zip(*columns, strict=True)]))
            columns = []
            live = mx.array([i for i, lives in enumerate(cast(list[float], alive.tolist())) if lives], mx.int32)
            if not live.size:
                break
            if live.size < rows.size:
                rows, token, alive = rows[live], token[live], alive[live]
                for layer in (*target_layers, *draft_layers):
                    layer.filter(live)
    return _side_by_side(stretches, len(prompts) * samples)


def _side_by_side(stretches: list[tuple[mx.array, list[mx.array]]], n: int) -> Rollouts:
    """Lay the stretches of the answers that were still being written next to each other, zeros where none was."""
    names = ("tokens", "mask", "draft_hidden", "target_hidden", "p", "q", "distance", "log_mixture")
    whole: dict[str, list[mx.array]] = {name: [] for name in names}
    for rows, arrays in stretches:
        for name, array in zip(names, arrays, strict=True):
            full = mx.zeros((n, *array.shape[1:]), array.dtype)
            full[rows] = array
            whole[name].append(full)
    kept = {name: mx.concatenate(parts, axis=1) for name, parts in whole.items()}
    mx.eval(kept)
    return Rollouts(**kept)


def _read_prompts(lm: LM, prompts: Sequence[Sequence[int]], samples: int) -> list:
    """Read each prompt but its last token once, and lay the caches side by side, padded on the left."""
    caches = []
    for prompt in prompts:
        cache = Cache(lambda: make_prompt_cache(lm.model))
        while cache.offset < len(prompt) - 1:
            lm(mx.array(list(prompt[cache.offset : -1][:READ_STEP])), cache)
            mx.eval(cache.arrays())  # the logits stay lazy and are never computed
        caches.append(cache.layers)
    try:
        return [
            type(same[0]).merge([layer for layer in same for _ in range(samples)]) for same in zip(*caches, strict=True)
        ]
    except (AttributeError, NotImplementedError, ValueError) as error:
        raise DiversedError(f"{lm.name} cannot be sampled in batches: {error}") from error
