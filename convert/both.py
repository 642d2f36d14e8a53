"""The same in both frameworks: one pair's checkpoints, one head, one stream of uniforms, and greedy texts of each.

What `parity.py` compares; nothing is compared here.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from diversed_mlx import verifiers
from diversed_mlx.answer import stream_generate
from diversed_mlx.convert import reference, reference_loop
from diversed_mlx.errors import DiversedError
from diversed_mlx.head import EnsembleHead
from diversed_mlx.hub import locate, resolve
from diversed_mlx.lm import LM
from diversed_mlx.pair import Pair
from diversed_mlx.sampling import Sampling

torch = reference.torch

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class TextLength:
    """How long greedy texts are.

    Args:
        max_tokens: of each text.
        num_draft_tokens: K.
    """

    max_tokens: int = 64
    num_draft_tokens: int = 4


def load_both(
    draft: str, target: str, device: str, dtype: str, *, trust_remote_code: bool = False
) -> tuple[Pair, "reference_loop.TorchPair"]:
    """Load a pair in both frameworks, in one type.

    Args:
        draft: alias, folder or Hub id of a checkpoint in Hugging Face's form.
        target: the same.
        device: cpu, cuda or mps, for PyTorch; MLX takes its own.
        dtype: float32, float16 or bfloat16.
        trust_remote_code: run Python code that comes with a checkpoint. Default False.

    Raises:
        DiversedError: no such device, models that one of the two cannot read, or two that are no pair.
    """
    if dtype not in DTYPES:
        raise DiversedError(f"the dtype must be one of {', '.join(DTYPES)}, not {dtype}")
    reference_loop.pick_device(device)  # before anything is loaded
    lms = []
    for source in (target, draft):
        lm = LM.load(resolve(source), trust_remote_code=trust_remote_code)
        if "quantization" in lm.config:
            raise DiversedError(f"{source} is quantised for MLX, which PyTorch cannot read: name its original")
        lm.model.set_dtype(getattr(mx, dtype))
        lms.append(lm)
    ours = Pair(*lms)
    target_lm, draft_lm = (
        reference_loop.TorchLM.load(locate(resolve(source)), device, dtype, trust_remote_code=trust_remote_code)
        for source in (target, draft)
    )
    theirs = reference_loop.TorchPair(
        target=target_lm, draft=draft_lm, vocab_size=ours.vocab_size, nameless=_nameless(ours),
        stop_tokens=ours.stop_tokens,
    )  # fmt: skip
    return ours, theirs


def engine_uniforms(seed: int) -> "reference_loop.Uniforms":
    """The numbers that the engine draws with a seed, for the reference: both then sample the same text.

    Args:
        seed: as for `stream_generate`.
    """
    keys = [mx.random.key(seed)]

    def draw(count: int) -> Any:
        keys[0], key = mx.random.split(keys[0])
        return torch.from_numpy(to_numpy(mx.random.uniform(shape=(count,), key=key)))

    return draw


def _nameless(pair: Pair) -> tuple[int, ...]:
    """Ids that the pair gives no mass."""
    shared = pair.shared_logits(mx.zeros((1, pair.target.logits_size)))[0]
    return tuple(np.flatnonzero(np.isneginf(to_numpy(shared))).tolist())


def to_torch(head: EnsembleHead) -> "reference.EnsembleHead":
    """The same head in PyTorch, to the last bit.

    Args:
        head: in MLX.
    """
    copy = reference.EnsembleHead(head.draft_size, head.target_size)
    for name in ("weight", "bias"):
        array = head.summary[name]
        kind = getattr(torch, str(array.dtype).rpartition(".")[2])
        setattr(copy.summary, name, torch.nn.Parameter(torch.from_numpy(to_numpy(array)).to(kind), requires_grad=False))
    return copy


def assistable(pair: "reference_loop.TorchPair") -> bool:
    """Whether transformers decodes on the same vocabulary: it does not cut logits to what both models share."""
    widths = {lm.model.get_output_embeddings().weight.shape[0] for lm in (pair.target, pair.draft)}
    return len(widths) == 1 and not pair.nameless


def generate_ours(pair: Pair, prompt: list[int], verifier: verifiers.Verifier, length: TextLength) -> list[int]:
    """Answer greedily with the engine.

    Args:
        pair: in MLX.
        prompt: token ids.
        verifier: what to allow.
        length: of texts and drafts.

    Returns:
        Token ids, with the stop token.
    """
    responses = stream_generate(
        pair, prompt, verifier=verifier, sampling=Sampling(temp=0), num_draft_tokens=length.num_draft_tokens,
        max_tokens=length.max_tokens,
    )  # fmt: skip
    return [response.token for response in responses]


def generate_theirs(
    pair: "reference_loop.TorchPair", prompt: list[int], verifier: "reference.Verifier", length: TextLength
) -> list[int]:
    """Answer greedily with the PyTorch reference; arguments as for `generate_ours`."""
    blocks = reference_loop.speculate(
        pair, prompt, verifier=verifier, sampling=reference.Sampling(temp=0.0),
        num_draft_tokens=length.num_draft_tokens, max_tokens=length.max_tokens,
    )  # fmt: skip
    return list(itertools.chain.from_iterable(block.tokens for block in blocks))


def generate_assisted(
    pair: "reference_loop.TorchPair", prompt: list[int], weight: float, length: TextLength
) -> list[int]:
    """Answer greedily with transformers' assisted generation, whose weight on the target has the meaning of ours.

    Args:
        pair: in PyTorch; both models' logits are equally wide.
        prompt: token ids.
        weight: on the target, in (0, 1).
        length: of texts and drafts.

    Returns:
        Token ids, with the stop token.
    """
    model, draft = pair.target.model, pair.draft.model
    config = draft.generation_config
    config.num_assistant_tokens = length.num_draft_tokens
    config.num_assistant_tokens_schedule = "constant"  # not the heuristic that changes the length
    config.assistant_confidence_threshold = 0.0  # no early end of a draft
    ids = torch.tensor([prompt], device=pair.target.device)
    ends = sorted(pair.stop_tokens) or None
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), assistant_model=draft, assistant_ensemble_weight=weight,
        do_sample=False, max_new_tokens=length.max_tokens, eos_token_id=ends, pad_token_id=ends[0] if ends else 0,
    )  # fmt: skip
    return output[0, len(prompt) :].tolist()


def to_numpy(array: mx.array) -> np.ndarray:
    """Copy an array of MLX, as float32."""
    return np.array(array.astype(mx.float32))
