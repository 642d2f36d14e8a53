"""mlx-lm's own speculative decoding as a method: the same text where it must be the same, and its counts by hand."""

import mlx.core as mx
import pytest
from mlx_lm import stream_generate as mlx_lm_stream

from diversed_mlx import DiversedError, Pair, Sampling
from diversed_mlx.conversation import chat_prompt
from diversed_mlx.evaluation.engine import Settings
from diversed_mlx.evaluation.methods import make_method
from diversed_mlx.evaluation.mlx_lm_engine import runs


def prompt_of(pair, number=0):
    return chat_prompt(pair, [{"role": "user", "content": f"question {number}"}])


@pytest.mark.parametrize("number", range(3))
def test_greedy_it_is_lossless_decoding_round_by_round(pair, number):
    settings = Settings(sampling=Sampling(temp=0), num_draft_tokens=3, max_tokens=24)
    ours, theirs = (make_method(name, pair)(prompt_of(pair, number), settings, 0) for name in ("lossless", "mlx-lm"))
    assert theirs.text == ours.text
    # The last round of all differs: mlx-lm drafts one token more there, for which this engine has no use.
    counts = [[(r.proposed, r.accepted, r.tokens) for r in reply.rounds] for reply in (ours, theirs)]
    assert counts[0][:-2] == counts[1][:-2]
    assert [t.origin for t in ours.tokens][:-6] == [t.origin for t in theirs.tokens][:-6]
    assert len(ours.tokens) == len(theirs.tokens)
    assert all(t.target_weight is None for t in theirs.tokens)
    assert all(r.chances is None for r in theirs.rounds)


def test_sampled_it_says_what_mlx_lm_says(pair):
    settings = Settings(sampling=Sampling(temp=1), num_draft_tokens=3, max_tokens=24)
    reply = make_method("mlx-lm", pair)(prompt_of(pair), settings, 7)
    mx.random.seed(7)
    direct = list(
        mlx_lm_stream(
            pair.target.model, pair.tokenizer, prompt_of(pair), max_tokens=24, draft_model=pair.draft.model,
            num_draft_tokens=3, sampler=lambda logprobs: mx.random.categorical(logprobs),
        )
    )  # fmt: skip
    assert reply.text == pair.tokenizer.decode([r.token for r in direct if r.token not in pair.stop_tokens])
    assert [t.origin == "accepted" for t in reply.tokens] == [r.from_draft for r in direct]
    assert sum(r.tokens for r in reply.rounds) == len(direct) == len(reply.tokens)


def test_a_draft_that_is_the_target_is_always_taken(self_pair):
    settings = Settings(sampling=Sampling(temp=0), num_draft_tokens=3, max_tokens=17)
    reply = make_method("mlx-lm", self_pair)(prompt_of(self_pair), settings, 0)
    if len(reply.tokens) == 17:  # four whole rounds, then a draft of the one token that is left
        assert [(r.proposed, r.accepted, r.tokens) for r in reply.rounds] == [(3, 3, 4)] * 4 + [(1, 1, 1)]
    assert sum(r.proposed for r in reply.rounds) == sum(r.accepted for r in reply.rounds)


def test_rounds_by_hand():
    draft, target = True, False
    assert runs([]) == []
    assert runs([target, draft, draft, target, draft]) == [(0, True), (2, True), (1, False)]


def test_what_it_cannot_do_is_said(pair):
    with pytest.raises(DiversedError, match="needs a pair with a draft"):
        make_method("mlx-lm", Pair(pair.target))
    settings = Settings(sampling=Sampling(), num_draft_tokens="auto", max_tokens=4)
    with pytest.raises(DiversedError, match="a fixed number of tokens, not auto"):
        make_method("mlx-lm", pair)(prompt_of(pair), settings, 0)
