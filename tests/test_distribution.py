"""Chi-square of what is emitted against the exact distribution, computed again in numpy from the definitions.

A vocabulary of 8 and a world in which the next token depends on the last one only: two tables of logits, one a
model. The first two tokens are drawn 20,000 times through the library's own pure functions, and the same joint
distribution is known exactly:

- K = 2: both tokens are verified, the second perhaps in a second round: e(y1) e(y2 | y1);
- K = 1: behind an accepted draft comes the bonus, behind a correction a second round:
  min(q, nu)(y1) p(y2 | y1) + (e - min(q, nu))(y1) e(y2 | y1),

where e is what a position emits, nu for a mixture.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from diversed_mlx import (
    Cascade,
    Dynamic,
    EnsembleHead,
    Lenient,
    Lossless,
    Pair,
    Sampling,
    Static,
    stream_generate,
)
from diversed_mlx.acceptance import accepted_length, draw, next_token
from diversed_mlx.lm import LM
from diversed_mlx.verifiers import Evidence, Verifier

V, START, DRAWS = 8, 8, 20_000  # the state START stands for an empty past
RNG = np.random.default_rng(20)
TARGET_LOGITS, DRAFT_LOGITS = RNG.normal(size=(2, V + 1, V)) * 1.2
DRAFT_HIDDEN, TARGET_HIDDEN = RNG.normal(size=(V + 1, 3)), RNG.normal(size=(V + 1, 5))

# --- The bound -----------------------------------------------------------------------------------------------------

# Laurent and Massart (2000): a chi-square variable X of k degrees satisfies P(X > k + 2 sqrt(k x) + 2 x) <= exp(-x).
# With x = ln(1e8) a true hypothesis fails once in 1e8, and one of the fewer than 1000 in this file once in 1e5.
# The seeds are fixed, so a failure is a defect, not bad luck.
LOG_SIGNIFICANCE = math.log(1e8)
SMALLEST_EXPECTED = 10  # cells that expect fewer are one cell: the chi-square law is an approximation there


def excess(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square statistic over its bound: above 1 the hypothesis is rejected."""
    counts, expected = counts.ravel(), probabilities.ravel() * counts.sum()
    assert probabilities.sum() == pytest.approx(1)
    assert (counts[expected == 0] == 0).all(), "something was drawn that has no probability"
    small = expected < SMALLEST_EXPECTED
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    filled = expected > 0
    statistic = ((counts - expected)[filled] ** 2 / expected[filled]).sum()
    degrees = filled.sum() - 1
    return statistic / (degrees + 2 * math.sqrt(degrees * LOG_SIGNIFICANCE) + 2 * LOG_SIGNIFICANCE)


# --- The exact distribution ----------------------------------------------------------------------------------------


def chain(logits, temp=1.0, top_p=1.0, min_p=0.0, top_k=0) -> np.ndarray:
    """The sampling chain for one row: top-p, min-p, top-k at temperature 1, each on what the last one left."""
    p = np.exp(logits - np.max(logits))
    p /= p.sum()
    order = np.argsort(-p)
    above = np.concatenate([[0], np.cumsum(p[order])[:-1]])  # mass of the more likely tokens
    kept = np.zeros(len(p), bool)
    kept[order[above < top_p]] = True  # the smallest set that reaches top_p
    kept &= p >= min_p * p.max()
    if top_k:
        kept &= p >= np.sort(p[kept])[-min(top_k, kept.sum())]
    weights = np.where(kept, np.exp((logits - np.max(logits)) / temp), 0)
    return weights / weights.sum()


@dataclass
class Rule:
    """Exact counterpart of a verifier at one position: what is accepted and what is emitted."""

    accepted: np.ndarray
    emitted: np.ndarray


def mixture(w):
    """Acceptance min(q, nu) and emission nu = w p + (1 - w) q; w is a number or a function of the state."""

    def rule(p, q, state):
        weight = w(state) if callable(w) else w
        nu = weight * p + (1 - weight) * q
        return Rule(np.minimum(q, nu), nu)

    return rule


def accept_then_residual(accept):
    """Any acceptance rule a(x), followed by norm([p - q]_+)."""

    def rule(p, q, state):
        accepted = q * np.minimum(1, accept(p, q))
        residual = np.maximum(p - q, 0)
        return Rule(accepted, accepted + (1 - accepted.sum()) * residual / residual.sum())

    return rule


def ratio(p, q):
    return np.divide(p, q, out=np.zeros_like(p), where=q > 0)


def opt(alpha):
    def rule(p, q, state):
        deferred = q.max() < p.max() - alpha * 0.5 * np.abs(p - q).sum()
        return mixture(float(deferred))(p, q, state)

    return rule


def token(alpha):
    return accept_then_residual(lambda p, q: np.where(p < (1 - alpha) * p.max(), ratio(p, q), 1))


def head_weight(head: EnsembleHead):
    """The head's weight on the target in each state, as the second output of a softmax."""
    weight, bias = np.array(head.summary.weight, np.float64), np.array(head.summary.bias, np.float64)

    def w(state):
        outputs = np.exp(weight @ np.concatenate([DRAFT_HIDDEN[state], TARGET_HIDDEN[state]]) + bias)
        return outputs[1] / outputs.sum()

    return w


def head(w: float | None) -> EnsembleHead:
    """A head that answers w everywhere, or a weight that depends on the state."""
    made = EnsembleHead(3, 5)
    if w is None:
        made.summary.weight = mx.array(np.random.default_rng(1).normal(size=(2, 8)).astype(np.float32))
    else:
        logit = {0: -1e4, 1: 1e4}.get(w) or math.log(w / (1 - w))
        made.summary.bias = mx.array([0.0, logit])
    return made


VARYING = head(None)
METHODS: dict[str, tuple[Verifier, Callable]] = {
    "lossless": (Lossless(), mixture(1)),
    **{f"static {w}": (Static(target_weight=w), mixture(w)) for w in (0.0, 0.3, 1.0)},
    **{f"dynamic {w}": (Dynamic(head(w)), mixture(w)) for w in (0, 0.3, 1)},
    "dynamic varying": (Dynamic(VARYING), mixture(head_weight(VARYING))),
    **{
        f"lenient {x}": (Lenient(lenience=x), accept_then_residual(lambda p, q, x=x: ratio(p, x * q)))
        for x in (0.3, 0.8)
    },
    **{f"cascade opt {a}": (Cascade(alpha=a, rule="opt"), opt(a)) for a in (0.0, 0.3)},
    **{f"cascade token {a}": (Cascade(alpha=a, rule="token"), token(a)) for a in (0.3, 0.7)},
}


def exact(rule: Callable, sampling: dict, length: int) -> np.ndarray:
    """Joint distribution of the first two tokens, (V, V)."""
    p = [chain(row, **sampling) for row in TARGET_LOGITS]
    q = [chain(row, **sampling) for row in DRAFT_LOGITS]
    at = [rule(p[s], q[s], s) for s in range(V + 1)]
    second = np.array([rule.emitted for rule in at[:V]])
    if length >= 2:
        return at[START].emitted[:, None] * second
    corrected = at[START].emitted - at[START].accepted
    return at[START].accepted[:, None] * np.array(p[:V]) + corrected[:, None] * second


# --- The library ---------------------------------------------------------------------------------------------------


def first_two(verifier: Verifier, sampling: Sampling, length: int) -> Callable[[mx.array], mx.array]:
    """A function from the uniforms of two rounds, (2, 2 K + 1), to the first two tokens, (2,)."""
    p, q = (sampling.probabilities(mx.array(x, mx.float32)) for x in (TARGET_LOGITS, DRAFT_LOGITS))
    draft_hidden, target_hidden = (mx.array(x, mx.float32) for x in (DRAFT_HIDDEN, TARGET_HIDDEN))
    target_logits = mx.array(TARGET_LOGITS, mx.float32)

    def one_round(state: mx.array, uniforms: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        states = [state]
        for step in range(length):
            states.append(draw(q[states[-1]], uniforms[step]))
        past = mx.stack([s.astype(mx.int32) for s in states])  # (K + 1,)
        evidence = Evidence(
            tokens=past[1:],
            q=q[past[:-1]],
            p=p[past[:-1]],
            target_logits=target_logits[past[:-1]],
            draft_hidden=draft_hidden[past[:-1]],
            target_hidden=target_hidden[past[:-1]],
            greedy=False,
        )
        allowance = verifier(evidence)
        accepted = accepted_length(allowance.accept, uniforms[length : 2 * length])
        follower = next_token(allowance, p[past[-1]], accepted, uniforms[2 * length], False).astype(mx.int32)
        return past[1:], accepted, follower

    def sequence(uniforms: mx.array) -> mx.array:
        drafted, accepted, follower = one_round(mx.array(START, mx.int32), uniforms[0])
        first = mx.where(accepted > 0, drafted[0], follower)
        second = mx.where(accepted > 1, drafted[length - 1], follower)
        drafted, again, follower = one_round(first, uniforms[1])
        return mx.stack([first, mx.where(accepted > 0, second, mx.where(again > 0, drafted[0], follower))])

    return sequence


def counted(verifier: Verifier, sampling: Sampling, length: int, seed: int) -> np.ndarray:
    uniforms = mx.random.uniform(shape=(DRAWS, 2, 2 * length + 1), key=mx.random.key(seed))
    tokens = np.array(mx.vmap(first_two(verifier, sampling, length))(uniforms))
    return np.bincount(tokens[:, 0] * V + tokens[:, 1], minlength=V * V).reshape(V, V)


SAMPLINGS = [{"temp": temp, "top_p": top_p} for temp in (0.3, 1.0, 1.5) for top_p in (1.0, 0.8)]
SAMPLINGS.append({"temp": 0.7, "top_p": 0.95, "min_p": 0.1, "top_k": 4})


def label(sampling: dict) -> str:
    return " ".join(f"{name}={value}" for name, value in sampling.items())


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=label)
@pytest.mark.parametrize("logits", [TARGET_LOGITS, DRAFT_LOGITS], ids=["target", "draft"])
def test_the_sampling_chain_is_top_p_min_p_top_k_then_temperature(logits, sampling):
    probabilities = Sampling(**sampling).probabilities(mx.array(logits, mx.float32))
    np.testing.assert_allclose(probabilities, [chain(row, **sampling) for row in logits], rtol=1e-5)


def test_many_draws_at_once_are_those_of_a_loop():
    uniforms = mx.random.uniform(shape=(200, 2, 5), key=mx.random.key(0))
    for verifier in (Static(target_weight=0.3), Dynamic(VARYING), Cascade(rule="token")):
        sequence = first_two(verifier, Sampling(temp=1.5, top_p=0.8), 2)
        assert mx.vmap(sequence)(uniforms).tolist() == [sequence(row).tolist() for row in uniforms]


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=label)
@pytest.mark.parametrize("method", METHODS)
def test_emitted_tokens_follow_the_exact_distribution(method, sampling, length):
    verifier, rule = METHODS[method]
    counts = counted(verifier, Sampling(**sampling), length, seed=length)
    joint = exact(rule, sampling, length)
    assert excess(counts.sum(1), joint.sum(1)) < 1
    assert excess(counts, joint) < 1


def test_full_weight_on_one_model_emits_that_model():
    """The two ends, said without any rule: w = 1 is the target, w = 0 the draft (the bonus never)."""
    sampling = SAMPLINGS[2]
    for w, logits in ((1.0, TARGET_LOGITS), (0.0, DRAFT_LOGITS)):
        rows = np.array([chain(row, **sampling) for row in logits])
        counts = counted(Static(target_weight=w), Sampling(**sampling), 2, seed=5)
        assert excess(counts, rows[START][:, None] * rows[:V]) < 1


@pytest.mark.parametrize(
    ("verifier", "sampling", "rule"),
    [
        (Static(target_weight=0.3), Sampling(temp=1.0), mixture(0.4)),
        (Static(target_weight=0.3), Sampling(temp=1.0), mixture(0.7)),  # the weight on the wrong model
        (Static(target_weight=0.3), Sampling(temp=1.2), mixture(0.3)),  # another temperature
        (Lossless(), Sampling(temp=1.0, top_p=0.9), mixture(1)),  # another filter
        (Dynamic(VARYING), Sampling(temp=1.0), mixture(0.5)),  # one weight for all positions
        (Lenient(lenience=0.8), Sampling(temp=1.0), mixture(1)),
        (Cascade(alpha=0.3, rule="token"), Sampling(temp=1.0), mixture(0)),
        (Cascade(alpha=0.3, rule="opt"), Sampling(temp=1.0), mixture(1)),
    ],
)
def test_the_bound_notices_a_wrong_distribution(verifier, sampling, rule):
    """Power: these mistakes are all larger than what 20,000 draws let pass."""
    counts = counted(verifier, sampling, 2, seed=1)
    assert excess(counts, exact(rule, {"temp": 1.0}, 2)) > 1


# --- The whole library, with real models ---------------------------------------------------------------------------


def tiny_lm(seed: int) -> LM:
    letters = {letter: i for i, letter in enumerate("abcdefgh")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(letters, unk_token="a")))
    config = {
        "model_type": "llama",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "num_attention_heads": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": V,
        "tie_word_embeddings": False,
    }
    mx.random.seed(seed)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    model.lm_head.weight = 0.25 * mx.random.normal((V, 16))
    mx.eval(model.parameters())
    return LM(model, TokenizerWrapper(tokenizer), config, f"tiny {seed}")


def next_logits(lm: LM, tokens: list[int]) -> np.ndarray:
    return np.array(lm.model(mx.array([tokens]))[0, -1].astype(mx.float32), np.float64)


@pytest.mark.parametrize(
    ("w", "sampling", "length", "draws"),
    [
        pytest.param(0.3, {"temp": 1.0}, 2, DRAWS, marks=pytest.mark.slow),
        pytest.param(1.0, {"temp": 1.5, "top_p": 0.8}, 2, DRAWS, marks=pytest.mark.slow),
        (0.7, {"temp": 1.0}, 2, 1200),
        (0.7, {"temp": 1.0}, 1, 1200),
    ],
    ids=str,
)
def test_stream_generate_follows_the_exact_distribution(w, sampling, length, draws):
    """The first two of three tokens: at K = 2 both are verified, at K = 1 a bonus follows an accepted draft."""
    target, draft = tiny_lm(5), tiny_lm(6)
    pair, prompt = Pair(target, draft), [3]
    verifier = Lossless() if w == 1 else Static(target_weight=w)

    def rows_after(tokens: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        p, q = (chain(next_logits(lm, tokens), **sampling) for lm in (target, draft))
        nu = w * p + (1 - w) * q
        return p, nu, np.minimum(q, nu)

    _, first, accepted = rows_after(prompt)
    bonus, second, _ = (np.array(rows) for rows in zip(*[rows_after([*prompt, y]) for y in range(V)], strict=True))
    after_accepted = second if length == 2 else bonus
    joint = accepted[:, None] * after_accepted + (first - accepted)[:, None] * second
    counts = np.zeros((V, V), int)
    kinds = set()
    for seed in range(draws):
        responses = stream_generate(
            pair,
            prompt,
            verifier=verifier,
            sampling=Sampling(**sampling),
            num_draft_tokens=length,
            max_tokens=3,
            seed=seed,
        )
        one, two = next(responses), next(responses)
        responses.close()
        counts[one.token, two.token] += 1
        kinds.add((one.origin, two.origin))
    verified = ("accepted", "corrected")
    after = {"accepted": verified if length == 2 else ("bonus",), "corrected": verified}
    assert kinds == {(a, b) for a in verified for b in after[a]}
    assert excess(counts.sum(1), joint.sum(1)) < 1
    assert excess(counts, joint) < 1
