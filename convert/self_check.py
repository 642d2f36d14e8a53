"""Does a converted model still compute what its source does? A quick look, where PyTorch is installed.

One forward pass over a short text, in transformers from the source and in MLX from the result. A quantised result
cannot agree to the last digits, so there the source itself is read by MLX and compared, and the distance that
quantising adds is reported. This file knows nothing of how the conversion was done.
"""

import importlib.util
from pathlib import Path
from typing import cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from diversed_mlx.errors import DiversedError
from diversed_mlx.lm import LM
from diversed_mlx.memory import available_bytes

TEXT = "Speculative decoding lets a small model propose what a large one checks. 12 + 30 = 42, and then some more."
TOKENS = 64
# Largest difference of logits, as a share of the largest of them, by the type that MLX computes in; transformers
# computes in float32. Rounding once to 24, 11 or 8 binary digits, summed over the layers, stays below; a misread
# rotary embedding does not.
TOLERANCES = {mx.float32: 1e-3, mx.float16: 2e-2, mx.bfloat16: 1e-1}


def check_conversion(source: Path, staged: Path, out: Path, *, quantized: bool, trust_remote_code: bool = False) -> str:
    """Compare a converted model with its source.

    Args:
        source: the folder of the source, as transformers reads it.
        staged: the same as mlx-lm reads it.
        out: the result.
        quantized: it was quantised.
        trust_remote_code: run Python code that comes with the checkpoint. Default False.

    Returns:
        A line that says what was found, or why nothing was compared.

    Raises:
        DiversedError: the result computes something else.
    """
    converted = LM.load(out, trust_remote_code=trust_remote_code)
    tokens = [token for token in converted.tokenizer.encode(TEXT) if token < converted.logits_size][:TOKENS]
    logits = _logits(converted, tokens)
    if not np.isfinite(logits).all():
        raise DiversedError("the converted model gives logits that are not numbers: try another --dtype")
    if importlib.util.find_spec("torch") is None:
        return "not compared with the source: PyTorch is not installed"
    original = LM.load(staged, trust_remote_code=trust_remote_code) if quantized else converted
    if original.nbytes > 0.2 * available_bytes():  # float32 in transformers takes twice a half-precision source
        return "not compared with the source: too large to hold it twice in this machine's memory"

    from transformers import AutoTokenizer

    from diversed_mlx.convert.reference_loop import TorchLM

    try:
        theirs = TorchLM.load(source, "cpu", "float32", trust_remote_code=trust_remote_code)
        encoded = AutoTokenizer.from_pretrained(str(source), trust_remote_code=trust_remote_code).encode(TEXT)
    except (DiversedError, OSError, ValueError, KeyError) as error:
        return f"not compared with the source: {' '.join(str(error).split())[:200]}"
    if encoded[: len(tokens)] != tokens:
        raise DiversedError("the converted tokenizer reads a text otherwise than that of the source")
    expected = theirs(tokens)[1].float().numpy()
    ours = _logits(original, tokens)
    width = min(ours.shape[-1], expected.shape[-1])
    difference = float(np.abs(ours[:, :width] - expected[:, :width]).max() / np.abs(expected).max())
    kind = _coarsest(original)
    if not difference <= TOLERANCES[kind]:
        raise DiversedError(
            f"the converted model does not compute what its source does: logits differ by {difference:.1e} of the "
            f"largest, and {kind} explains {TOLERANCES[kind]:.0e}: mlx-lm reads this checkpoint otherwise"
        )
    said = f"as the source in transformers: logits within {difference:.1e} of the largest"
    if quantized:
        moved = 0.5 * np.abs(_probabilities(logits) - _probabilities(ours)).sum(-1).mean()
        said += f"; quantising moves {moved:.1%} of the probability"
    return said


def _coarsest(lm: LM) -> mx.Dtype:
    """The type with the fewest digits among a model's weights."""
    kinds = {array.dtype for _, array in cast(list[tuple[str, mx.array]], tree_flatten(lm.model.parameters()))}
    return max(kinds & TOLERANCES.keys(), key=TOLERANCES.__getitem__)


def _logits(lm: LM, tokens: list[int]) -> np.ndarray:
    _, logits = lm(mx.array(tokens), lm.make_cache())
    return np.array(logits.astype(mx.float32))


def _probabilities(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
