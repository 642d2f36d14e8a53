"""However an answer ends, both caches hold committed tokens and nothing else, and the next answer is a cold one's."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, QuantizedKVCache
from tiny import END, LLAMA, MAMBA, random_weights, write_model

import diversed_mlx
from diversed_mlx import DiversedError, Lossless, Options, Pair, Response, Sampling, Static, load_pair
from diversed_mlx.answer import answer
from diversed_mlx.cache import Cache, WindowKVCache
from diversed_mlx.context import Context
from diversed_mlx.lm import LM

K = 3
OPTIONS = Options(sampling=Sampling(temp=0), num_draft_tokens=K, max_tokens=20)
FOLLOW_UP = replace(OPTIONS, max_tokens=5)
PROMPT = [(7 * i) % 256 for i in range(30)]  # longer than Gemma's window of 16
QUESTION = [5, 99, 23, 42, 180]


@dataclass
class Setup:
    """A pair, how its caches are made, and the cold answers that were computed so far."""

    pair: Pair
    kv_bits: int | None = None
    tolerance: float = 1e-4
    cold: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def context(self) -> Context:
        return self.pair.make_context(kv_bits=self.kv_bits)

    def run(self, context: Context, options: Options = OPTIONS, prompt: list[int] = PROMPT) -> list[Response]:
        return list(answer(self.pair, context, prompt, options))

    def cold_answer(self, prompt: list[int]) -> list[int]:
        if tuple(prompt) not in self.cold:
            self.cold[tuple(prompt)] = [r.token for r in self.run(self.context(), FOLLOW_UP, prompt)]
        return self.cold[tuple(prompt)]


@pytest.fixture(scope="module")
def setups(pair, gemma_pair, tmp_path_factory) -> dict[str, Setup]:
    root = tmp_path_factory.mktemp("wide")
    config = LLAMA | {"head_dim": 64}  # what quantised keys and values need
    weights = random_weights(config, 1, 4.0)
    target = write_model(root / "target", config, weights=weights)
    draft = write_model(root / "draft", config, weights=weights, noise=0.15)
    wide = load_pair(target=str(target), draft=str(draft))
    return {
        "llama": Setup(pair),
        "gemma": Setup(gemma_pair),
        # A rounding that falls the other way moves a value by one step of the 8 bits.
        "kv8": Setup(wide, kv_bits=8, tolerance=0.1),
    }


@pytest.fixture(params=["llama", "gemma", "kv8"])
def setup(request, setups) -> Setup:
    return setups[request.param]


def keys_and_values(layer: Any) -> dict[int, np.ndarray]:
    """What a layer holds for each position, keys and values side by side."""
    if layer.keys is None:
        return {}
    keys, values = layer.keys, layer.values
    if isinstance(layer, QuantizedKVCache):
        keys, values = (mx.dequantize(*q, group_size=layer.group_size, bits=layer.bits) for q in (keys, values))
    both = np.array(mx.concatenate([keys, values], axis=-1)[0])  # (heads, L, 2 * size)
    if isinstance(layer, WindowKVCache):
        dropped = layer.state[-1]
        assert layer.keep == 0
        return {column + dropped: both[:, column] for column in range(layer.offset - dropped)}
    assert isinstance(layer, KVCache | QuantizedKVCache)
    return {position: both[:, position] for position in range(layer.offset)}


def assert_sound(setup: Setup, context: Context) -> None:
    """The invariant: every layer of both models holds exactly the first `offset` committed tokens."""
    for lm, cache in ((setup.pair.target, context.target_cache), (setup.pair.draft, context.draft_cache)):
        assert cache.offset <= len(context.tokens)
        assert [layer.offset for layer in cache.layers] == [cache.offset] * len(cache.layers)
        if cache.offset == 0:
            continue
        cold = lm.make_cache(kv_bits=setup.kv_bits)
        lm(mx.array(context.tokens[: cache.offset]), cold)
        for warm_layer, cold_layer in zip(cache.layers, cold.layers, strict=True):
            held, expected = keys_and_values(warm_layer), keys_and_values(cold_layer)
            window = getattr(warm_layer, "max_size", cache.offset)
            assert set(range(max(0, cache.offset - window), cache.offset)) <= held.keys() & expected.keys()
            both = sorted(held.keys() & expected.keys())
            ours, theirs = (np.stack([side[position] for position in both]) for side in (held, expected))
            np.testing.assert_allclose(ours, theirs, atol=setup.tolerance)


def assert_goes_on(setup: Setup, context: Context) -> None:
    """The invariant holds, and a next turn is what a cold start on the same tokens gives."""
    assert_sound(setup, context)
    prompt = [*(context.tokens or PROMPT), *QUESTION]
    had = context.target_cache.offset
    warm = setup.run(context, FOLLOW_UP, prompt)
    assert [r.token for r in warm] == setup.cold_answer(prompt)
    assert warm[-1].stats.cached_tokens == had
    assert context.tokens == prompt + [r.token for r in warm]


def assert_kept(context: Context) -> None:
    """After an ordinary end nothing has to be read twice: at most the tokens of the last round are missing."""
    for cache in context.caches:
        assert len(context.tokens) - cache.offset <= 2


def some(setup: Setup, items: Sequence[int]) -> Sequence[int]:
    """All for the pair of plain caches, every third for the others, which differ in the type of the layers' alone."""
    return items if type(setup.context().target_cache.layers[0]) is KVCache else items[1::3]


def forced(*tokens: int) -> Callable[[mx.array, mx.array], mx.array]:
    """A logits processor after which the answer to PROMPT begins with these tokens."""

    def processor(history: mx.array, logits: mx.array) -> mx.array:
        at = history.shape[0] - len(PROMPT)
        if at >= len(tokens):
            return logits
        return mx.where(mx.arange(logits.shape[-1])[None] == tokens[at], 0.0, -mx.inf)

    return processor


class Bomb:
    """Lets a method raise at its n-th call, before its work or after it."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str, n: int, error: type, after: bool = False):
        work, self.calls, self.exploded = getattr(owner, name), 0, False

        def call(*args, **kwargs):
            self.calls += 1
            if self.calls == n and not after:
                self.exploded = True
                raise error("bomb")
            result = work(*args, **kwargs)
            if self.calls == n:
                self.exploded = True
                raise error("bomb")
            return result

        patch.setattr(owner, name, call)


def run_until(error: type[BaseException], setup: Setup, context: Context, options: Options = OPTIONS) -> list[int]:
    """Answer PROMPT until that error; return the tokens that were handed out before."""
    tokens = []
    try:
        for response in answer(setup.pair, context, PROMPT, options):
            tokens.append(response.token)
    except error:
        return tokens
    pytest.fail(f"no {error.__name__}")


# Ordinary ends ------------------------------------------------------------------------------------------------------


def test_a_stop_token_that_was_drafted_or_is_the_bonus(setup):
    for at in some(setup, range(2 * K + 2)):
        context = setup.context()
        tokens = [*range(10, 10 + at), END]
        responses = setup.run(context, replace(OPTIONS, logits_processors=[forced(*tokens)]))
        assert [r.token for r in responses] == tokens
        assert responses[-1].finish_reason == "stop"
        assert responses[-1].origin == ("bonus" if at % (K + 1) == K else "accepted")
        assert context.tokens == PROMPT + tokens
        assert_kept(context)
        assert_goes_on(setup, context)


def test_a_stop_token_at_every_place_where_the_models_put_one(setup, monkeypatch):
    options = replace(OPTIONS, sampling=Sampling(temp=1), verifier=Static(target_weight=0.7), max_tokens=16)
    natural = []
    while not {r.origin for r in natural} >= {"accepted", "corrected", "bonus"}:
        options = replace(options, seed=options.seed + 1)
        natural = setup.run(setup.context(), options)
    tokens = [r.token for r in natural]
    for at in some(setup, [at for at, token in enumerate(tokens) if token not in tokens[:at]]):
        context = setup.context()
        with monkeypatch.context() as patch:
            patch.setattr(setup.pair, "stop_tokens", frozenset({tokens[at]}))
            responses = setup.run(context, options)
        assert [r.token for r in responses] == tokens[: at + 1]
        assert responses[-1].finish_reason == "stop"
        assert responses[-1].origin == natural[at].origin
        assert_kept(context)
        assert_goes_on(setup, context)


def test_a_stop_token_in_plain_decoding(setup):
    context = setup.context()
    responses = setup.run(context, replace(OPTIONS, verifier=None, logits_processors=[forced(10, 11, END)]))
    assert [(r.token, r.origin) for r in responses] == [(10, "plain"), (11, "plain"), (END, "plain")]
    assert context.draft_cache is not None
    assert context.draft_cache.offset == 0
    assert_goes_on(setup, context)


def test_a_stop_string(setup):
    text = "abcdefghijklmnop"
    processor = forced(*setup.pair.tokenizer.encode(text, add_special_tokens=False))
    for at in some(setup, range(2 * K + 2)):
        context = setup.context()
        responses = setup.run(context, replace(OPTIONS, logits_processors=[processor], stop=[text[at : at + 3]]))
        assert "".join(r.text for r in responses) == text[:at]
        assert (len(responses), responses[-1].finish_reason) == (at + 3, "stop")
        assert context.tokens == PROMPT + [r.token for r in responses]
        assert_kept(context)
        assert_goes_on(setup, context)


@pytest.mark.parametrize("verifier", [None, Lossless(), Static(target_weight=0.5)])
def test_a_number_of_tokens(setup, verifier):
    for max_tokens in some(setup, [0, 1, 2, K, K + 1, K + 2, 13]):
        context = setup.context()
        options = replace(OPTIONS, max_tokens=max_tokens, verifier=verifier, sampling=Sampling(temp=1))
        responses = setup.run(context, options)
        assert len(responses) == max_tokens
        assert [r.finish_reason for r in responses] == [None] * (max_tokens - 1) + ["length"] * (max_tokens > 0)
        assert context.tokens == (PROMPT + [r.token for r in responses] if max_tokens else [])
        if max_tokens:
            assert len(context.tokens) - context.target_cache.offset <= 2
        assert_goes_on(setup, context)


@pytest.mark.parametrize("verifier", [None, Lossless()])
def test_no_limit_until_a_stop_token(setup, verifier):
    context = setup.context()
    options = replace(OPTIONS, max_tokens=-1, verifier=verifier, logits_processors=[forced(*range(40, 57), END)])
    responses = setup.run(context, options)
    assert (len(responses), responses[-1].finish_reason) == (18, "stop")
    assert_goes_on(setup, context)


@pytest.mark.parametrize("room", [1, 2, K + 1, 17])
@pytest.mark.parametrize("verifier", [None, Lossless()])
def test_no_limit_until_the_context_is_full(setup, room, verifier, monkeypatch):
    context = setup.context()
    with monkeypatch.context() as patch:
        patch.setattr(setup.pair, "context_length", len(PROMPT) + room)
        responses = setup.run(context, replace(OPTIONS, max_tokens=-1, verifier=verifier))
        assert (len(responses), responses[-1].finish_reason) == (room, "length")
        assert_sound(setup, context)
        with pytest.raises(DiversedError, match="shorten it"):
            setup.run(context, OPTIONS, [*context.tokens, *QUESTION])
    assert_goes_on(setup, context)


def test_a_reader_that_leaves_after_any_response(setup):
    for taken in some(setup, range(1, 21)):
        context = setup.context()
        responses = answer(setup.pair, context, PROMPT, OPTIONS)
        tokens = [next(responses).token for _ in range(taken)]
        responses.close()
        assert context.tokens == PROMPT + tokens
        assert_kept(context)
        assert_goes_on(setup, context)


def test_a_reader_that_leaves_plain_decoding_or_never_begins(setup):
    for taken in range(6):
        context = setup.context()
        responses = answer(setup.pair, context, PROMPT, replace(OPTIONS, verifier=None))
        tokens = [next(responses).token for _ in range(taken)]
        responses.close()
        assert context.tokens == (PROMPT + tokens if taken else [])
        assert_goes_on(setup, context)


@pytest.mark.parametrize("verifier", [None, Lossless()])
def test_the_invariant_holds_at_every_response_and_not_only_at_the_end(setup, verifier):
    context = setup.context()
    options = replace(OPTIONS, verifier=verifier, logits_processors=[forced(*range(40, 49), END)])
    for _ in answer(setup.pair, context, PROMPT, options):
        assert_sound(setup, context)
        # The target read what is committed but for one token, or in plain decoding all of it.
        assert 0 <= len(context.tokens) - context.target_cache.offset <= 1
    assert context.tokens[-1] == END


def test_the_automatic_draft_length(setup):
    for taken in some(setup, (1, 7, 12, 20, 29, 30)):
        context = setup.context()
        responses = answer(setup.pair, context, PROMPT, replace(OPTIONS, num_draft_tokens="auto", max_tokens=30))
        tokens = [next(responses).token for _ in range(taken)]
        responses.close()
        assert context.tokens == PROMPT + tokens
        assert_goes_on(setup, context)


# Errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [1, 2, K, K + 1, K + 3, 2 * K + 1, 3 * K + 2, 25])
def test_an_error_of_a_logits_processor_empties_the_caches_and_nothing_else(setup, call):
    calls = 0

    def processor(history: mx.array, logits: mx.array) -> mx.array:
        nonlocal calls
        calls += 1
        if calls == call:
            raise ZeroDivisionError
        return logits

    context = setup.context()
    tokens = run_until(ZeroDivisionError, setup, context, replace(OPTIONS, logits_processors=[processor]))
    assert context.tokens == PROMPT + tokens
    assert [cache.offset for cache in context.caches] == [0, 0]
    assert_goes_on(setup, context)


@pytest.mark.parametrize("after", [False, True])
def test_an_error_of_a_model_at_any_call(setup, after, monkeypatch):
    for call in some(setup, (1, 2, 3, K + 1, K + 2, K + 3, 2 * K + 4, 20)):
        context = setup.context()
        with monkeypatch.context() as patch:
            Bomb(patch, LM, "__call__", call, RuntimeError, after)
            tokens = run_until(RuntimeError, setup, context)
        assert context.tokens == PROMPT + tokens
        assert [cache.offset for cache in context.caches] == [0, 0]
        assert_goes_on(setup, context)


# Ctrl-C -------------------------------------------------------------------------------------------------------------


def interrupt(setup: Setup, context: Context, options: Options = OPTIONS) -> None:
    """Answer PROMPT while something is about to raise KeyboardInterrupt; what was handed out is kept exactly."""
    tokens = run_until(KeyboardInterrupt, setup, context, options)
    assert context.tokens == PROMPT + tokens


def places(setup: Setup, kind: str) -> list[tuple[type, str, bool, int]]:
    """Where a pass can be interrupted: method, before or after, and how many calls cover 30 passes."""
    layers = len(setup.pair.target.model.layers)
    cache_types = {type(layer) for cache in setup.context().caches for layer in cache.layers}
    return {
        "before a pass": [(LM, "__call__", False, 30)],
        "after a pass": [(LM, "__call__", True, 30)],
        "after the backbone": [(type(setup.pair.target.model.model), "__call__", True, 15)],
        "before a layer has its keys": [(t, "update_and_fetch", False, 15 * layers) for t in cache_types],
        "after a layer has its keys": [(t, "update_and_fetch", True, 15 * layers) for t in cache_types],
        "between the layers of a rewind": [(t, "trim", False, 8) for t in cache_types],
        "after a layer was rewound": [(t, "trim", True, 8) for t in cache_types],
        "before a rewind": [(Cache, "rewind", False, 16)],
        "after a rewind": [(Cache, "rewind", True, 16)],
        "before a pass counts": [(Cache, "commit", False, 30)],
        "after a pass counts": [(Cache, "commit", True, 30)],
    }[kind]


KINDS = (
    "before a pass", "after a pass", "after the backbone", "before a layer has its keys", "after a layer has its keys",
    "between the layers of a rewind", "after a layer was rewound", "before a rewind", "after a rewind",
    "before a pass counts", "after a pass counts",
)  # fmt: skip


def interrupt_at(setup: Setup, kind: str, some_calls: int | None = None) -> None:
    """Interrupt a turn at every call that counts as a place, or at some calls, evenly spread."""
    exploded = 0
    for owner, method, after, calls in places(setup, kind):
        for call in range(1, calls + 1, 1 if some_calls is None else calls // some_calls):
            context = setup.context()
            with pytest.MonkeyPatch.context() as patch:
                bomb = Bomb(patch, owner, method, call, KeyboardInterrupt, after)
                with suppress(KeyboardInterrupt):
                    for _ in answer(setup.pair, context, PROMPT, OPTIONS):
                        pass
            exploded += bomb.exploded
            assert_goes_on(setup, context)
    assert exploded >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_at_some_calls(setup, kind):
    interrupt_at(setup, kind, some_calls=3)


def test_ctrl_c_before_each_of_the_first_30_passes(setups):
    interrupt_at(setups["llama"], "before a pass")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_at_every_single_call(setup, kind):
    interrupt_at(setup, kind)


@pytest.mark.parametrize("call", [1, 2, 5, 9, 16])
def test_ctrl_c_in_a_logits_processor_keeps_what_was_handed_out(setup, call):
    calls = 0

    def processor(history: mx.array, logits: mx.array) -> mx.array:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return logits

    context = setup.context()
    interrupt(setup, context, replace(OPTIONS, logits_processors=[processor]))
    assert_goes_on(setup, context)


def test_ctrl_c_in_plain_decoding(setup, monkeypatch):
    for call in (1, 2, 3, 8):
        for after in (False, True):
            context = setup.context()
            with monkeypatch.context() as patch:
                Bomb(patch, LM, "__call__", call, KeyboardInterrupt, after)
                interrupt(setup, context, replace(OPTIONS, verifier=None))
            assert_goes_on(setup, context)


def test_ctrl_c_between_the_chunks_of_a_long_prompt_keeps_the_chunks_that_were_read(setup, monkeypatch):
    for call in (1, 2, 4, 6, 7):
        for after in (False, True):
            context = setup.context()
            with monkeypatch.context() as patch:
                Bomb(patch, LM, "__call__", call, KeyboardInterrupt, after)
                interrupt(setup, context, replace(OPTIONS, prefill_step_size=10))
            # 29 tokens of the prompt are read ahead, by the target first: 10, 10 and 9 at a time.
            read = min(10 * (call if after else call - 1), 29)
            assert context.target_cache.offset == read
            assert_goes_on(setup, context)


@pytest.mark.parametrize("call", [1, 2, 6, 7])
@pytest.mark.parametrize("second", [1, 2, 3, 4])
def test_ctrl_c_again_while_the_first_is_cleaned_up(setup, call, second, monkeypatch):
    context = setup.context()
    with monkeypatch.context() as patch:
        work = LM.__call__
        calls = 0

        def twice(*args):
            nonlocal calls
            calls += 1
            if calls == call:
                Bomb(patch, Cache, "settle", second, KeyboardInterrupt)
                raise KeyboardInterrupt
            return work(*args)

        patch.setattr(LM, "__call__", twice)
        with pytest.raises(KeyboardInterrupt):
            setup.run(context)
    context.settle()
    assert_goes_on(setup, context)


def test_ctrl_c_in_two_turns_in_a_row(setup, monkeypatch):
    for first, second in ((1, 1), (4, 2), (6, 6), (11, 7)):
        context = setup.context()
        with monkeypatch.context() as patch:
            Bomb(patch, LM, "__call__", first, KeyboardInterrupt, after=True)
            interrupt(setup, context)
        with monkeypatch.context() as patch:
            Bomb(patch, LM, "__call__", second, KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt):
                setup.run(context, OPTIONS, [*context.tokens, *QUESTION])
        assert_goes_on(setup, context)


@contextmanager
def interrupt_at_line(n: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at the n-th line that runs in the files that move a cache; the list counts lines."""
    watched = {
        str(Path(diversed_mlx.__file__).parent / f"{name}.py") for name in ("cache", "context", "lm", "speculate")
    }
    watched.add(answer.__code__.co_filename)
    count = [0]

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in watched:
            return None
        if event == "line":
            count[0] += 1
            if count[0] == n:
                raise KeyboardInterrupt
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(old)


def interrupt_lines(setup: Setup, start: int, step: int) -> None:
    """Interrupt a turn that rewinds an old one at every `step`-th line, over two rounds."""
    options = replace(OPTIONS, max_tokens=7)
    prompt = [*PROMPT[:20], *QUESTION]
    n = start
    while True:
        context = setup.context()
        setup.run(context, replace(OPTIONS, max_tokens=2))
        with suppress(KeyboardInterrupt), interrupt_at_line(n) as count:
            for _ in answer(setup.pair, context, prompt, options):
                pass
        context.settle()  # which the next turn does first
        assert_goes_on(setup, context)
        if count[0] < n:
            break
        n += step
    assert n > 300


def test_ctrl_c_at_some_lines(setup):
    interrupt_lines(setup, start=1, step=127)


@pytest.mark.slow
def test_ctrl_c_at_every_line(setup):
    interrupt_lines(setup, start=2, step=1 if some(setup, [0, 1]) == [0, 1] else 5)


# A recurrent model alone --------------------------------------------------------------------------------------------


def test_a_recurrent_model_goes_on_from_its_state_or_afresh(tmp_path, monkeypatch):
    pair = load_pair(target=str(write_model(tmp_path / "mamba", MAMBA)))
    options, follow_up = replace(OPTIONS, verifier=None, max_tokens=6), replace(FOLLOW_UP, verifier=None)

    def goes_on(context: Context, cached: int) -> None:
        cold = pair.target.make_cache()
        if context.target_cache.offset:
            pair.target(mx.array(context.tokens[: context.target_cache.offset]), cold)
        for layer, cold_layer in zip(context.target_cache.layers, cold.layers, strict=True):
            for state, expected in zip(layer.cache, cold_layer.cache, strict=True):
                assert (state is None) == (expected is None)
                assert state is None or mx.allclose(state, expected, atol=1e-4).item()
        prompt = [*context.tokens, *QUESTION]
        expected = [r.token for r in answer(pair, pair.make_context(), prompt, follow_up)]
        responses = list(answer(pair, context, prompt, follow_up))
        assert [r.token for r in responses] == expected
        assert responses[-1].stats.cached_tokens == cached

    context = pair.make_context()
    tokens = [r.token for r in answer(pair, context, PROMPT, options)]
    goes_on(context, cached=len(PROMPT) + len(tokens) - 1)  # nothing was taken back

    mixer = type(pair.target.model.backbone.layers[0].mixer)
    for owner, calls in ((LM, (1, 2, 3, 6)), (mixer, (1, 2, 3, 4, 7, 8))):
        for call in calls:
            for after in (False, True):
                context = pair.make_context()
                with monkeypatch.context() as patch:
                    Bomb(patch, owner, "__call__", call, KeyboardInterrupt, after)
                    with pytest.raises(KeyboardInterrupt):
                        list(answer(pair, context, PROMPT, options))
                goes_on(context, cached=context.target_cache.offset)


# A window that has dropped tokens for good ----------------------------------------------------------------------------


def test_a_window_that_dropped_tokens(setups, monkeypatch):
    setup, prompt = setups["gemma"], [(11 * i) % 256 for i in range(700)]
    for call in (1, 2, 3, 5, 8, 13):
        context = setup.context()
        with monkeypatch.context() as patch:
            Bomb(patch, LM, "__call__", call, KeyboardInterrupt, after=call % 2 == 0)
            with pytest.raises(KeyboardInterrupt):
                setup.run(context, replace(OPTIONS, prefill_step_size=256), prompt)
        assert context.tokens[: len(prompt)] == prompt
        assert_goes_on(setup, context)
    # A turn that goes back farther than a window can starts afresh.
    assert not all(layer.can_rewind(50) for layer in context.target_cache.layers if isinstance(layer, WindowKVCache))
    other = [*prompt[:50], *QUESTION]
    responses = setup.run(context, FOLLOW_UP, other)
    assert [r.token for r in responses] == setup.cold_answer(other)
    assert responses[-1].stats.cached_tokens == 0
    assert_sound(setup, context)
