"""What training maximises: values worked by hand, the sign of each part, and gradients against finite differences."""

import math

import mlx.core as mx
import numpy as np
import pytest

from diversed_mlx.training.objective import (
    adapted_reg_scale,
    leave_one_out,
    log_mixture,
    policy_loss,
    rejection,
)


def logit(w):
    return math.log(w / (1 - w))


def test_log_mixture_is_the_log_of_the_mixture():
    w, p, q = np.array([0.5, 0.9, 0.25]), np.array([0.6, 0.0, 0.1]), np.array([0.2, 0.4, 0.0])
    z = mx.array([logit(x) for x in w])
    expected = np.log(w * p + (1 - w) * q)  # log 0.4, log 0.04, log 0.025
    np.testing.assert_allclose(expected, np.log([0.4, 0.04, 0.025]))
    np.testing.assert_allclose(np.array(log_mixture(z, mx.array(p), mx.array(q))), expected, rtol=1e-5)


@pytest.mark.parametrize(("z", "p", "q", "expected"), [(60, 0.3, 0.9, 0.3), (-60, 0.3, 0.9, 0.9)])
def test_log_mixture_holds_at_both_ends(z, p, q, expected):
    value, gradient = mx.value_and_grad(lambda z: log_mixture(z, mx.array(p), mx.array(q)))(mx.array(float(z)))
    assert value.item() == pytest.approx(math.log(expected), abs=1e-5)
    assert math.isfinite(gradient.item())


def test_a_mixture_is_rejected_with_the_weighted_distance():
    # p = (.5, .3, .2), q = (.2, .2, .6): TV(q, p) = .4; nu at w = .25 is (.275, .225, .5), and TV(q, nu) = .1.
    p, q, w = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6]), 0.25
    nu = w * p + (1 - w) * q
    assert 0.5 * np.abs(q - nu).sum() == pytest.approx(0.1)
    assert rejection(mx.array(logit(w)), mx.array(0.4)).item() == pytest.approx(0.1, abs=1e-6)


def test_leave_one_out_compares_with_the_others():
    rewards = mx.array([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    # 1 - (0 + 0 + 1)/3 = 2/3; 0 - (1 + 0 + 1)/3 = -2/3
    expected = [[2 / 3, -2 / 3, -2 / 3, 2 / 3], [0, 0, 0, 0]]
    np.testing.assert_allclose(np.array(leave_one_out(rewards)), expected, atol=1e-6)


def test_an_unjudged_answer_moves_nothing():
    rewards = mx.array([[1.0, math.nan, 0.0], [math.nan, math.nan, 1.0]])
    np.testing.assert_allclose(np.array(leave_one_out(rewards)), [[1, 0, -1], [0, 0, 0]], atol=1e-6)


def one_token(z, p, q, advantage, reg_scale, **rest):
    row = lambda value: mx.array([[value]])  # noqa: E731
    distance = row(abs(p - q))  # two tokens with probabilities p, 1 - p and q, 1 - q
    return policy_loss(z.reshape(1, 1), row(p), row(q), distance, row(1.0), mx.array([advantage]), reg_scale, **rest)


def slope(**arguments):
    return mx.grad(lambda z: one_token(z, **arguments))(mx.array(0.3)).item()


def test_a_rewarded_token_that_the_target_likes_raises_the_weight():
    # The loss falls with z where descent raises w.
    assert slope(p=0.9, q=0.2, advantage=1.0, reg_scale=0.0) < 0
    assert slope(p=0.2, q=0.9, advantage=1.0, reg_scale=0.0) > 0
    assert slope(p=0.9, q=0.2, advantage=-1.0, reg_scale=0.0) > 0


def test_the_price_of_rejections_lowers_the_weight():
    assert slope(p=0.9, q=0.2, advantage=0.0, reg_scale=0.1) > 0
    assert slope(p=0.5, q=0.5, advantage=0.0, reg_scale=0.1) == 0  # equal models: the weight costs nothing


@pytest.mark.parametrize("sampled", [None, -1.3, -0.2])
def test_the_gradient_is_that_of_finite_differences(sampled):
    rng = np.random.default_rng(0)
    z = mx.array(rng.normal(size=(3, 5)).astype(np.float32))
    p, q, distance = (mx.array(rng.uniform(0.05, 0.95, (3, 5)).astype(np.float32)) for _ in range(3))
    mask = mx.array((rng.uniform(size=(3, 5)) < 0.8).astype(np.float32))
    advantage = mx.array([0.7, -0.4, 0.1])
    old = None if sampled is None else mx.full((3, 5), sampled)

    def loss(z):
        return policy_loss(z, p, q, distance, mask, advantage, 0.05, old)

    gradient = np.array(mx.grad(loss)(z))
    step = 1e-2
    for i, j in np.ndindex(3, 5):
        shift = np.zeros((3, 5), np.float32)
        shift[i, j] = step
        difference = (loss(z + mx.array(shift)) - loss(z - mx.array(shift))).item() / (2 * step)
        # A central difference errs by step^2 / 6 times the third derivative, below 2 here, and by rounding.
        assert gradient[i, j] == pytest.approx(difference, abs=3e-4)


def test_the_loss_is_the_one_of_its_definition():
    z, p, q, distance = 0.4, 0.7, 0.3, 0.4
    w = 1 / (1 + math.exp(-z))
    expected = 0.02 * w * distance - 1.5 * math.log(w * p + (1 - w) * q)
    value = one_token(mx.array(z), p, q, 1.5, 0.02)
    assert value.item() == pytest.approx(expected, rel=1e-5)


def test_a_clipped_ratio_stops_pushing():
    # The token is twice as likely as when it was sampled: a good one is pushed no further, a bad one still is.
    old = mx.array([[math.log(0.5 * 0.5)]])
    common = {"p": 0.5, "q": 0.5001, "reg_scale": 0.0, "sampled_log_mixture": old}
    assert slope(advantage=1.0, **common) == 0
    assert slope(advantage=-1.0, **common) != 0


def test_the_expected_gradient_points_to_more_reward():
    """Two tokens, reward 1 for the first: the exact mean of the score estimate is d/dz of nu(0)."""
    p, q, z = np.array([0.9, 0.1]), np.array([0.3, 0.7]), 0.2
    w = 1 / (1 + math.exp(-z))
    nu = w * p + (1 - w) * q
    mean = 0.0
    for x in range(2):
        reward = float(x == 0)
        gradient = mx.grad(lambda z, x=x, r=reward: -r * log_mixture(z, mx.array(p[x]), mx.array(q[x])))(mx.array(z))
        mean += nu[x] * gradient.item()
    assert mean == pytest.approx(-w * (1 - w) * (p[0] - q[0]), abs=1e-5)


def test_lambda_rises_while_the_reward_holds_and_falls_when_it_drops():
    assert adapted_reg_scale(0.01, 0.9, 0.8, 1.0) == pytest.approx(0.01 * math.exp(0.1))
    assert adapted_reg_scale(0.01, 0.7, 0.8, 1.0) == pytest.approx(0.01 * math.exp(-0.1))
    assert adapted_reg_scale(0.01, 0.8, 0.8, 1.0) == 0.01
