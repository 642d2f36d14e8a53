"""Relaxed speculative decoding for MLX: a draft proposes, a verifier decides how strictly the target checks."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .answer import Options, Response, generate, stream_generate
    from .conversation import Conversation
    from .errors import DiversedError
    from .head import EnsembleHead
    from .heads import load_head
    from .pair import Pair, load_pair
    from .sampling import Sampling
    from .stats import Stats
    from .verifiers import Cascade, Dynamic, Lenient, Lossless, Static

__all__ = [
    "Cascade", "Conversation", "DiversedError", "Dynamic", "EnsembleHead", "Lenient", "Lossless", "Options", "Pair",
    "Response", "Sampling", "Static", "Stats", "generate", "load_head", "load_pair", "stream_generate",
]  # fmt: skip

_MODULES = {
    "Cascade": "verifiers", "Conversation": "conversation", "DiversedError": "errors", "Dynamic": "verifiers",
    "EnsembleHead": "head", "Lenient": "verifiers", "Lossless": "verifiers", "Options": "answer", "Pair": "pair",
    "Response": "answer", "Sampling": "sampling", "Static": "verifiers", "Stats": "stats", "generate": "answer",
    "load_head": "heads", "load_pair": "pair", "stream_generate": "answer",
}  # fmt: skip


def __getattr__(name: str):
    """Import a public name on first use: MLX takes most of a second, and `diversed --help` needs none of it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
