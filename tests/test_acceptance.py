"""The accept rule on hand-made numbers: every expected value below can be checked by hand."""

import mlx.core as mx
import numpy as np
import pytest

from diversed_mlx.acceptance import Allowance, accepted_length, draw, next_token, positive_part

ALMOST_ONE = 1 - 2.0**-24  # the largest float32 below 1
TINY = 2.0**-126  # the smallest normal float32: GPUs take smaller ones for 0
VOCABULARY = 128_256  # of Llama 3


def drawn(weights, uniform) -> int:
    return draw(mx.array(weights, mx.float32), mx.array(uniform, mx.float32)).item()


@pytest.mark.parametrize(
    ("uniform", "index"),
    # The threshold (1 - u) * 4 falls into (3, 4], (1, 3] or (0, 1] of the cumulative sum 1, 3, 4.
    [(0.0, 2), (0.24, 2), (0.26, 1), (0.5, 1), (0.74, 1), (0.76, 0), (ALMOST_ONE, 0)],
)
def test_draw_inverts_the_cumulative_sum(uniform, index):
    assert drawn([1, 2, 1], uniform) == index


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 0.37, 1.0, 5.0, 1e30])
def test_draw_does_not_need_normalised_rows(scale):
    weights = np.array([0.0, 0.1, 0.2, 0.0, 0.7, 0.0])
    indices = [drawn(weights * scale, u) for u in np.linspace(0.005, 0.995, 100)]
    # Each index takes the share of its weight of 100 evenly spaced uniforms.
    assert np.bincount(indices, minlength=6).tolist() == [0, 10, 20, 0, 70, 0]


@pytest.mark.parametrize("uniform", [0.0, TINY, 2.0**-24, 0.5, ALMOST_ONE])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize(
    "pattern",
    [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 1], [0, 1e-7, 0, 1], [0, 1, 1e-7, 0], [0, 1 / 3, 2 / 3, 0]],
)
def test_an_entry_of_weight_zero_is_never_drawn(pattern, scale, uniform):
    assert pattern[drawn(np.array(pattern) * scale, uniform)] > 0


@pytest.mark.parametrize("uniform", [0.0, 0.5, ALMOST_ONE])
def test_an_entry_of_weight_zero_is_never_drawn_beside_the_smallest_number(uniform):
    # (1 - u) * total can underflow to 0, which the first entry must not reach without having any mass.
    assert drawn([0, 0, TINY, 0], uniform) == 2


@pytest.mark.parametrize("uniform", [0.0, 1e-6, 0.1, 0.5, 0.9, ALMOST_ONE])
def test_draw_in_a_long_row_finds_the_only_token_with_mass(uniform):
    for token in (0, 1, 511, 512, 65_535, VOCABULARY - 1):
        weights = np.zeros(VOCABULARY, np.float32)
        weights[token] = 1e-6
        assert drawn(weights, uniform) == token


def test_draw_in_a_long_row_of_tiny_masses_stays_inside_the_support():
    rng = np.random.default_rng(0)
    weights = np.where(rng.random(VOCABULARY) < 0.5, 0, rng.random(VOCABULARY) * 1e-9).astype(np.float32)
    weights[1000], weights[100_000] = 0.6, 0.4
    uniforms = np.concatenate([[0.0, ALMOST_ONE], rng.random(198)])
    indices = np.array([drawn(weights, u) for u in uniforms])
    assert (weights[indices] > 0).all()
    # The 128k others hold 3e-5 together, so nearly all draws are the two heavy ones, split at u = 0.4.
    expected = np.where(uniforms < 0.4, 100_000, 1000)
    assert np.count_nonzero(indices != expected) <= 2


def test_draw_in_a_long_uniform_row_is_right_to_rounding():
    uniforms = np.linspace(0.001, 0.999, 101)
    indices = np.array([drawn(np.full(VOCABULARY, 1 / VOCABULARY), u) for u in uniforms])
    # A running float32 sum of 128k terms may be off by V * 2^-24 of the total at worst, that is 0.8 % of the row.
    np.testing.assert_allclose(indices / VOCABULARY, 1 - uniforms, atol=VOCABULARY * 2.0**-24)


def test_draw_takes_many_rows_with_a_uniform_each():
    weights = mx.array([[[1.0, 0, 0], [0, 1, 0]], [[0, 0, 1], [1, 1, 0]]])
    assert draw(weights, mx.array([[0.3, 0.3], [0.3, 0.7]])).tolist() == [[0, 1], [2, 0]]


def test_draw_follows_the_weights():
    weights, n = np.array([0.05, 0.0, 0.3, 0.6, 0.05]), 100_000
    uniforms = mx.random.uniform(shape=(n,), key=mx.random.key(3))
    indices = np.array(draw(mx.broadcast_to(mx.array(weights, mx.float32), (n, 5)), uniforms))
    shares = np.bincount(indices, minlength=5) / n
    # Hoeffding: a share is off by more than d with probability 2 exp(-2 n d^2) = 8e-9 at d = 0.01 (times 5 shares).
    np.testing.assert_allclose(shares, weights, atol=0.01)
    assert shares[1] == 0


@pytest.mark.parametrize(
    ("accept", "uniforms", "length"),
    [
        ([1, 1, 1], [0.9, 0.9, 0.9], 3),
        ([0.5, 0.5, 0.5], [0.4, 0.6, 0.4], 1),  # what stands behind a rejection does not count
        ([0.5, 0.5, 0.5], [0.6, 0.4, 0.4], 0),
        ([0.5, 0.5, 0.5], [0.4, 0.4, 0.6], 2),
        ([0.5], [0.5], 0),  # accepted iff u < a: an acceptance probability of exactly a
        ([0.0, 1.0], [0.0, 0.0], 0),
        ([1.0], [ALMOST_ONE], 1),
        ([1.0, TINY], [0.0, 0.0], 2),
    ],
)
def test_accepted_length_counts_up_to_the_first_rejection(accept, uniforms, length):
    assert accepted_length(mx.array(accept, mx.float32), mx.array(uniforms, mx.float32)).item() == length


def test_positive_part_is_the_residual():
    residual = positive_part(mx.array([0.5, 0.25, 0.25]), mx.array([0.25, 0.75, 0.0]))
    assert residual.tolist() == [0.25, 0.0, 0.25]


def test_positive_part_of_equal_distributions_is_the_target_row_by_row():
    p = mx.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]])
    q = mx.array([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0]])
    assert positive_part(p, q).tolist() == [[0.5, 0.5, 0.0], [0.25, 0.0, 0.25]]


def test_positive_part_is_never_empty_where_rounding_leaves_the_target_below_the_draft():
    p = mx.array([0.5, 0.5 - 2.0**-25])  # sums to a little less than 1, nowhere above q
    residual = positive_part(p, mx.array([0.5, 0.5]))
    assert residual.tolist() == p.tolist()


CORRECTION = [[0.0, 0.7, 0.3], [0.0, 0.0, 2.0], [0.1, 0.0, 0.0]]
BONUS = [0.0, 5.0, 0.0]


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(("length", "uniform", "token"), [(0, 0.5, 1), (1, 0.9, 2), (2, 0.9, 0), (3, 0.1, 1)])
def test_next_token_is_the_correction_at_the_first_rejection_or_the_bonus(length, uniform, token, greedy):
    allowance = Allowance(accept=mx.zeros(3), correction=mx.array(CORRECTION), target_weight=mx.ones(3))
    chosen = next_token(allowance, mx.array(BONUS), mx.array(length), mx.array(uniform), greedy)
    assert chosen.item() == token


def test_next_token_draws_or_takes_the_largest():
    allowance = Allowance(accept=mx.zeros(1), correction=mx.array([[0.0, 0.7, 0.3]]), target_weight=mx.ones(1))
    tokens = [next_token(allowance, mx.array(BONUS), mx.array(0), mx.array(0.1), greedy).item() for greedy in (0, 1)]
    assert tokens == [2, 1]


def test_next_token_at_temperature_zero_may_be_given_logits():
    allowance = Allowance(accept=mx.zeros(1), correction=mx.array([[-9.0, -3.0, -8.0]]), target_weight=mx.ones(1))
    assert next_token(allowance, mx.array([-1.0, -2.0, -mx.inf]), mx.array(1), mx.array(0.5), True).item() == 0
    assert next_token(allowance, mx.array([-1.0, -2.0, -mx.inf]), mx.array(0), mx.array(0.5), True).item() == 1
