"""What training maximises, as pure functions of a few numbers a token (method "Training", closed forms).

With nu = w p + (1 - w) q, the log-probability of a sampled token and the rate at which drafts stand need p(x), q(x)
and TV(q, p) only: nothing here is as wide as the vocabulary. Rows are answers, columns their tokens.
"""

import math

import mlx.core as mx
import mlx.nn as nn

TINY = 1e-30  # a probability that underflowed still has a logarithm


def log_mixture(logit: mx.array, p: mx.array, q: mx.array) -> mx.array:
    """Logarithm of nu(x), log(w p(x) + (1 - w) q(x)) with w = sigmoid(logit), exact for w near 0 and 1.

    Args:
        logit: of the weight on the target, any shape.
        p: target probability of the token, the same shape.
        q: draft probability of the token, the same shape.
    """
    return mx.logaddexp(
        nn.log_sigmoid(logit) + mx.log(mx.maximum(p, TINY)), nn.log_sigmoid(-logit) + mx.log(mx.maximum(q, TINY))
    )


def rejection(logit: mx.array, distance: mx.array) -> mx.array:
    """TV(q, nu) = w TV(q, p): the probability that a drafted token is rejected.

    Args:
        logit: of the weight on the target, any shape.
        distance: TV(q, p), the same shape.
    """
    return mx.sigmoid(logit) * distance


def leave_one_out(rewards: mx.array) -> mx.array:
    """Reward minus the mean reward of the other answers to the same prompt.

    Args:
        rewards: shape (prompts, answers), at least two answers; NaN where an answer was not judged.

    Returns:
        The same shape; 0 where it was not judged or nothing is left to compare with.
    """
    judged = ~mx.isnan(rewards)
    known = mx.where(judged, rewards, 0.0)
    others = mx.sum(judged, axis=1, keepdims=True) - 1
    mean = (mx.sum(known, axis=1, keepdims=True) - known) / mx.maximum(others, 1)
    return mx.where(judged & (others > 0), known - mean, 0.0)


def policy_loss(
    logit: mx.array,
    p: mx.array,
    q: mx.array,
    distance: mx.array,
    mask: mx.array,
    advantage: mx.array,
    reg_scale: float,
    sampled_log_mixture: mx.array | None = None,
    clip: float = 0.2,
) -> mx.array:
    """Loss whose gradient is that of -E[R] - reg_scale E[sum_t (1 - TV(q_t, nu_t))], summed over answers.

    Without `sampled_log_mixture` it is REINFORCE, -A sum_t log nu_t(x_t). With it the answers may come from an
    earlier head: each token's ratio nu/nu_sampled is clipped, as in PPO.

    Args:
        logit: of the weight on the target, shape (B, T).
        p: target probabilities of the sampled tokens, shape (B, T).
        q: draft probabilities of them, shape (B, T).
        distance: TV(q, p), shape (B, T).
        mask: 1 for a token of the answer, its stop token included, and 0 behind it, shape (B, T).
        advantage: A, reward minus baseline, shape (B,).
        reg_scale: lambda, the price of a rejected token.
        sampled_log_mixture: log nu(x) of the head that sampled, shape (B, T). Default None, this head.
        clip: how far the ratio may go from 1. Default 0.2.
    """
    log_nu = log_mixture(logit, p, q)
    if sampled_log_mixture is None:
        gain = advantage[:, None] * log_nu
    else:
        ratio = mx.exp(log_nu - sampled_log_mixture)
        bounded = mx.clip(ratio, 1 - clip, 1 + clip)
        gain = mx.minimum(ratio * advantage[:, None], bounded * advantage[:, None])
    return mx.sum(mask * (reg_scale * rejection(logit, distance) - gain))


def adapted_reg_scale(reg_scale: float, quality: float, floor: float, rate: float) -> float:
    """Move lambda up while the reward is above its floor, and down when it is below: dual ascent on a constraint.

    Args:
        reg_scale: lambda now.
        quality: mean reward lately, as a share of the target's own.
        floor: least that it may be.
        rate: change of log lambda for a difference of 1.
    """
    return reg_scale * math.exp(rate * max(-1.0, min(1.0, quality - floor)))
