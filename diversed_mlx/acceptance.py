"""The accept rule on arrays: how many drafted tokens stand, and which token follows them.

Pure functions of MLX arrays. Nothing here knows models, verifiers, caches or text: a verifier says what to
allow (an `Allowance`), this file decides with uniforms that the caller draws. The decision is therefore the
same in any framework that is given the same numbers.
"""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """What a verifier allows at the K drafted positions of one round.

    Args:
        accept: probability that the drafted token is accepted, shape (K,), float32; 0 or 1 at temperature 0.
        correction: unnormalised distribution of the token that replaces a rejected one, shape (K, V); at temperature 0
            any scores whose largest is that token.
        target_weight: weight on the target at each position, shape (K,), NaN where the rule has no such weight.
    """

    accept: mx.array
    correction: mx.array
    target_weight: mx.array


def draw(weights: mx.array, uniform: mx.array) -> mx.array:
    """Draw one index a row by inverting the cumulative sum, so that one uniform decides one draw.

    Args:
        weights: unnormalised probabilities, shape (..., V), float32; a row needs one positive entry.
        uniform: numbers in [0, 1), shape (...).

    Returns:
        Indices, shape (...), uint32; an entry of weight 0 is never drawn, whatever the rounding of the sum.
    """
    cumulative = mx.where(weights > 0, mx.cumsum(weights, axis=-1), -1.0)
    total = mx.max(cumulative, axis=-1, keepdims=True)
    # (0, total] and not [0, total): the first entry that reaches the threshold then always exists.
    threshold = (1.0 - uniform[..., None]) * total
    return mx.argmax(cumulative >= threshold, axis=-1)


def positive_part(p: mx.array, q: mx.array) -> mx.array:
    """Residual [p - q]_+ of method "Verification", falling back to p where p = q leaves it empty.

    Args:
        p: target probabilities, shape (..., V).
        q: draft probabilities, shape (..., V).
    """
    residual = mx.maximum(p - q, 0.0)
    return mx.where(mx.any(residual > 0, axis=-1, keepdims=True), residual, p)


def accepted_length(accept: mx.array, uniforms: mx.array) -> mx.array:
    """Count the drafted tokens before the first rejection (Leviathan 2023, algorithm 1).

    Args:
        accept: acceptance probabilities, shape (K,).
        uniforms: numbers in [0, 1), shape (K,); 0 never accepts a probability of 0, and 1 is always accepted.

    Returns:
        A scalar, int32.
    """
    stands = (uniforms < accept).astype(mx.int32)
    return mx.sum(mx.cumprod(stands))


def next_token(allowance: Allowance, bonus: mx.array, length: mx.array, uniform: mx.array, greedy: bool) -> mx.array:
    """Choose the token after the accepted ones: a correction, or the bonus when all K stand.

    Args:
        allowance: what the verifier allows.
        bonus: the same for the token after the last drafted one, shape (V,).
        length: number of accepted tokens, scalar.
        uniform: a number in [0, 1), scalar.
        greedy: take the most likely token instead of a draw.

    Returns:
        A scalar token id.
    """
    row = mx.concatenate([allowance.correction, bonus[None]])[length]  # (V,)
    return mx.argmax(row) if greedy else draw(row, uniform)
