"""Theory against numbers worked by hand, against enumeration, and against what the engine itself does."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from diversed_mlx import Lossless, Sampling, Static, stream_generate, theory
from diversed_mlx.verifiers import Evidence

P, Q = [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]


def test_distances_by_hand():
    assert theory.total_variation(P, Q) == pytest.approx(0.4)  # (.3 + .1 + .4) / 2
    assert theory.total_variation(P, P) == 0
    assert theory.total_variation([1, 0], [0, 1]) == 1


def test_every_fixed_weight_is_on_the_front():
    points = theory.static_front(P, Q, [0, 0.25, 1])
    assert np.allclose(points, [(0, 0.4), (0.1, 0.3), (0.4, 0)])
    for weight, point in zip([0, 0.25, 1], points, strict=True):
        mixture = weight * np.array(P) + (1 - weight) * np.array(Q)
        assert point.from_draft == pytest.approx(theory.total_variation(Q, mixture))
        assert point.to_target == pytest.approx(theory.total_variation(mixture, P))
    elsewhere = [0.0, 0.0, 1.0]  # a nu that is no mixture is off the front
    assert theory.total_variation(Q, elsewhere) + theory.total_variation(elsewhere, P) > 0.4


def test_a_round_by_hand():
    chances = [1.0, 0.5, 0.8]
    assert theory.survival(chances) == pytest.approx([1, 0.5, 0.4])
    assert theory.expected_accepted(chances) == pytest.approx(1.9)
    assert theory.length_distribution(chances) == pytest.approx([0, 0.5, 0.1, 0.4])
    # 2 tokens with 0.5, 3 with 0.1, 4 with 0.4: mean 2.9, mean of squares 9.3
    assert theory.tokens_of_round(chances, ends=False) == pytest.approx((2.9, 9.3 - 2.9**2))
    # Nothing follows a stop token: 3 tokens with 0.5 in all, so mean 2.5, mean of squares 6.5
    assert theory.tokens_of_round(chances, ends=True) == pytest.approx((2.5, 6.5 - 2.5**2))
    assert theory.tokens_of_round([], ends=False) == (1, 0)  # plain decoding
    assert theory.length_distribution([]) == [1.0]


def test_equal_independent_chances_by_hand():
    assert theory.tokens_per_round(0.5, 2) == pytest.approx(1.75)
    assert theory.tokens_per_round(0.8, 5) == pytest.approx((1 - 0.8**6) / 0.2)
    assert (theory.tokens_per_round(0, 5), theory.tokens_per_round(1, 5)) == (1, 6)
    assert theory.tokens_of_round([0.8] * 5, ends=False)[0] == pytest.approx(theory.tokens_per_round(0.8, 5))


def conditionals(seed, vocabulary):
    """Two random distributions after every prefix: nothing about them is independent or identical."""
    made = {}

    def at(prefix, role):
        if (prefix, role) not in made:
            entropy = [seed, role, *(token + 1 for token in prefix)]
            made[prefix, role] = np.random.default_rng(entropy).dirichlet(np.ones(vocabulary))
        return made[prefix, role]

    return lambda prefix: at(prefix, 0), lambda prefix: at(prefix, 1)


@pytest.mark.parametrize(("verifier", "weight"), [(Lossless(), 1.0), (Static(target_weight=0.4), 0.4)])
def test_the_mean_over_drafts_is_the_enumeration(verifier, weight):
    vocabulary, length = 3, 3
    q, p = conditionals(5, vocabulary)
    mean = 0.0
    for tokens in itertools.product(range(vocabulary), repeat=length):
        rows_q, rows_p = (np.array([at(tokens[:i]) for i in range(length)]) for at in (q, p))
        nothing = mx.zeros((length, 1))
        allowed = verifier(
            Evidence(
                tokens=mx.array(tokens),
                q=mx.array(rows_q, dtype=mx.float32),
                p=mx.array(rows_p, dtype=mx.float32),
                target_logits=nothing,
                draft_hidden=nothing,
                target_hidden=nothing,
                greedy=False,
            )
        )
        chance_of_draft = np.prod([rows_q[i, token] for i, token in enumerate(tokens)])
        mean += chance_of_draft * theory.expected_accepted(allowed.accept.tolist())
    exact = theory.exact_accepted(q, lambda prefix: weight * p(prefix) + (1 - weight) * q(prefix), length)
    assert mean == pytest.approx(exact, abs=1e-6)
    first = 1 - weight * theory.total_variation(q(()), p(()))
    assert exact > first > 0  # E[L] = P(L >= 1) + ..., whose first term has a closed form


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_rounds_of_the_engine_are_as_expected(pair, temp):
    """Rounds of 5 drafts; the mean of (accepted - expected) is 0, with the variance that the chances imply."""
    differences, variance = [], 0.0
    for seed in range(6):
        prompt = f"question {seed}"
        seen = {}
        for response in stream_generate(
            pair, prompt, sampling=Sampling(temp=temp), num_draft_tokens=5, max_tokens=60, seed=seed
        ):
            seen[id(response.block)] = response.block
        for block in seen.values():
            chances = block.accept_probabilities
            lengths = theory.length_distribution(chances)
            expected = theory.expected_accepted(chances)
            differences.append(block.accepted - expected)
            variance += sum(chance * (i - expected) ** 2 for i, chance in enumerate(lengths))
    assert len(differences) > 50
    if temp == 0:
        assert differences == [0] * len(differences)
    else:
        assert abs(sum(differences)) < 4 * variance**0.5  # one seed in 16,000 fails; these are fixed
