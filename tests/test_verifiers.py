"""Each verifier against formulas written again in numpy from the method's definition."""

import math

import mlx.core as mx
import numpy as np
import pytest

from diversed_mlx import Cascade, DiversedError, Dynamic, EnsembleHead, Lenient, Lossless, Sampling, Static
from diversed_mlx.verifiers import Evidence

K, V, DRAFT_SIZE, TARGET_SIZE = 6, 11, 3, 5


def random_rows(seed: int, rows: int = K) -> tuple[np.ndarray, np.ndarray]:
    """p and q, (rows, V), of which some entries are exactly 0."""
    rng = np.random.default_rng(seed)
    p, q = rng.gamma(0.4, size=(2, rows, V)) * (rng.random((2, rows, V)) < 0.85) + 1e-3 * np.eye(rows, V)
    return p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)


def evidence(p, q, tokens, *, greedy: bool = False, seed: int = 0) -> Evidence:
    p, q = np.asarray(p, np.float32), np.asarray(q, np.float32)
    rng = np.random.default_rng(seed)
    with np.errstate(divide="ignore"):
        logits = np.log(p) + 3  # any constant: logits are not normalised
    return Evidence(
        tokens=mx.array(tokens, mx.uint32),
        q=mx.array(q),
        p=mx.array(p),
        target_logits=mx.array(logits),
        draft_hidden=mx.array(rng.normal(size=(len(p), DRAFT_SIZE)).astype(np.float32)),
        target_hidden=mx.array(rng.normal(size=(len(p), TARGET_SIZE)).astype(np.float32)),
        greedy=greedy,
    )


def drafted(q: np.ndarray, seed: int) -> np.ndarray:
    """One token a row with q > 0, not always the most likely one."""
    rng = np.random.default_rng(seed)
    return np.array([rng.choice(np.flatnonzero(row)) for row in q])


def head_with(bias=(0.0, 0.0), scale: float = 0.0, seed: int = 0) -> EnsembleHead:
    head = EnsembleHead(DRAFT_SIZE, TARGET_SIZE)
    rng = np.random.default_rng(seed)
    head.summary.weight = mx.array(scale * rng.normal(size=(2, DRAFT_SIZE + TARGET_SIZE)).astype(np.float32))
    head.summary.bias = mx.array(bias, mx.float32)
    return head


def at(rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return rows[np.arange(len(rows)), tokens]


def mixture_ratio(p, q, tokens, w):
    """min(1, nu(x) / q(x)) with nu = w p + (1 - w) q, straight from the definition."""
    w = np.broadcast_to(np.asarray(w, float), len(p))[:, None]
    return np.minimum(1, at(w * p + (1 - w) * q, tokens) / at(q, tokens))


def residual(p, q):
    r = np.maximum(p - q, 0)
    return r / r.sum(-1, keepdims=True)


def normalised(rows: mx.array) -> np.ndarray:
    rows = np.array(rows, np.float64)
    return rows / rows.sum(-1, keepdims=True)


def emitted(verifier, p: np.ndarray, q: np.ndarray, hidden_seed: int = 0) -> np.ndarray:
    """Exact distribution (V,) of the token that a verifier lets out at one position: the draft over every token."""
    tokens = np.flatnonzero(q)
    rows = evidence(np.tile(p, (len(tokens), 1)), np.tile(q, (len(tokens), 1)), tokens)
    # One position has one pair of hidden states, whatever was drafted.
    one = evidence(p[None], q[None], [0], seed=hidden_seed)
    rows = Evidence(
        **{
            **vars(rows),
            "draft_hidden": mx.repeat(one.draft_hidden, len(tokens), axis=0),
            "target_hidden": mx.repeat(one.target_hidden, len(tokens), axis=0),
        }
    )
    allowance = verifier(rows)
    accepted = np.zeros(len(q))
    accepted[tokens] = q[tokens] * np.array(allowance.accept, np.float64)
    correction = normalised(allowance.correction)
    assert (correction == correction[0]).all()  # the same whichever token was rejected
    return accepted + (1 - accepted.sum()) * correction[0]


# --- Temperature above 0 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("w", [0.0, 0.3, 0.7, 1.0])
def test_static_accepts_with_the_ratio_of_the_mixture_and_corrects_with_the_residual(w, seed):
    p, q = random_rows(seed)
    tokens = drafted(q, seed)
    allowance = Static(target_weight=w)(evidence(p, q, tokens))
    np.testing.assert_allclose(allowance.accept, mixture_ratio(p, q, tokens, w), rtol=1e-5)
    np.testing.assert_allclose(normalised(allowance.correction), residual(p, q), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(allowance.target_weight, np.full(K, w), rtol=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_dynamic_mixes_with_the_heads_weight_of_each_position(seed):
    p, q = random_rows(seed)
    tokens = drafted(q, seed)
    head = head_with(bias=(0.2, -0.1), scale=0.7, seed=seed)
    given = evidence(p, q, tokens, seed=seed)
    # The layout of the released checkpoint: draft first, softmax over two outputs, the second is the target's weight.
    hidden = np.concatenate([np.array(given.draft_hidden), np.array(given.target_hidden)], axis=1).astype(np.float64)
    outputs = np.exp(hidden @ np.array(head.summary.weight, np.float64).T + np.array(head.summary.bias))
    w = outputs[:, 1] / outputs.sum(1)
    assert w.max() - w.min() > 0.2
    allowance = Dynamic(head)(given)
    np.testing.assert_allclose(allowance.target_weight, w, rtol=1e-5)
    np.testing.assert_allclose(allowance.accept, mixture_ratio(p, q, tokens, w), rtol=1e-5)
    np.testing.assert_allclose(normalised(allowance.correction), residual(p, q), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lenience", [0.1, 0.5, 1.0])
def test_lenient_accepts_with_p_over_lenience_times_q(lenience, seed):
    p, q = random_rows(seed)
    tokens = drafted(q, seed)
    allowance = Lenient(lenience=lenience)(evidence(p, q, tokens))
    np.testing.assert_allclose(allowance.accept, np.minimum(1, at(p, tokens) / (lenience * at(q, tokens))), rtol=1e-5)
    np.testing.assert_allclose(normalised(allowance.correction), residual(p, q), rtol=1e-5, atol=1e-7)
    assert np.isnan(np.array(allowance.target_weight)).all()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("lenience", [0.05, 0.3, 0.9])
def test_lenient_never_emits_a_token_with_more_than_p_over_lenience(lenience, seed):
    p, q = (rows[0] for rows in random_rows(seed, 1))
    assert (emitted(Lenient(lenience=lenience), p, q) <= p / lenience + 1e-6).all()


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.8])
def test_cascade_opt_defers_where_the_target_is_surer_than_the_cost_of_asking_it(alpha):
    p, q = random_rows(4, 40)
    tokens = drafted(q, 4)
    distance = 0.5 * np.abs(p - q).sum(-1)
    deferred = q.max(-1) < p.max(-1) - alpha * distance
    assert 0 < deferred.sum() < len(deferred)
    allowance = Cascade(alpha=alpha, rule="opt")(evidence(p, q, tokens))
    np.testing.assert_allclose(allowance.accept, mixture_ratio(p, q, tokens, deferred), rtol=1e-5)
    np.testing.assert_allclose(normalised(allowance.correction), residual(p, q), rtol=1e-5, atol=1e-7)
    assert allowance.target_weight.tolist() == deferred.astype(float).tolist()


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.9, 1.0])
def test_cascade_token_defers_a_token_that_the_target_finds_unlikely(alpha):
    p, q = random_rows(5, 40)
    tokens = drafted(q, 5)
    # As the library sees p, so that a token which is the target's own choice is not deferred by rounding.
    p = p.astype(np.float32).astype(np.float64)
    deferred = at(p, tokens) < (1 - alpha) * p.max(-1)
    expected = np.where(deferred, np.minimum(1, at(p, tokens) / at(q, tokens)), 1)
    allowance = Cascade(alpha=alpha, rule="token")(evidence(p, q, tokens))
    np.testing.assert_allclose(allowance.accept, expected, rtol=1e-5)
    np.testing.assert_allclose(normalised(allowance.correction), residual(p, q), rtol=1e-5, atol=1e-7)


def test_cascade_on_hand_made_numbers():
    # TV = .4. opt: defers iff .5 < .6 - alpha * .4, that is iff alpha < .25.
    p, q = [[0.6, 0.3, 0.1]], [[0.2, 0.5, 0.3]]
    accept = {alpha: Cascade(alpha=alpha)(evidence(p, q, [1])).accept.item() for alpha in (0.2, 0.3)}
    assert accept == {0.2: pytest.approx(0.6), 0.3: 1.0}
    # token: token 1 stands iff .3 >= (1 - alpha) * .6, that is iff alpha >= .5.
    accept = {alpha: Cascade(alpha=alpha, rule="token")(evidence(p, q, [1])).accept.item() for alpha in (0.4, 0.6)}
    assert accept == {0.4: pytest.approx(0.6), 0.6: 1.0}


@pytest.mark.parametrize("seed", range(5))
def test_mixtures_emit_the_mixture_exactly(seed):
    p, q = (rows[0] for rows in random_rows(seed, 1))
    for w in (0.0, 0.3, 1.0):
        np.testing.assert_allclose(emitted(Static(target_weight=w), p, q), w * p + (1 - w) * q, atol=1e-6)
    np.testing.assert_allclose(emitted(Lossless(), p, q), p, atol=1e-6)
    w = 1 / (1 + math.exp(-1.5))  # a head that answers 0, with the dial at 1.5
    np.testing.assert_allclose(emitted(Dynamic(head_with(), strictness=1.5), p, q), w * p + (1 - w) * q, atol=1e-6)


@pytest.mark.parametrize("temp", [0.3, 1.0, 1.5])
def test_acceptance_follows_the_temperature_through_the_total_variation(temp):
    """Over all draft tokens, acceptance is 1 - w TV(q, p) with p and q at the temperature that is sampled at."""
    rng = np.random.default_rng(1)
    target_logits, draft_logits = rng.normal(size=(2, V)) * 2
    exact = []
    for logits in (target_logits, draft_logits):
        weights = np.exp(logits / temp)
        exact.append(weights / weights.sum())
    distance = 0.5 * np.abs(exact[0] - exact[1]).sum()
    sampling = Sampling(temp=temp)
    p, q = (np.array(sampling.probabilities(mx.array(x.astype(np.float32)))) for x in (target_logits, draft_logits))
    every = np.arange(V)
    for w in (0.4, 1.0):
        allowance = Static(target_weight=w)(evidence(np.tile(p, (V, 1)), np.tile(q, (V, 1)), every))
        assert np.sum(q * np.array(allowance.accept)) == pytest.approx(1 - w * distance, abs=1e-6)


# --- Special cases are one another ---------------------------------------------------------------------------------


def same(first, second) -> bool:
    return all(
        mx.array_equal(getattr(first, name), getattr(second, name)).item()
        for name in ("accept", "correction", "target_weight")
    )


@pytest.mark.parametrize("seed", range(5))
def test_full_weight_on_the_target_is_lossless_to_the_last_bit(seed):
    p, q = random_rows(seed)
    given = evidence(p, q, drafted(q, seed))
    lossless = Lossless()(given)
    assert same(Static(target_weight=1.0)(given), lossless)
    assert same(Dynamic(head_with(bias=(0, 1e4)))(given), lossless)
    assert same(Dynamic(head_with(scale=1.0), strictness=math.inf)(given), lossless)
    lenient = Lenient(lenience=1.0)(given)
    assert mx.array_equal(lenient.accept, lossless.accept)
    assert mx.array_equal(lenient.correction, lossless.correction)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("greedy", [False, True])
def test_full_weight_on_the_draft_accepts_everything(seed, greedy):
    p, q = random_rows(seed)
    given = evidence(p, q, q.argmax(-1) if greedy else drafted(q, seed), greedy=greedy)
    for verifier in (
        Static(target_weight=0.0),
        Dynamic(head_with(bias=(1e4, 0))),
        Dynamic(head_with(scale=1.0), strictness=-math.inf),
    ):
        assert verifier(given).accept.tolist() == [1.0] * K


@pytest.mark.parametrize("seed", range(5))
def test_full_weight_on_the_target_decides_as_lossless_at_temperature_zero(seed):
    p, q = random_rows(seed)
    given = evidence(p, q, q.argmax(-1), greedy=True)
    lossless = Lossless()(given)
    for verifier in (Static(target_weight=1.0), Dynamic(head_with(bias=(0, 1e4))), Lenient(lenience=1.0)):
        allowance = verifier(given)
        assert allowance.accept.tolist() == lossless.accept.tolist()
        assert mx.argmax(allowance.correction, axis=-1).tolist() == mx.argmax(lossless.correction, axis=-1).tolist()


def test_a_new_head_weighs_both_models_equally():
    p, q = random_rows(0)
    allowance = Dynamic(EnsembleHead(DRAFT_SIZE, TARGET_SIZE))(evidence(p, q, drafted(q, 0)))
    assert allowance.target_weight.tolist() == [0.5] * K


def test_strictness_shifts_the_heads_logit_and_is_monotone():
    p, q = random_rows(2)
    given = evidence(p, q, drafted(q, 2))
    head = head_with(scale=0.5, bias=(0.3, 0.0))
    z = np.array(head.logit(given.draft_hidden, given.target_hidden))[:, 0].astype(np.float64)
    dial = [-math.inf, -30.0, -2.0, -0.5, 0.0, 0.5, 2.0, 30.0, math.inf]
    allowances = [Dynamic(head, strictness=s)(given) for s in dial]
    weights = np.array([np.array(a.target_weight) for a in allowances])  # (S, K)
    finite = np.array(dial[1:-1])[:, None]
    np.testing.assert_allclose(weights[1:-1], 1 / (1 + np.exp(-(z + finite))), rtol=1e-5)
    assert (np.diff(weights, axis=0) >= 0).all()
    assert (weights[0] == 0).all()
    assert (weights[-1] == 1).all()
    accept = np.array([np.array(a.accept) for a in allowances])
    assert (np.diff(accept, axis=0) <= 1e-7).all()  # stricter never accepts more


# --- Temperature 0 -------------------------------------------------------------------------------------------------

# The example of method "Temperature 0".
P, Q = [[0.50, 0.49, 0.01]], [[0.10, 0.89, 0.01]]


def decision(verifier, token: int = 1) -> tuple[float, int]:
    """Whether the token is accepted, and what would replace it."""
    allowance = verifier(evidence(P, Q, [token], greedy=True))
    return allowance.accept.item(), mx.argmax(allowance.correction, axis=-1).item()


def test_at_temperature_zero_the_mixture_is_taken_before_the_argmax():
    # nu = (.30, .69, .01): token 1 stands under the mixture and is the target's second choice.
    allowance = Static(target_weight=0.5)(evidence(P, Q, [1], greedy=True))
    np.testing.assert_allclose(allowance.correction, [[0.30, 0.69, 0.01]], rtol=1e-6)
    assert decision(Static(target_weight=0.5)) == (1.0, 1)
    assert decision(Dynamic(head_with())) == (1.0, 1)
    assert decision(Lossless()) == (0.0, 0)


@pytest.mark.parametrize(
    ("verifier", "accepted", "correction"),
    [
        # nu_0 = .1 + .4 w and nu_1 = .89 - .4 w cross at w = .9875.
        (Static(target_weight=0.98), 1.0, 1),
        (Static(target_weight=0.99), 0.0, 0),
        (Static(target_weight=1.0), 0.0, 0),
        (Static(target_weight=0.0), 1.0, 1),
        # .49 > l * .50 iff l < .98.
        (Lenient(lenience=0.97), 1.0, 0),
        (Lenient(lenience=0.99), 0.0, 0),
        (Lenient(lenience=1.0), 0.0, 0),
        # opt: max q = .89 is not below max p: not deferred, whatever alpha.
        (Cascade(alpha=0.0, rule="opt"), 1.0, 1),
        # token: .49 < (1 - alpha) .50 iff alpha < .02.
        (Cascade(alpha=0.01, rule="token"), 0.0, 0),
        (Cascade(alpha=0.03, rule="token"), 1.0, 0),
        (Cascade(alpha=0.0, rule="token"), 0.0, 0),
    ],
)
def test_decisions_at_temperature_zero_on_hand_made_numbers(verifier, accepted, correction):
    assert decision(verifier) == (accepted, correction)


def test_cascade_opt_at_temperature_zero_takes_one_models_choice():
    # As above: deferred iff alpha < .25, and then the target's token 0 replaces the draft's token 1.
    p, q = [[0.6, 0.3, 0.1]], [[0.2, 0.5, 0.3]]
    for alpha, accepted, choice in ((0.2, 0.0, 0), (0.3, 1.0, 1)):
        allowance = Cascade(alpha=alpha)(evidence(p, q, [1], greedy=True))
        assert (allowance.accept.item(), mx.argmax(allowance.correction, axis=-1).item()) == (accepted, choice)


def test_every_verifier_accepts_the_targets_own_choice_at_temperature_zero():
    p, q = random_rows(7)
    for verifier in (
        Lossless(),
        Static(target_weight=1.0),
        Dynamic(head_with(bias=(0, 1e4))),
        Lenient(lenience=0.3),
        Lenient(lenience=1.0),
        Cascade(alpha=0.0, rule="token"),
        Cascade(alpha=0.7, rule="token"),
    ):
        assert verifier(evidence(p, q, p.argmax(-1), greedy=True)).accept.tolist() == [1.0] * K


# --- Numbers that half precision cannot hold -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_tiny_probabilities_are_compared_and_not_accepted_without_condition(dtype):
    # Logits of -28 and -32 beside 0: q(x) = 7e-13, p(x) = 1e-14. Half precision has no number between 0 and 6e-8,
    # and 0/0 or x/0 would let the token pass; the ratio is e^-4 = .0183.
    draft_logits, target_logits = mx.array([[0.0, -28.0, -3.0]], dtype), mx.array([[0.0, -32.0, -3.0]], dtype)
    sampling = Sampling(temp=1.0)
    p, q = sampling.probabilities(target_logits), sampling.probabilities(draft_logits)
    assert p.dtype == q.dtype == mx.float32
    accept = Lossless()(evidence(np.array(p), np.array(q), [1])).accept.item()
    assert accept == pytest.approx(math.exp(-4), rel=1e-3)
    accept = Lenient(lenience=0.5)(evidence(np.array(p), np.array(q), [1])).accept.item()
    assert accept == pytest.approx(2 * math.exp(-4), rel=1e-3)
    accept = Static(target_weight=0.5)(evidence(np.array(p), np.array(q), [1])).accept.item()
    assert accept == pytest.approx(0.5 + 0.5 * math.exp(-4), rel=1e-3)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_a_token_that_the_target_excludes_is_never_accepted_by_lossless(dtype):
    target_logits = mx.array([[0.0, -mx.inf, -3.0]], dtype)
    p = Sampling(temp=1.0).probabilities(target_logits)
    given = evidence(np.array(p), [[0.5, 1e-12, 0.5]], [1])
    assert Lossless()(given).accept.item() == 0.0
    assert Lenient(lenience=0.01)(given).accept.item() == 0.0


# --- Ranges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *[(lambda w=w: Static(target_weight=w), "target_weight") for w in (-0.01, 1.01, math.nan, math.inf)],
        *[(lambda x=x: Lenient(lenience=x), "lenience") for x in (0.0, -0.5, 1.01, math.nan)],
        *[(lambda a=a: Cascade(alpha=a), "alpha") for a in (-0.1, 1.1, math.nan)],
        (lambda: Cascade(rule="both"), "rule"),
        (lambda: Dynamic(head_with(), strictness=math.nan), "strictness"),
    ],
)
def test_values_out_of_range_are_refused_by_name(make, name):
    with pytest.raises(DiversedError, match=name):
        make()


@pytest.mark.parametrize(
    "make", [lambda: Static(target_weight=0), lambda: Lenient(lenience=1), lambda: Cascade(alpha=1)]
)
def test_the_ends_of_the_ranges_are_allowed(make):
    p, q = random_rows(0)
    accept = np.array(make()(evidence(p, q, drafted(q, 0))).accept)
    assert ((accept >= 0) & (accept <= 1)).all()


def test_the_smallest_temperature_is_the_most_likely_token_and_no_nan():
    probabilities = Sampling(temp=1e-38).probabilities(mx.array([[1.0, 20.0, 3.0]]))
    assert probabilities.tolist() == [[0.0, 1.0, 0.0]]
