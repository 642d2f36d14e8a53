"""One language model of mlx-lm that also returns its last hidden states.

The hidden states are tapped, not recomputed: the backbone inside the model is watched and the model itself makes
the logits, because many architectures scale or cap them on the way. An architecture whose backbone is not where
this file looks is refused by name.
"""

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from huggingface_hub.errors import StrictDataclassError
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_config, load_model, load_tokenizer

from .cache import KV_GROUP_SIZE, Cache, rewindable
from .config import faithful_config
from .errors import DiversedError
from .hub import locate, short_name

# Where the backbone is, by the names of mlx-lm's architectures. The first that exists is tried.
BACKBONES = (("language_model", "model"), ("model",), ("transformer",), ("backbone",))
CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx")
KV_BITS = (2, 3, 4, 5, 6, 8)
SMALLEST_KV_SIZE = 16


# A foreign checkpoint can fail in any of these ways, and none of them is a bug of ours.
FOREIGN_ERRORS = (
    OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, AssertionError, ImportError,
    ArithmeticError, MemoryError, StrictDataclassError, SystemExit,
)  # fmt: skip


class LM:
    """A language model, its tokenizer, and the forward pass that also returns hidden states.

    Args:
        model: a model of mlx-lm, with its weights.
        tokenizer: mlx-lm's wrapper of the tokenizer.
        config: the checkpoint's configuration.
        name: how messages call the model.

    Raises:
        DiversedError: an architecture whose hidden states cannot be tapped.
    """

    def __init__(self, model: nn.Module, tokenizer: TokenizerWrapper, config: dict, name: str):
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.name = name
        self._take_hidden = _watch(_backbone(model, name))
        # Lazy: nothing is computed, but the graph knows its shapes.
        hidden, logits = self(mx.array([0]), Cache(lambda: make_prompt_cache(model)))
        if hidden is logits or hidden.shape[-1] == logits.shape[-1]:
            raise DiversedError(
                f"{name}: the hidden states of a {config.get('model_type')} model cannot be told from its logits; "
                f"use another architecture"
            )
        self.hidden_size: int = hidden.shape[-1]
        self.logits_size: int = logits.shape[-1]

    def __call__(self, tokens: mx.array, cache: Cache) -> tuple[mx.array, mx.array]:
        """Read tokens after those in the cache.

        Args:
            tokens: ids, shape (T,).
            cache: of this model; its offset moves by T.

        Returns:
            Hidden states after the final norm, shape (T, hidden_size), and logits, shape (T, logits_size).
        """
        cache.begin()
        hidden, logits = self.batch(tokens[None], cache.layers)
        cache.commit(tokens.shape[0])
        return hidden[0], logits[0]

    def batch(self, tokens: mx.array, layers: list) -> tuple[mx.array, mx.array]:
        """Read tokens of several sequences at once.

        Args:
            tokens: ids, shape (B, T).
            layers: mlx-lm's caches of the layers, for B sequences.

        Returns:
            Hidden states after the final norm, shape (B, T, hidden_size), and logits, shape (B, T, logits_size).
        """
        logits = self.model(tokens, cache=layers)
        return self._take_hidden(), logits

    def make_cache(self, max_kv_size: int | None = None, kv_bits: int | None = None) -> Cache:
        """Make an empty cache for one sequence.

        Args:
            max_kv_size: tokens that a layer attends to at most: the first 4 and the latest ones. Default None, all.
            kv_bits: bits of the keys and values of the layers that grow with the context. Default None, the
                model's own type. Sliding-window layers are bounded already and keep theirs.

        Raises:
            DiversedError: a value that this model cannot do.
        """
        if max_kv_size is not None and kv_bits is not None:
            raise DiversedError("max_kv_size and kv_bits exclude each other: a bounded cache is not quantised")
        if max_kv_size is not None and max_kv_size < SMALLEST_KV_SIZE:
            raise DiversedError(f"max_kv_size must be at least {SMALLEST_KV_SIZE}, not {max_kv_size}")
        if kv_bits is not None and kv_bits not in KV_BITS:
            raise DiversedError(f"kv_bits must be one of {', '.join(map(str, KV_BITS))}, not {kv_bits}")

        def make_layers() -> list:
            return [rewindable(layer, max_kv_size, kv_bits) for layer in make_prompt_cache(self.model)]

        cache = Cache(make_layers)
        if kv_bits is not None:
            try:
                self(mx.array([0]), Cache(make_layers))
            except ValueError as error:
                raise DiversedError(
                    f"{self.name} cannot quantise its cache (heads must be a multiple of {KV_GROUP_SIZE} wide): {error}"
                ) from error
        return cache

    @property
    def context_length(self) -> int | None:
        """Most positions that the model was made for, or None where its configuration does not say."""
        for config in (self.config, self.config.get("text_config", {})):
            for field in CONTEXT_FIELDS:
                if isinstance(config.get(field), int):
                    return config[field]
        return None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(cast(mx.array, array).nbytes for _, array in tree_flatten(self.model.parameters()))

    @property
    def number_format(self) -> str:
        """How the weights are stored, such as "float32" or "4 bits in groups of 64, bfloat16"."""
        floats = [
            str(array.dtype).removeprefix("mlx.core.")
            for _, array in cast(list[tuple[str, mx.array]], tree_flatten(self.model.parameters()))
            if mx.issubdtype(array.dtype, mx.floating)
        ]
        common = max(sorted(set(floats)), key=floats.count)
        quantised = self.config.get("quantization")
        if not isinstance(quantised, dict):
            return common
        return f"{quantised.get('bits')} bits in groups of {quantised.get('group_size')}, {common}"

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of the cache of one sequence, from shapes alone: nothing is computed.

        Args:
            tokens: length of the sequence.
        """
        cache = self.make_cache()
        self(mx.zeros(tokens, mx.int32), cache)
        return cache.nbytes

    @property
    def fingerprint(self) -> str:
        """Hash of the norms and biases, by which a model is known again under another name.

        They stay as they are when a checkpoint is quantised; rounding to bfloat16 makes the three float types alike.
        """
        digest = hashlib.sha256()
        for name, array in sorted(cast(list[tuple[str, mx.array]], tree_flatten(self.model.parameters()))):
            if array.ndim == 1:
                digest.update(name.encode() + np.array(array.astype(mx.bfloat16).view(mx.uint16)).tobytes())
        return digest.hexdigest()[:16]

    @classmethod
    def load(cls, source: str | Path, *, trust_remote_code: bool = False, lazy: bool = False) -> "LM":
        """Load a model from a folder or from the Hub.

        Args:
            source: a folder with a checkpoint of mlx-lm or Hugging Face, or a Hub id.
            trust_remote_code: run Python code that comes with the checkpoint. Default False.
            lazy: read the weights when they are first used, and until then only their shapes. Default False.

        Raises:
            DiversedError: nothing there, no network, or a checkpoint that cannot be read.
        """
        folder = locate(str(source))
        try:
            config = load_config(folder)
            model, config = load_model(
                folder, lazy=lazy, model_config=faithful_config(config), trust_remote_code=trust_remote_code
            )
            tokenizer = load_tokenizer(
                folder,
                {"trust_remote_code": trust_remote_code},
                eos_token_ids=config.get("eos_token_id"),
            )
        except DiversedError as error:
            raise DiversedError(f"{source}: {error}") from error
        except FOREIGN_ERRORS as error:
            raise DiversedError(f"cannot load {source}: {_one_line(error)}") from error
        try:
            return cls(model, tokenizer, config, short_name(str(source)))
        except DiversedError:
            raise
        except FOREIGN_ERRORS as error:
            raise DiversedError(f"cannot run {source}, its config.json is wrong: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyError):
        text = f"{text} is missing"
    if isinstance(error, json.JSONDecodeError):
        text = f"not valid JSON: {text}"
    if isinstance(error, RuntimeError):  # MLX's word for a file it cannot read
        text = f"its weights are incomplete or damaged: {text}"
    return text if len(text) <= 300 else text[:300] + "..."


def _backbone(model: nn.Module, name: str) -> nn.Module:
    for path in BACKBONES:
        module = model
        for part in path:
            module = module.get(part) if isinstance(module, nn.Module) else None
        if isinstance(module, nn.Module):
            return module
    raise DiversedError(f"{name}: the backbone of {type(model).__module__} is not known; use another architecture")


def _watch(backbone: nn.Module) -> Callable[[], mx.array]:
    """Let a module remember its last output, for each thread on its own.

    The class of the instance is extended and the module stays where it is, because its owner also reaches into it
    for the embeddings.
    """
    memory = threading.local()
    kind = type(backbone)

    def call(self: nn.Module, *args, **kwargs) -> mx.array:  # signatures differ between architectures
        memory.output = kind.__call__(self, *args, **kwargs)
        return memory.output

    def take() -> mx.array:
        output = memory.output
        del memory.output  # it would keep the graph of the whole pass alive
        return output

    backbone.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    return take
