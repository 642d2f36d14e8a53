"""The host waits for the device once a round, and memory stays flat.

Python waits for MLX only in `mx.eval`, `mx.synchronize` and where an array's values become Python's or another
library's: these are all methods of `mx.array` that the meter below replaces, and the conversions of numpy, which
reads an array through the buffer protocol. `mx.async_eval`, indexing, iteration and unpacking do not wait.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from diversed_mlx import Cascade, Dynamic, EnsembleHead, Lenient, Lossless, Sampling, Static, stream_generate
from diversed_mlx.answer import Options, Response, answer

WAITING_METHODS = (
    "tolist", "item", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__array__", "__dlpack__",
    "__repr__", "__str__", "__format__", "__contains__",
)  # fmt: skip
WAITING_FUNCTIONS = {
    mx: ("eval", "synchronize", "save", "savez", "save_safetensors", "array_equal", "allclose"),
    np: ("array", "asarray", "ascontiguousarray", "frombuffer"),
}
PROMPT = [72, 105]
METHODS = {
    "lossless": lambda head: Lossless(),
    "static": lambda head: Static(target_weight=0.3),
    "dynamic": lambda head: Dynamic(head, strictness=0.5),
    "lenient": lambda head: Lenient(lenience=0.5),
    "cascade opt": lambda head: Cascade(rule="opt"),
    "cascade token": lambda head: Cascade(rule="token"),
}


@contextlib.contextmanager
def waits() -> Iterator[Counter]:
    """Count by name what makes the host wait for arrays."""
    seen: Counter = Counter()

    def counting(name, original):
        def wrapped(*args, **kwargs):
            # numpy waits for what it is given if that is an array of MLX.
            if not name.startswith("numpy.") or any(isinstance(a, mx.array) for a in args):
                seen[name] += 1
            return original(*args, **kwargs)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for method in WAITING_METHODS:
            if method in vars(mx.array):
                patch.setattr(mx.array, method, counting(method, getattr(mx.array, method)))
        for module, names in WAITING_FUNCTIONS.items():
            for name in names:
                patch.setattr(module, name, counting(f"{module.__name__}.{name}", getattr(module, name)))
        yield seen


@pytest.fixture
def verifier(request, pair):
    return METHODS[request.param](EnsembleHead(pair.draft.hidden_size, pair.target.hidden_size))


every_verifier = pytest.mark.parametrize("verifier", METHODS, indirect=True)


def test_the_meter_sees_every_way_to_wait():
    ways = {
        "tolist": lambda x: x.tolist(),
        "item": lambda x: x.item(),
        "__bool__": bool,
        "__int__": int,
        "__float__": float,
        "__index__": lambda x: [1, 2][x],
        "__repr__": repr,
        "mlx.core.eval": lambda x: mx.eval(x),
        "mlx.core.synchronize": lambda x: mx.synchronize(),
        "numpy.array": lambda x: np.array(x),
        "numpy.asarray": lambda x: np.asarray(x),
    }
    for name, way in ways.items():
        with waits() as seen:
            way(mx.array(1) + 0)
        assert seen[name] == 1, name
    with waits() as seen:
        x = mx.array([1, 2]) + 0
        mx.async_eval(x)
        first, _ = x
        x[first], np.array([1, 2])
    assert not seen
    assert mx.array(1).item() == 1  # and everything is as before


def assert_one_a_round(seen: Counter, responses: list[Response]) -> None:
    assert seen["item"] <= 1  # the last token of all may be a plain step
    assert seen == Counter(tolist=responses[-1].stats.rounds - seen["item"], item=seen["item"])


@pytest.mark.parametrize("temp", [0.0, 1.0])
@every_verifier
def test_the_host_waits_once_a_round_for_one_array(pair, verifier, temp):
    with waits() as seen:
        responses = list(
            stream_generate(pair, PROMPT, verifier=verifier, sampling=Sampling(temp=temp), max_tokens=60, seed=3)
        )
    assert 10 < responses[-1].stats.rounds < len(responses)
    assert_one_a_round(seen, responses)


@pytest.mark.parametrize("sampling", [Sampling(temp=1, top_p=0.8, min_p=0.05, top_k=20)], ids=["filters"])
@pytest.mark.parametrize("draft_tokens", [1, 7])
def test_neither_filters_nor_the_draft_length_add_a_wait(pair, sampling, draft_tokens):
    with waits() as seen:
        responses = list(
            stream_generate(pair, PROMPT, sampling=sampling, num_draft_tokens=draft_tokens, max_tokens=60, seed=1)
        )
    assert_one_a_round(seen, responses)


def test_a_window_adds_no_wait(gemma_pair):
    with waits() as seen:
        responses = list(stream_generate(gemma_pair, PROMPT, sampling=Sampling(temp=0), max_tokens=60))
    assert_one_a_round(seen, responses)


def test_plain_decoding_waits_once_a_token(pair):
    with waits() as seen:
        responses = list(stream_generate(pair, PROMPT, verifier=None, sampling=Sampling(temp=0), max_tokens=60))
    assert seen == {"item": len(responses)}


def test_a_prompt_is_read_with_one_wait_a_chunk_and_model(pair):
    with waits() as seen:
        next(stream_generate(pair, list(range(100)), sampling=Sampling(temp=0), max_tokens=8, prefill_step_size=33))
    # All but the last token, 99 of them, are read in three chunks by each model; then comes the first round.
    assert seen == {"mlx.core.eval": 6, "tolist": 1}


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_memory_beyond_the_caches_is_flat(pair, temp, monkeypatch):
    """After 500 tokens as after 100: a kept row of logits (1 KB) a round would show, 100 rounds being 100 KB."""
    monkeypatch.setattr(pair, "stop_tokens", frozenset())
    context = pair.make_context()
    options = Options(verifier=Static(target_weight=0.7), sampling=Sampling(temp=temp), max_tokens=520, seed=0)
    beyond = []
    for _ in answer(pair, context, PROMPT, options):
        mx.synchronize()  # the step that was begun holds nothing that varies once it is done
        beyond.append(mx.get_active_memory() - sum(cache.nbytes for cache in context.caches))
    assert len(beyond) == 520
    # Steps of different shape are in flight at different tokens: compare the largest of twenty.
    assert abs(max(beyond[480:500]) - max(beyond[80:100])) < 16_000
