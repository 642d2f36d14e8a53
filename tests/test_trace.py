"""What a round tells of its tokens: p, q and the chance of acceptance, beside forward passes of mlx-lm's own models."""

import mlx.core as mx
import numpy as np
import pytest

from diversed_mlx import Lossless, Sampling, Static
from diversed_mlx.answer import Options, answer

PROMPT = [72, 105, 32, 116, 104]
SAMPLING = Sampling(temp=0.8, top_p=0.9)


def traced(pair, verifier, sampling=SAMPLING, trace=True, seed=3):
    options = Options(verifier=verifier, sampling=sampling, num_draft_tokens=4, max_tokens=60, seed=seed, trace=trace)
    return list(answer(pair, pair.make_context(), PROMPT, options))


def rows(lm, tokens, sampling=SAMPLING):
    """Probabilities at each position of an answer, computed at once from its whole text: shape (T, V)."""
    logits = lm.model(mx.array([tokens]))[0, len(PROMPT) - 1 : -1].astype(mx.float32)
    return np.array(sampling.probabilities(logits))


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_p_and_q_are_those_of_the_models(pair, temp):
    sampling = Sampling(temp=temp, top_p=0.9)
    responses = traced(pair, Static(target_weight=0.6), sampling)
    tokens = [*PROMPT, *(r.token for r in responses)]
    p, q = rows(pair.target, tokens, sampling), rows(pair.draft, tokens, sampling)
    assert {r.origin for r in responses} == {"accepted", "corrected", "bonus"}
    for i, r in enumerate(responses):
        assert r.target_probability == pytest.approx(p[i, r.token], abs=1e-5)
        if r.origin == "bonus":
            assert r.draft_probability is None
        else:
            assert r.draft_probability == pytest.approx(q[i, r.token], abs=1e-5)


def test_the_chance_of_acceptance_is_that_of_the_mixture(pair):
    w = 0.6
    responses = traced(pair, Static(target_weight=w))
    checked = 0
    for r in responses:
        assert r.block.draft_tokens[: r.block.accepted] == r.block.tokens[: r.block.accepted]
        assert len(r.block.accept_probabilities) == len(r.block.draft_tokens)
    for block in {id(r.block): r.block for r in responses}.values():
        for i in range(block.accepted):
            p, q = block.target_probabilities[i], block.draft_probabilities[i]
            assert block.accept_probabilities[i] == pytest.approx(min(1, (w * p + (1 - w) * q) / q), abs=1e-5)
            checked += 1
    assert checked > 20


def test_the_target_alone_tells_its_p(pair):
    responses = traced(pair, None)
    p = rows(pair.target, [*PROMPT, *(r.token for r in responses)])
    for i, r in enumerate(responses):
        assert r.target_probability == pytest.approx(p[i, r.token], abs=1e-5)
        assert r.draft_probability is None
        assert r.block.draft_tokens == []


@pytest.mark.parametrize("verifier", [None, Lossless()])
def test_a_trace_changes_no_token(pair, verifier):
    plain = traced(pair, verifier, trace=False)
    assert [r.token for r in plain] == [r.token for r in traced(pair, verifier)]
    assert all(r.target_probability is None and r.draft_probability is None for r in plain)
