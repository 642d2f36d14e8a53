"""What one model has read: mlx-lm's layer caches, the count of tokens in them, and an exact rewind.

`Cache.offset` counts the tokens of the sequence that every layer holds. It moves in one step after a whole
forward pass, so an interrupted pass is undone on the next use. Where a layer cannot go back as far as asked,
the cache is emptied: its owner feeds whatever is missing, so that is slower and never wrong.

This file does not know which tokens are meant, nor any model.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from .errors import DiversedError

KEPT_TOKENS = 4  # at the front of a cache limited by max_kv_size, as in mlx-lm
REWIND_TOKENS = 256  # how far a full window can go back: more than any draft length
KV_GROUP_SIZE = 64  # of quantised keys and values, as in mlx-lm


class WindowKVCache:
    """Keys and values of a sliding window that can be rewound exactly once it is full.

    mlx-lm's RotatingKVCache overwrites the oldest token in place and cannot give it back. This one appends, keeps
    the last `REWIND_TOKENS` tokens that left the window, and hides them with the mask. It speaks the protocol that
    mlx-lm's attention layers use: `offset`, `make_mask`, `update_and_fetch`.

    Args:
        max_size: tokens that a position attends to, itself included.
        keep: tokens at the front that always stay visible and count towards `max_size`. Default 0.
    """

    step = 256

    def __init__(self, max_size: int, keep: int = 0):
        self.max_size = max_size
        self.keep = keep
        self.offset = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._dropped = 0  # tokens removed for good, between the kept ones and the rest
        self._seen: tuple[mx.array, mx.array] | None = None

    @property
    def state(self) -> tuple:
        """Everything that an update changes; arrays only ever change beyond `offset`."""
        return self.keys, self.values, self.offset, self._dropped

    @state.setter
    def state(self, value: tuple) -> None:
        self.keys, self.values, self.offset, self._dropped = value

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes

    def empty(self) -> bool:
        """Tell whether nothing was ever stored."""
        return self.keys is None

    def size(self) -> int:
        """Tokens that the next position can attend to."""
        return min(self.offset, self.max_size)

    def _first_column(self) -> int:
        """Index in the buffer of the first column that attention is given.

        Without kept tokens all that has left the window of the next position is cut off; with them the kept ones
        stand in the way, and the mask hides what lies between.
        """
        return 0 if self.keep else max(0, self.offset - self.max_size + 1 - self._dropped)

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False):
        """Mask of the next N positions, in the form that mlx-lm's layers take: an array, "causal" or None.

        Args:
            N: number of new positions; the capital is the protocol's.
            window_size: a window narrower than `max_size`, if the layer has one.
            return_array: never answer "causal".
        """
        window = min(window_size or self.max_size, self.max_size)
        if self.offset + N <= window:
            if N == 1:
                return None
            return create_causal_mask(N, self.offset) if return_array else "causal"
        if N == 1 and not self.keep and window == self.max_size:
            return None
        columns = mx.arange(self._first_column(), self.offset - self._dropped + N)  # (L,)
        positions = mx.where(columns < self.keep, columns, columns + self._dropped)
        rows = mx.arange(self.offset, self.offset + N)[:, None]
        visible = (positions < self.keep) | (positions > rows - (window - self.keep))
        return visible & (positions <= rows)  # (N, L)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append the new positions and return what they attend to.

        Args:
            keys: shape (B, heads, N, head size).
            values: shape (B, heads, N, value size).

        Returns:
            Keys and values of the columns that `make_mask` describes.
        """
        self._seen = None  # a slice still held would turn the update in place into a copy
        first = self._first_column()
        start = self.offset - self._dropped
        end = start + keys.shape[2]
        new_keys = self._append(self.keys, keys, start)
        new_values = self._append(self.values, values, start)
        # One assignment an attribute, arrays before the count: an interrupt in between leaves nothing to mend.
        self.keys, self.values = new_keys, new_values
        self.offset += keys.shape[2]
        self._seen = new_keys[..., first:end, :], new_values[..., first:end, :]
        self._drop()
        return self._seen

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What the last `update_and_fetch` returned, for layers that share it."""
        assert self._seen is not None
        return self._seen

    def _append(self, buffer: mx.array | None, new: mx.array, start: int) -> mx.array:
        if buffer is None or start + new.shape[2] > buffer.shape[2]:
            steps = (self.step + new.shape[2] - 1) // self.step
            room = mx.zeros((*new.shape[:2], steps * self.step, new.shape[3]), new.dtype)
            buffer = room if buffer is None else mx.concatenate([buffer[..., :start, :], room], axis=2)
        buffer[..., start : start + new.shape[2], :] = new
        return buffer

    def _drop(self) -> None:
        """Free what neither the window nor a rewind can reach, a step at a time."""
        length = self.offset - self._dropped
        retained = self.max_size + REWIND_TOKENS
        if self.keys is None or self.values is None or length < retained + self.step:
            return
        cut = length - retained
        kept, rest = slice(0, self.keep), slice(self.keep + cut, length)
        keys = mx.concatenate([self.keys[..., kept, :], self.keys[..., rest, :]], axis=2)
        values = mx.concatenate([self.values[..., kept, :], self.values[..., rest, :]], axis=2)
        self.state = keys, values, self.offset, self._dropped + cut

    def is_trimmable(self) -> bool:
        """Tell mlx-lm that `trim` works, within its bounds."""
        return True

    def can_rewind(self, n: int) -> bool:
        """Tell whether the window of position n is still held.

        Args:
            n: length of the sequence after the rewind.
        """
        return self._dropped == 0 or n - self._dropped >= self.max_size

    def trim(self, n: int) -> int:
        """Forget the last n tokens.

        Args:
            n: number of tokens; `can_rewind(offset - n)` must hold.
        """
        self.offset -= n
        return n


# Layer caches whose `trim` is exact at any length.
REWINDABLE = (KVCache, QuantizedKVCache)


def _leaves(layers: Sequence[Any]) -> Iterator[Any]:
    for layer in layers:
        if isinstance(layer, CacheList):
            yield from _leaves(layer.caches)
        else:
            yield layer


def rewindable(layer: Any, max_kv_size: int | None, kv_bits: int | None) -> Any:
    """Turn a fresh layer cache of mlx-lm into one that can be rewound exactly and keeps the asked limits.

    Args:
        layer: an empty cache as the model's own `make_cache` returns it.
        max_kv_size: most tokens that a layer attends to, or None.
        kv_bits: bits of the keys and values of layers that grow with the context, or None.

    Returns:
        The cache to use; the argument itself where nothing has to change, also for a type that cannot be rewound.
    """
    if isinstance(layer, CacheList):
        layer.caches = tuple(rewindable(inner, max_kv_size, kv_bits) for inner in layer.caches)
        return layer
    if type(layer) is RotatingKVCache:
        if max_kv_size is not None and max_kv_size < layer.max_size:
            return WindowKVCache(max_kv_size, KEPT_TOKENS)
        return WindowKVCache(layer.max_size, layer.keep)
    if type(layer) is KVCache and max_kv_size is not None:
        return WindowKVCache(max_kv_size, KEPT_TOKENS)
    if type(layer) is KVCache and kv_bits is not None:
        return QuantizedKVCache(KV_GROUP_SIZE, kv_bits)
    return layer


class Cache:
    """The layer caches of one model for one sequence.

    Args:
        make_layers: returns fresh layer caches, already passed through `rewindable`.
    """

    def __init__(self, make_layers: Callable[[], list[Any]]):
        self._make_layers = make_layers
        self.layers: list[Any]
        self.offset: int
        self._before: tuple[int, list[Any]] | None
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        layers = self._make_layers()
        self.offset, self.layers, self._before = 0, layers, None

    @property
    def nbytes(self) -> int:
        """Bytes held by all layers."""
        return sum(leaf.nbytes for leaf in _leaves(self.layers))

    def unrewindable(self) -> list[str]:
        """Name the types of layer cache that cannot be rewound, in the order of the layers, each once."""
        types = dict.fromkeys(type(leaf) for leaf in _leaves(self.layers))
        return [kind.__name__ for kind in types if kind not in (*REWINDABLE, WindowKVCache)]

    def arrays(self) -> list[Any]:
        """Everything to evaluate so that a prefill is really done."""
        return [leaf.state for leaf in _leaves(self.layers)]

    def begin(self) -> None:
        """Remember the state before a forward pass; `commit` ends it and `settle` undoes it."""
        self._before = self.offset, self.arrays()

    def commit(self, n: int) -> None:
        """Count n more tokens as read by every layer."""
        self.offset += n
        self._before = None

    def settle(self) -> None:
        """Undo a forward pass that did not finish; safe at any moment and any number of times."""
        if self._before is None:
            return
        if self.unrewindable():  # recurrent state is changed in place
            self.reset()
            return
        offset, states = self._before
        for leaf, state in zip(_leaves(self.layers), states, strict=True):
            leaf.state = state
        self.offset = offset
        self._before = None

    def rewind(self, n: int) -> None:
        """Go back to the first n tokens, or to none where a layer no longer holds what that takes.

        Every layer is brought to the same absolute length, so a rewind that was interrupted can be repeated.

        Args:
            n: length to go back to; nothing happens if the cache is no longer than that.
        """
        self.settle()
        if n >= self.offset and not self._ragged(self.offset):
            return
        n = min(n, self.offset)
        if self.unrewindable() or not all(
            leaf.can_rewind(n) for leaf in _leaves(self.layers) if isinstance(leaf, WindowKVCache)
        ):
            self.reset()
            return
        self.offset = n
        for leaf in _leaves(self.layers):
            if leaf.offset > n:
                leaf.trim(leaf.offset - n)

    def _ragged(self, n: int) -> bool:
        """Tell whether an interrupted rewind left a layer longer than the rest."""
        return any(leaf.offset > n for leaf in _leaves(self.layers) if type(leaf) in (*REWINDABLE, WindowKVCache))


def require_rewindable(cache: Cache, name: str) -> None:
    """Refuse a model whose layers keep a state that cannot go back to an earlier token.

    Args:
        cache: a cache of the model.
        name: how to call the model in the message.

    Raises:
        DiversedError: names the layer caches and what to do instead.
    """
    if kinds := cache.unrewindable():
        raise DiversedError(
            f"{name} cannot take part in speculative decoding: its {' and '.join(kinds)} layers cannot be rewound "
            f"to an earlier token. Use a model with attention layers only, or decode with the target alone "
            f"(--verifier none)"
        )
