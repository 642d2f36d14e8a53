"""How fast a head moves, whatever the size of what it reads."""

import dataclasses
import math

import mlx.core as mx
import pytest

from diversed_mlx.training.learner import Learner, Scale
from diversed_mlx.training.machines import Machines
from diversed_mlx.training.objective import log_mixture
from diversed_mlx.training.recipe import Recipe
from diversed_mlx.training.rollout import Rollouts


def test_the_scale_is_that_of_the_deviations_from_the_mean():
    hidden = mx.array([[1.0, -2.0, 10.0], [3.0, 0.0, 14.0]])  # mean (2, -1, 12), deviations (1, 1, 2) in both rows
    scale = Scale.of(hidden)
    assert scale.centre.tolist() == [2, -1, 12]
    assert scale.spread == pytest.approx(4)
    assert scale.learning_rate == pytest.approx(3.5 / (2 * 4))


def test_hidden_states_that_are_all_equal_have_a_learning_rate_too():
    assert math.isfinite(Scale.of(mx.ones((3, 2))).learning_rate)


def made_up(scale):
    shape, keys = (4, 6), mx.random.split(mx.random.key(3), 4)
    p, q = (0.1 + 0.8 * mx.random.uniform(shape=shape, key=key) for key in keys[:2])
    return Rollouts(
        tokens=mx.zeros(shape, mx.int32),
        mask=mx.ones(shape),
        draft_hidden=scale * mx.random.normal((*shape, 300), key=keys[2]),
        target_hidden=scale * mx.random.normal((*shape, 500), key=keys[3]),
        p=p,
        q=q,
        distance=mx.abs(p - q),
        log_mixture=log_mixture(mx.zeros(shape), p, q),
    )


def scale_of(rollouts):
    hidden = mx.concatenate([rollouts.draft_hidden, rollouts.target_hidden], axis=-1)
    return Scale.of(hidden.reshape(-1, 800))


def moved(rollouts, learning_rate=None, advantage=(1.0, -1.0, 0.5, -0.5)):
    """By how much one update moves the logits of the answers that it was made from, shape (4, 6)."""
    scale = scale_of(rollouts)
    learner = Learner(300, 500, Recipe(iters=10), learning_rate or scale.learning_rate, scale, Machines.join())
    learner.head.summary.weight = mx.zeros_like(learner.head.summary.weight)
    before = learner.logit(rollouts)
    learner.update(rollouts, mx.array(advantage), mx.ones(4).astype(mx.bool_), 4, 0.02)
    return learner.logit(rollouts) - before


def test_hidden_states_ten_times_as_large_move_the_logit_as_far():
    small, large = moved(made_up(1.0)), moved(made_up(10.0))
    assert mx.max(mx.abs(small)).item() > 0.1
    assert mx.max(mx.abs(small - large)).item() < 0.02 * mx.max(mx.abs(small)).item()


def test_one_learning_rate_for_both_would_not():
    # The features move ten times as far for the rate, and so does the bias, which counts as one more of them.
    assert mx.max(mx.abs(moved(made_up(10.0), 0.01))).item() > 9 * mx.max(mx.abs(moved(made_up(1.0), 0.01))).item()


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_the_price_alone_moves_the_tokens_together_by_half_a_logit(mean):
    """AdamW's first step is the rate in each weight: 2 rate spread / 7 = 3.5 / 7 in the bias, and the rest sums to 0.

    Without the centring, a mean of 3 in each of 800 inputs would add 2 rate 800 x 3, about 13 logits.
    """
    rollouts = made_up(1.0)
    rollouts = dataclasses.replace(
        rollouts, draft_hidden=rollouts.draft_hidden + mean, target_hidden=rollouts.target_hidden + mean
    )
    assert mx.mean(moved(rollouts, advantage=[0.0] * 4)).item() == pytest.approx(-0.5, abs=1e-3)
