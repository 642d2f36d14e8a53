"""Speculative decoding gives exactly what plain decoding gives, token for token, wherever it claims to.

The reference is never this library: `mlx_lm.generate_step`, or a loop over mlx-lm's own model and cache.
"""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache
from mlx_lm.sample_utils import make_logits_processors
from mlx_lm.utils import _get_classes
from tiny import END, GEMMA, LLAMA, VOCAB, adversary, random_weights, write_model

from diversed_mlx import Cascade, Dynamic, EnsembleHead, Lenient, Lossless, Pair, Sampling, Static, stream_generate
from diversed_mlx.lm import LM

# Two sliding layers around a global one, as Mistral and Ministral have them in mlx-lm's llama.
SLIDING = LLAMA | {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 16,
}
WIDE_HEADS = LLAMA | {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}  # 64 wide
SHAPES = {"llama": LLAMA, "gemma": GEMMA, "sliding": SLIDING}
DRAFTS = ("agreeing", "self", "adverse")
PROMPTS = {
    "short": [72, 105],
    "long": [(5 * i * i + 3 * i) % 250 for i in range(150)],  # ten chunks of PREFILL, nine windows
}
PREFILL = 16
GREEDY = Sampling(temp=0)


class Zoo:
    """Pairs of tiny models with every kind of draft, loaded once."""

    def __init__(self, root: Path):
        self._root = root
        self._lms: dict[str, LM] = {}

    def lm(self, name: str, config: dict, weights: dict[str, mx.array], noise: float = 0.0) -> LM:
        if name not in self._lms:
            self._lms[name] = LM.load(write_model(self._root / name, config, weights=weights, noise=noise))
        return self._lms[name]

    def pair(self, shape: str, draft: str, config: dict | None = None) -> Pair:
        config = config or SHAPES[shape]
        weights = random_weights(config, 1, 4.0)
        target = self.lm(f"{shape}-target", config, weights)
        if draft == "self":
            return Pair(target, target)
        if draft == "alien":
            return Pair(target, self.lm(f"{shape}-alien", config, random_weights(config, 2, 2.0)))
        if draft == "adverse":
            return Pair(target, self.lm(f"{shape}-adverse", config, adversary(weights)))
        return Pair(target, self.lm(f"{shape}-agreeing", config, weights, noise=0.15))


@pytest.fixture(scope="module")
def zoo(tmp_path_factory) -> Zoo:
    return Zoo(tmp_path_factory.mktemp("zoo"))


def run(pair: Pair, prompt: list[int], verifier, *, sampling: Sampling = GREEDY, max_tokens: int = 200, **options):
    responses = stream_generate(pair, prompt, verifier=verifier, sampling=sampling, max_tokens=max_tokens, **options)
    responses = list(responses)
    return [r.token for r in responses], responses[-1].stats


def plain(lm: LM, prompt: list[int], max_tokens: int = 200, **options) -> list[int]:
    """Greedy decoding by mlx-lm, up to the stop token."""
    tokens = []
    for token, _ in generate_step(mx.array(prompt), lm.model, max_tokens=max_tokens, **options):
        tokens.append(int(token))
        if token == END:
            break
    return tokens


def plain_with(lm: LM, prompt: list[int], caches: list, max_tokens: int = 200) -> list[int]:
    """Greedy decoding with mlx-lm's model and given caches, one token a pass from the first of the prompt on."""
    tokens = list(prompt)
    for i in itertools.count():
        logits = lm.model(mx.array([[tokens[i]]]), cache=caches)
        if i == len(tokens) - 1:
            tokens.append(mx.argmax(logits[0, -1, :VOCAB]).item())
        else:
            mx.eval(logits)
        if len(tokens) == len(prompt) + max_tokens or tokens[-1] == END:
            return tokens[len(prompt) :]


def all_target(pair: Pair) -> Dynamic:
    assert pair.draft is not None
    head = EnsembleHead(pair.draft.hidden_size, pair.target.hidden_size)
    head.summary.bias = mx.array([0.0, 1e4])
    return Dynamic(head)


# What verifies against the target alone.
STRICT = {
    "lossless": lambda pair: Lossless(),
    "static": lambda pair: Static(target_weight=1.0),
    "dynamic": all_target,
    "lenient": lambda pair: Lenient(lenience=1.0),
}

# --- Greedy decoding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_plain_decoding_is_that_of_mlx_lm(zoo, shape, prompt):
    pair = zoo.pair(shape, "self")
    expected = plain(pair.target, PROMPTS[prompt], prefill_step_size=PREFILL)
    assert len(expected) == 200
    assert len(set(expected)) > 20  # no loop of a few tokens, in which little could go wrong
    assert run(pair, PROMPTS[prompt], None, prefill_step_size=PREFILL)[0] == expected


def grid():
    """Every shape, draft and length with every method, at one prompt each; nine of them are not slow."""
    axes = list(SHAPES), DRAFTS, (1, 4, 7), list(STRICT)
    for (s, shape), (d, draft), (k, length), (m, method) in itertools.product(*map(enumerate, axes)):
        quick = k == (s + d) % 3 and m == (3 * s + d) % 4
        prompt = list(PROMPTS)[(s + d + k + m) % 2]
        yield pytest.param(shape, draft, length, method, prompt, marks=[] if quick else pytest.mark.slow)


@pytest.mark.parametrize(("shape", "draft", "length", "method", "prompt"), list(grid()))
def test_a_full_weight_on_the_target_is_plain_decoding(zoo, shape, draft, length, method, prompt):
    pair = zoo.pair(shape, draft)
    tokens, stats = run(pair, PROMPTS[prompt], STRICT[method](pair), num_draft_tokens=length, prefill_step_size=PREFILL)
    assert tokens == plain(pair.target, PROMPTS[prompt])
    rate = stats.acceptance_rate
    assert {"self": rate == 1, "adverse": rate == 0, "agreeing": 0.1 < rate < 0.9}[draft], rate


@pytest.mark.parametrize("draft", DRAFTS)
def test_auto_draft_length_is_plain_decoding(zoo, draft):
    pair = zoo.pair("llama", draft)
    tokens, _ = run(pair, PROMPTS["short"], Lossless(), num_draft_tokens="auto")
    assert tokens == plain(pair.target, PROMPTS["short"])


@pytest.mark.parametrize(
    ("shape", "draft"),
    [
        ("llama", "agreeing"),
        ("gemma", "agreeing"),
        pytest.param("llama", "self", marks=pytest.mark.slow),
        pytest.param("gemma", "self", marks=pytest.mark.slow),
        pytest.param("sliding", "agreeing", marks=pytest.mark.slow),
        pytest.param("sliding", "self", marks=pytest.mark.slow),
    ],
)
def test_a_long_answer_crosses_every_growth_of_the_cache(zoo, shape, draft):
    """Caches grow by 256, and a window of 16 that can be rewound by 256 first drops tokens at 528."""
    pair = zoo.pair(shape, draft)
    tokens, stats = run(pair, PROMPTS["short"], Lossless(), max_tokens=600, num_draft_tokens=4)
    assert tokens == plain(pair.target, PROMPTS["short"], max_tokens=600)
    assert len(tokens) == 600
    assert (stats.acceptance_rate == 1) == (draft == "self")


@pytest.mark.parametrize("draft", ["agreeing", "adverse"])
def test_logits_processors_see_the_tokens_before_each_position(zoo, draft):
    pair = zoo.pair("llama", draft)
    processors = make_logits_processors(repetition_penalty=1.5, repetition_context_size=30)
    expected = plain(pair.target, PROMPTS["long"], max_tokens=80, logits_processors=processors)
    assert expected != plain(pair.target, PROMPTS["long"], max_tokens=80)
    assert run(pair, PROMPTS["long"], Lossless(), max_tokens=80, logits_processors=processors)[0] == expected


# --- Other caches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draft", "prompt"),
    [
        ("agreeing", "long"),
        pytest.param("agreeing", "short", marks=pytest.mark.slow),
        pytest.param("self", "long", marks=pytest.mark.slow),
        pytest.param("adverse", "short", marks=pytest.mark.slow),
    ],
)
def test_max_kv_size_is_mlx_lms_rotating_cache(zoo, draft, prompt):
    pair = zoo.pair("llama", draft)
    caches = [RotatingKVCache(max_size=40, keep=4) for _ in pair.target.model.layers]
    expected = plain_with(pair.target, PROMPTS[prompt], caches)
    assert expected != plain(pair.target, PROMPTS[prompt])  # the limit is felt
    assert run(pair, PROMPTS[prompt], Lossless(), max_kv_size=40, prefill_step_size=PREFILL)[0] == expected
    assert run(pair, PROMPTS[prompt], None, max_kv_size=40)[0] == expected


@pytest.mark.slow
def test_max_kv_size_over_a_long_answer_drops_tokens_and_stays_exact(zoo):
    pair = zoo.pair("llama", "agreeing")
    caches = [RotatingKVCache(max_size=40, keep=4) for _ in pair.target.model.layers]
    expected = plain_with(pair.target, PROMPTS["short"], caches, max_tokens=700)
    assert len(expected) == 700
    assert run(pair, PROMPTS["short"], Lossless(), max_kv_size=40, max_tokens=700)[0] == expected


def test_max_kv_size_limits_the_global_layers_beside_narrower_windows(zoo):
    pair = zoo.pair("gemma", "agreeing")
    windows, limited = (RotatingKVCache(max_size=16) for _ in range(2)), RotatingKVCache(max_size=24, keep=4)
    expected = plain_with(pair.target, PROMPTS["short"], [*windows, limited], 100)
    assert expected != plain(pair.target, PROMPTS["short"], 100)
    assert run(pair, PROMPTS["short"], Lossless(), max_kv_size=24, max_tokens=100)[0] == expected


@pytest.mark.parametrize(
    ("bits", "draft"),
    [
        pytest.param(bits, draft, marks=[] if (bits, draft) == (8, "agreeing") else pytest.mark.slow)
        for bits in (4, 8)
        for draft in DRAFTS
    ],
)
def test_kv_bits_is_mlx_lms_quantised_cache(zoo, bits, draft):
    pair = zoo.pair("wide", draft, WIDE_HEADS)
    caches = [QuantizedKVCache(group_size=64, bits=bits) for _ in pair.target.model.layers]
    expected = plain_with(pair.target, PROMPTS["long"], caches)
    if bits == 4:
        assert expected != plain(pair.target, PROMPTS["long"])  # coarse enough to be felt
    assert run(pair, PROMPTS["long"], Lossless(), kv_bits=bits, prefill_step_size=PREFILL)[0] == expected


# --- Quantised weights ---------------------------------------------------------------------------------------------


def quantised(zoo: Zoo, name: str, dtype: mx.Dtype, noise: float) -> LM:
    """A 4-bit checkpoint of the tiny llama, its other tensors in `dtype`."""
    model_class, args_class = _get_classes(LLAMA)
    model = model_class(args_class.from_dict(LLAMA))
    mx.random.seed(9)
    weights = random_weights(LLAMA, 1, 4.0)
    disturbed = {n: w + noise * mx.std(w) * mx.random.normal(w.shape) for n, w in weights.items() if w.ndim > 1}
    model.load_weights([(n, w.astype(dtype)) for n, w in (weights | disturbed).items()])
    nn.quantize(model, group_size=32, bits=4)
    config = LLAMA | {"quantization": {"group_size": 32, "bits": 4}}
    return zoo.lm(f"{name}-{dtype}", config, dict(tree_flatten(model.parameters())))


def logits_by(lm: LM, tokens: list[int], rows: int) -> np.ndarray:
    """Logits at every position, read `rows` tokens at a time."""
    caches = [KVCache() for _ in lm.model.layers]
    chunks = [tokens[i : i + rows] for i in range(0, len(tokens), rows)]
    logits = mx.concatenate([lm.model(mx.array([chunk]), cache=caches)[0] for chunk in chunks])
    return np.array(logits.astype(mx.float32))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_a_quantised_pair_leaves_plain_decoding_only_where_rounding_decides(zoo, dtype):
    """A pass of one row and a pass of K + 1 rows may round differently, by `noise` a logit at most in this text.

    A token can then only differ from the argmax of one-row passes over the same past if that is less than 2 noise
    above it: `noise` on its own logit and `noise` on the other one.
    """
    pair = Pair(quantised(zoo, "q-target", dtype, 0.0), quantised(zoo, "q-draft", dtype, 0.1))
    length, prompt = 4, PROMPTS["short"]
    tokens, stats = run(pair, prompt, Lossless(), num_draft_tokens=length, max_tokens=100)
    assert 0.1 < stats.acceptance_rate < 1
    one_row = logits_by(pair.target, prompt + tokens, 1)
    noise = max(np.abs(one_row - logits_by(pair.target, prompt + tokens, rows)).max() for rows in range(2, length + 2))
    assert noise < 0.02 * one_row.std()  # or the test would excuse anything
    before = one_row[len(prompt) - 1 : -1]  # the logits that each token was chosen from
    gaps = before.max(-1) - before[np.arange(len(tokens)), tokens]
    assert (gaps <= 2 * noise).all()
    # Most positions are not near a tie, so equality is what is really tested.
    top_two = np.sort(before, axis=-1)[:, -2:]
    assert np.mean(top_two[:, 1] - top_two[:, 0] > 2 * noise) > 0.9


# --- Vocabularies of different width -------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temp=1, top_p=0.9)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("verifier", [None, Lossless(), Static(target_weight=0.5), Static(target_weight=0.0)], ids=str)
def test_a_padded_tail_is_never_emitted_however_large_its_logits(zoo, verifier, sampling):
    """Draft logits 264 wide, target logits 272, and a tokenizer of 260 tokens."""
    weights, lms = random_weights(LLAMA, 1, 4.0), []
    for name, width, noise in (("padded-target", 272, 0.0), ("padded-draft", 264, 0.15)):
        extra = width - VOCAB
        tail = 1000 * mx.random.normal((extra // 2, 32), key=mx.random.key(0))
        rows = {
            "lm_head.weight": mx.concatenate([weights["lm_head.weight"], tail, -tail]),  # one of the two is huge
            "model.embed_tokens.weight": mx.concatenate([weights["model.embed_tokens.weight"], mx.zeros((extra, 32))]),
        }
        lms.append(zoo.lm(name, LLAMA | {"vocab_size": width}, weights | rows, noise=noise))
    target, draft = lms
    assert plain(target, PROMPTS["short"], max_tokens=1)[0] >= VOCAB
    tokens, _ = run(Pair(target, draft), PROMPTS["short"], verifier, sampling=sampling, max_tokens=60)
    assert max(tokens) < VOCAB
    if sampling.greedy and verifier in (None, Lossless()):
        assert tokens == plain(zoo.pair("llama", "self").target, PROMPTS["short"], max_tokens=60)


# --- Sampling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("w", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("temp", [0.0, 0.3, 1.0, 1.5])
def test_a_model_that_drafts_for_itself_is_always_accepted(zoo, temp, top_p, w):
    pair = zoo.pair("llama", "self")
    _, stats = run(
        pair, PROMPTS["short"], Static(target_weight=w), sampling=Sampling(temp=temp, top_p=top_p), max_tokens=40
    )
    assert stats.acceptance_rate == 1


@pytest.mark.parametrize(
    "verifier", [Lossless(), Lenient(lenience=0.5), Cascade(), Cascade(rule="token")], ids=lambda v: str(v)
)
@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_every_verifier_accepts_a_model_that_drafts_for_itself(zoo, verifier, temp):
    pair = zoo.pair("gemma", "self")
    assert run(pair, PROMPTS["short"], verifier, sampling=Sampling(temp=temp), max_tokens=60)[1].acceptance_rate == 1


@pytest.mark.parametrize("verifier", [None, Lossless(), Static(target_weight=0.3)], ids=str)
def test_the_seed_makes_a_run_repeatable(pair, verifier):
    def sampled(seed):
        return run(pair, PROMPTS["short"], verifier, sampling=Sampling(temp=1), max_tokens=40, seed=seed)[0]

    mx.random.seed(1)  # the global state of MLX must not matter
    first = {seed: sampled(seed) for seed in (0, 1, 2, 2**63)}
    mx.random.seed(2)
    assert {seed: sampled(seed) for seed in first} == first
    assert len({tuple(tokens) for tokens in first.values()}) == len(first)


def test_threads_on_one_pair_give_the_same_texts_as_alone(pair):
    def sampled(seed):
        verifier = [Lossless(), Static(target_weight=0.3), None][seed % 3]
        return run(pair, PROMPTS["short"], verifier, sampling=Sampling(temp=1), max_tokens=40, seed=seed)[0]

    alone = [sampled(seed) for seed in range(9)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(sampled, range(9))) == alone


@pytest.mark.parametrize(
    ("temp", "top_p", "w"),
    [
        (0.3, 1, 1),
        (1.5, 1, 1),
        *[pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 1, 1), (1, 0.8, 1), (1.5, 1, 0.5))],
    ],
)
def test_acceptance_is_the_overlap_at_the_temperature_that_is_sampled_at(zoo, temp, top_p, w):
    """With K = 1, a draft is accepted with probability a = 1 - w TV(q, p), exactly known from the tokens before it.

    So the number of accepted drafts minus the sum of a is a martingale of steps below 1 and variance a (1 - a), and by
    Freedman it is beyond L/3 + sqrt(L^2/9 + 2 V L), with L = ln(2 / 1e-6) and V the sum of variances, once in 1e6.
    """
    pair, prompt = zoo.pair("llama", "alien"), PROMPTS["short"]
    accepted, overlaps = 0, {0.3: [], 1: [], 1.5: []}
    for seed in range(4):
        responses = list(
            stream_generate(
                pair,
                prompt,
                verifier=Static(target_weight=w),
                sampling=Sampling(temp=temp, top_p=top_p),
                num_draft_tokens=1,
                max_tokens=150,
                seed=seed,
            )
        )
        drafted = [i for i, r in enumerate(responses) if r.origin in ("accepted", "corrected")]
        accepted += sum(r.from_draft for r in responses)
        tokens = [*prompt, *(r.token for r in responses)]
        logits = [logits_by(lm, tokens, 512)[len(prompt) - 1 : -1][drafted] for lm in (pair.target, pair.draft)]
        for at, values in overlaps.items():
            p, q = (distribution(rows, at, top_p) for rows in logits)
            values.extend(1 - w * 0.5 * np.abs(p - q).sum(-1))
    a, level = np.array(overlaps[temp]), math.log(2 / 1e-6)
    bound = level / 3 + math.sqrt(level**2 / 9 + 2 * np.sum(a * (1 - a)) * level)
    assert abs(accepted - a.sum()) < bound
    if w == top_p == 1:  # and another temperature in the ratio would be noticed
        assert max(abs(accepted - sum(values)) for values in overlaps.values()) > bound


@pytest.mark.parametrize(("draft", "temp"), [("agreeing", 0.0), ("agreeing", 1.0), ("alien", 1.0)])
def test_the_head_is_given_the_hidden_states_that_predict_each_token(zoo, draft, temp):
    """The weight reported with a token is the head's on one pass of each backbone over all the tokens before it."""
    pair, prompt = zoo.pair("llama", draft), PROMPTS["short"]
    head = EnsembleHead(pair.draft.hidden_size, pair.target.hidden_size)
    head.summary.weight = 0.2 * mx.random.normal(head.summary.weight.shape, key=mx.random.key(1))
    responses = list(stream_generate(pair, prompt, verifier=Dynamic(head), sampling=Sampling(temp=temp), max_tokens=80))
    tokens = mx.array([[*prompt, *(r.token for r in responses)]])
    hidden = mx.concatenate([lm.model.model(tokens)[0] for lm in (pair.draft, pair.target)], axis=-1)
    weights = mx.softmax(hidden @ head.summary.weight.T, axis=-1)[len(prompt) - 1 : -1, 1].tolist()
    assert max(weights) - min(weights) > 0.5
    kinds = set()
    for expected, r in zip(weights, responses, strict=True):
        kinds.add(r.origin)
        assert r.target_weight == {"bonus": 1.0, "plain": None}.get(r.origin, pytest.approx(expected, abs=1e-4))
    assert kinds >= {"accepted", "corrected"}


def distribution(logits: np.ndarray, temp: float, top_p: float) -> np.ndarray:
    """Rows of probabilities: top-p at temperature 1, then the temperature."""
    logits = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    order = np.argsort(-p, axis=-1)
    ranked = np.take_along_axis(p, order, -1)
    kept = np.zeros(p.shape, bool)
    np.put_along_axis(kept, order, np.cumsum(ranked, -1) - ranked < top_p, -1)
    weights = np.where(kept, np.exp(logits / temp), 0)
    return weights / weights.sum(-1, keepdims=True)
