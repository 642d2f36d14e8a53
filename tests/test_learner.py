"""How fast a head moves, whatever the size of what it reads."""

import mlx.core as mx
import pytest

from diversed_mlx.training.learner import Learner, learning_rate_for
from diversed_mlx.training.machines import Machines
from diversed_mlx.training.objective import log_mixture
from diversed_mlx.training.recipe import Recipe
from diversed_mlx.training.rollout import Rollouts


def test_the_learning_rate_is_that_of_the_sum_of_magnitudes():
    draft = mx.array([[1.0, -2.0], [3.0, 0.0]])  # sums 3 and 3
    target = mx.array([[0.5, 0.5, -1.0], [0.0, 0.0, 2.0]])  # sums 2 and 2
    assert learning_rate_for([draft, target]) == pytest.approx(3.5 / (2 * 5), rel=1e-6)


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


def moved(scale, learning_rate=None):
    """By how much one update moves the logits of the answers that it was made from, shape (4, 6)."""
    rollouts = made_up(scale)
    rate = learning_rate or learning_rate_for([rollouts.draft_hidden[0], rollouts.target_hidden[0]])
    learner = Learner(300, 500, Recipe(iters=10), rate, Machines.join())
    learner.head.summary.weight = mx.zeros_like(learner.head.summary.weight)
    before = learner.logit(rollouts)
    learner.update(rollouts, mx.array([1.0, -1.0, 0.5, -0.5]), mx.ones(4).astype(mx.bool_), 4, 0.02)
    return learner.logit(rollouts) - before


def test_hidden_states_ten_times_as_large_move_the_logit_as_far():
    small, large = moved(1.0), moved(10.0)
    assert mx.max(mx.abs(small)).item() > 0.1
    assert mx.max(mx.abs(small - large)).item() < 0.02 * mx.max(mx.abs(small)).item()


def test_one_learning_rate_for_both_would_not():
    assert mx.max(mx.abs(moved(10.0, 0.01))).item() > 9 * mx.max(mx.abs(moved(1.0, 0.01))).item()
