"""Layer caches against a plain list of what each position may attend to, and the rewind of a whole model's cache."""

import random

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from diversed_mlx.cache import KEPT_TOKENS, REWIND_TOKENS, Cache, WindowKVCache, require_rewindable, rewindable
from diversed_mlx.errors import DiversedError

WIDTH = 64  # of keys: what a quantised cache needs


class Reference:
    """A window as a list: the serial number of what is stored at each position, and who may look at it."""

    def __init__(self, max_size: int, keep: int):
        self.max_size, self.keep = max_size, keep
        self.stored: list[int] = []

    def visible(self, position: int, window: int) -> list[int]:
        """Serials that a position attends to, in order: the kept ones and the latest, `window` of them in all."""
        first = position - (window - self.keep) + 1
        return [self.stored[p] for p in range(position + 1) if p < self.keep or p >= first]


def visible_of(cache: WindowKVCache, serials: list[int], **mask_options) -> list[list[int]]:
    """Append serials as keys (and their negatives as values); return what each new row of attention would see."""
    new = mx.array(serials, mx.float32).reshape(1, 1, -1, 1)
    mask = cache.make_mask(len(serials), **mask_options)
    keys, values = cache.update_and_fetch(new, -new)
    assert mx.array_equal(keys, -values)
    columns = np.array(keys[0, 0, :, 0]).astype(int)  # (L,)
    rows, width = len(serials), len(columns)
    if mask is None:
        allowed = np.ones((rows, width), bool)
        assert rows == 1, "None lets every row see every column"
    elif isinstance(mask, str):
        assert mask == "causal"
        assert not mask_options.get("return_array")
        allowed = np.tri(rows, width, width - rows, dtype=bool)  # as mx.fast.scaled_dot_product_attention means it
    else:
        assert mask.shape == (rows, width)
        allowed = np.array(mask)
    return [columns[allowed[row]].tolist() for row in range(rows)]


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("seed", range(4))
def test_a_window_shows_each_position_what_it_may_attend_to_after_any_appends_and_rewinds(seed, keep):
    rng = random.Random(seed)
    max_size = rng.choice([8, 16, 21])
    cache, reference, serial = WindowKVCache(max_size, keep), Reference(max_size, keep), 0
    for _ in range(250):
        if rng.random() < 0.3:
            back = min(rng.randint(1, 9), cache.offset)
            assert cache.can_rewind(cache.offset - back)
            assert cache.trim(back) == back
            del reference.stored[len(reference.stored) - back :]
        # Now and then a long prompt, so that tokens are dropped for good.
        count = rng.randint(1, 9) if rng.random() < 0.97 else rng.randint(100, 700)
        window = rng.choice([None, None, max_size - 1, max_size // 2 + 1])
        serials = list(range(serial, serial + count))
        serial += count
        start = len(reference.stored)
        reference.stored += serials
        seen = visible_of(cache, serials, window_size=window, return_array=rng.random() < 0.5)
        expected = [reference.visible(start + row, window or max_size) for row in range(count)]
        assert seen == expected
        assert cache.offset == len(reference.stored)
        assert cache.size() == min(len(reference.stored), max_size)


@pytest.mark.parametrize("keep", [0, 4])
def test_the_farthest_allowed_rewind_is_exact_and_a_farther_one_is_not_allowed(keep):
    max_size = 16
    for length in (600, 1000, 1023, 1024, 1600):
        cache, reference = WindowKVCache(max_size, keep), Reference(max_size, keep)
        for start in range(0, length, 8):
            reference.stored += range(start, min(start + 8, length))
            visible_of(cache, reference.stored[start:])
        goals = [n for n in range(length) if cache.can_rewind(n)]
        assert goals == list(range(goals[0], length)), "a nearer goal must be possible too"
        assert 0 < goals[0] <= length - REWIND_TOKENS
        cache.trim(length - goals[0])
        reference.stored[goals[0] :] = range(5000, 5003)
        assert visible_of(cache, reference.stored[-3:]) == [
            reference.visible(goals[0] + row, max_size) for row in range(3)
        ]


def test_a_window_that_dropped_nothing_can_go_back_to_its_beginning():
    cache = WindowKVCache(16)
    visible_of(cache, list(range(200)))
    assert cache.can_rewind(0)
    cache.trim(200)
    assert visible_of(cache, [7, 8]) == [[7], [7, 8]]


@pytest.mark.parametrize("keep", [0, 4])
def test_memory_of_a_window_stays_bounded_and_does_not_hold_back_the_sequence(keep):
    cache, most = WindowKVCache(16, keep), 0
    assert cache.nbytes == 0
    assert cache.empty()
    for start in range(0, 6000, 5):
        visible_of(cache, list(range(start, start + 5)))
        most = max(most, cache.nbytes)
    assert not cache.empty()
    # Keys and values of 4 bytes: the window, what a rewind may need, and at most two steps of room.
    assert most <= 2 * 4 * (16 + REWIND_TOKENS + 2 * WindowKVCache.step)
    assert not cache.can_rewind(0)


def test_one_pass_over_a_long_prompt_leaves_the_window_bounded():
    cache = WindowKVCache(16)
    visible_of(cache, list(range(4096)))
    assert cache.nbytes <= 2 * 4 * (16 + REWIND_TOKENS + 2 * WindowKVCache.step)
    assert visible_of(cache, [4096]) == [list(range(4081, 4097))]


def test_the_state_of_a_window_restores_it_after_an_update():
    for length in (3, 14, 255, 256, 525, 528):
        cache, serials = WindowKVCache(16), list(range(length))
        visible_of(cache, serials)
        before = cache.state
        visible_of(cache, list(range(9000, 9009)))
        cache.state = before
        assert cache.offset == length
        assert visible_of(cache, [length]) == [[*serials, length][-16:]]


def test_layers_that_share_keys_get_what_the_last_update_returned():
    cache = WindowKVCache(4)
    new = mx.arange(9, dtype=mx.float32).reshape(1, 1, 9, 1)
    keys, values = cache.update_and_fetch(new, 2 * new)
    shared_keys, shared_values = cache.keys_and_values()
    assert mx.array_equal(keys, shared_keys)
    assert mx.array_equal(values, shared_values)


# The cache of a whole model ------------------------------------------------------------------------------------------


def layers_of(kind: str) -> list:
    """Fresh layers of each sort that can be rewound."""
    return {
        "growing": lambda: [KVCache(), KVCache()],
        "quantised": lambda: [QuantizedKVCache(WIDTH, 8), QuantizedKVCache(WIDTH, 8)],
        "window": lambda: [WindowKVCache(16), WindowKVCache(16, 4)],
        "mixed": lambda: [WindowKVCache(16), KVCache()],
        "nested": lambda: [CacheList(KVCache(), WindowKVCache(16)), KVCache()],
    }[kind]()


def leaves(layers: list) -> list:
    return [leaf for layer in layers for leaf in (leaves(layer.caches) if isinstance(layer, CacheList) else [layer])]


def rows_for(tokens: list[int]) -> mx.array:
    """Keys that tell their token, exact when quantised in 8 bits as well."""
    return mx.broadcast_to(mx.array(tokens, mx.float32)[None, None, :, None], (1, 1, len(tokens), WIDTH))


def read(cache: Cache, tokens: list[int], until_layer: int | None = None) -> None:
    """A forward pass; with `until_layer` it breaks off before that layer and leaves the pass unfinished."""
    cache.begin()
    for number, leaf in enumerate(leaves(cache.layers)):
        if number == until_layer:
            return
        leaf.update_and_fetch(rows_for(tokens), rows_for(tokens))
    cache.commit(len(tokens))


def held(leaf, tokens: int = 16) -> list[int]:
    """The last tokens that a layer would show the next position, told from its keys alone."""
    keys, stored = leaf.keys, leaf.offset
    if isinstance(leaf, QuantizedKVCache):
        keys = mx.dequantize(*keys, group_size=WIDTH, bits=8)
    if isinstance(leaf, WindowKVCache):
        stored -= leaf.state[-1]  # what was dropped
    return [] if keys is None else [round(v) for v in keys[0, 0, :stored, 0].tolist()][-tokens:]


def assert_holds(cache: Cache, tokens: list[int]) -> None:
    assert cache.offset == len(tokens)
    assert [leaf.offset for leaf in leaves(cache.layers)] == [len(tokens)] * len(leaves(cache.layers))
    for leaf in leaves(cache.layers):
        assert leaf.empty() or held(leaf) == tokens[-16:]


KINDS = ("growing", "quantised", "window", "mixed", "nested")


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_breaks_off_before_any_layer_is_undone_by_settle(kind):
    for seen in (0, 5, 255, 256):
        for until in range(len(leaves(layers_of(kind)))):
            cache = Cache(lambda: layers_of(kind))
            tokens = [t % 100 for t in range(seen)]
            if seen:
                read(cache, tokens)
            read(cache, [101, 102, 103], until_layer=until)
            assert cache.offset == seen
            cache.settle()
            assert_holds(cache, tokens)
            cache.settle()  # any number of times
            read(cache, [104, 105])
            assert_holds(cache, [*tokens, 104, 105])


@pytest.mark.parametrize("kind", KINDS)
def test_a_rewind_goes_back_and_new_tokens_take_the_place_of_the_old(kind):
    cache = Cache(lambda: layers_of(kind))
    read(cache, [1, 2, 3, 4, 5])
    cache.rewind(3)
    assert_holds(cache, [1, 2, 3])
    cache.rewind(4)  # no longer than that: nothing happens
    assert_holds(cache, [1, 2, 3])
    read(cache, [6, 7])
    assert_holds(cache, [1, 2, 3, 6, 7])
    cache.rewind(0)
    assert_holds(cache, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_rewind_undoes_an_unfinished_pass_first(kind):
    cache = Cache(lambda: layers_of(kind))
    read(cache, [1, 2, 3])
    read(cache, [4, 5], until_layer=1)
    cache.rewind(2)
    assert_holds(cache, [1, 2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_rewind_that_was_interrupted_between_layers_is_finished_by_the_next(kind, monkeypatch):
    cache = Cache(lambda: layers_of(kind))
    read(cache, [1, 2, 3, 4, 5])
    last = leaves(cache.layers)[-1]

    def interrupted(n: int) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(last, "trim", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.rewind(2)
    assert last.offset == 5
    cache.rewind(5)  # even one that asks for more than there is now
    assert_holds(cache, [1, 2])


def test_a_rewind_farther_than_a_window_holds_empties_every_layer():
    cache = Cache(lambda: layers_of("mixed"))
    for start in range(0, 1000, 50):
        read(cache, list(range(start, start + 50)))
    cache.rewind(900)
    assert_holds(cache, list(range(900)))
    cache.rewind(100)
    assert_holds(cache, [])


def test_reset_frees_the_memory():
    cache = Cache(lambda: layers_of("nested"))
    read(cache, [1, 2, 3])
    assert cache.nbytes >= 3 * 3 * 2 * 4 * WIDTH  # three layers, three tokens, keys and values
    cache.reset()
    assert cache.nbytes == 0
    assert_holds(cache, [])


def test_a_recurrent_layer_is_named_and_an_unfinished_pass_over_it_empties_the_cache():
    cache = Cache(lambda: [ArraysCache(2), KVCache()])
    assert cache.unrewindable() == ["ArraysCache"]
    with pytest.raises(DiversedError, match=r"the draft x .* its ArraysCache layers cannot be rewound.*verifier none"):
        require_rewindable(cache, "the draft x")

    cache.begin()
    cache.layers[0][0] = mx.ones((1, 2))
    cache.layers[1].update_and_fetch(rows_for([1]), rows_for([1]))
    cache.settle()
    assert cache.offset == 0
    assert cache.layers[0][0] is None
    assert cache.layers[1].empty()


def test_a_recurrent_layer_is_kept_as_long_as_nothing_is_taken_back():
    cache = Cache(lambda: [ArraysCache(2)])
    cache.begin()
    cache.layers[0][0] = mx.ones((1, 2))
    cache.commit(3)
    cache.rewind(3)
    cache.rewind(9)
    assert cache.offset == 3
    assert cache.layers[0][0] is not None
    cache.rewind(2)
    assert cache.offset == 0
    assert cache.layers[0][0] is None


@pytest.mark.parametrize(
    ("layer", "max_kv_size", "kv_bits", "kind", "size", "keep"),
    [
        (lambda: KVCache(), None, None, KVCache, None, None),
        (lambda: KVCache(), 32, None, WindowKVCache, 32, KEPT_TOKENS),
        (lambda: KVCache(), None, 8, QuantizedKVCache, None, None),
        (lambda: RotatingKVCache(16), None, None, WindowKVCache, 16, 0),
        (lambda: RotatingKVCache(16, keep=2), None, 8, WindowKVCache, 16, 2),
        (lambda: RotatingKVCache(64), 32, None, WindowKVCache, 32, KEPT_TOKENS),
        (lambda: RotatingKVCache(16), 32, None, WindowKVCache, 16, 0),
        (lambda: ArraysCache(2), 32, None, ArraysCache, None, None),
    ],
)
def test_each_layer_of_mlx_lm_becomes_one_that_can_be_rewound(layer, max_kv_size, kv_bits, kind, size, keep):
    for cache in (
        rewindable(layer(), max_kv_size, kv_bits),
        rewindable(CacheList(layer()), max_kv_size, kv_bits).caches[0],
    ):
        assert type(cache) is kind
        if kind is WindowKVCache:
            assert (cache.max_size, cache.keep) == (size, keep)
        if kind is QuantizedKVCache:
            assert (cache.bits, cache.group_size) == (kv_bits, 64)
