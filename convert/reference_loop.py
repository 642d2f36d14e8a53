"""The round loop in plain PyTorch, on cpu, cuda or mps: draft, one target pass, accept, rewind.

A reference, written to be read beside `speculate.py`; nothing of MLX is imported. Given the same uniforms it emits the
same tokens, so a head that was trained on a Mac can be run, and checked, on a CUDA server. One sequence at a time,
and no tricks for speed.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diversed_mlx.convert.reference import Evidence, Sampling, Tensor, Verifier, accepted_length, draw, nn, torch
from diversed_mlx.errors import DiversedError

Uniforms = Callable[[int], Tensor]  # n -> n numbers in [0, 1), float32, on the CPU


def pick_device(name: str) -> torch.device:
    """Turn cpu, cuda or mps into a device that is there.

    Args:
        name: of the device.

    Raises:
        DiversedError: an unknown one, or one that this machine or this build of PyTorch lacks.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name not in there:
        raise DiversedError(f"the device must be cpu, cuda or mps, not {name!r}")
    if not there[name]:
        raise DiversedError(f"PyTorch {torch.__version__} finds no {name} device on this machine: use --device cpu")
    return torch.device(name)


# Models ---------------------------------------------------------------------------------------------------------------


class TorchLM:
    """A causal language model of transformers that also returns its last hidden states.

    Args:
        model: any whose `base_model` returns `last_hidden_state`, the input of its output head.
    """

    def __init__(self, model: Any):
        self.model = model.eval()
        self.device = model.device
        self._hidden: Tensor | None = None
        # transformers 5.24 renamed it, and warns of the older name.
        named = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in named else "past_key_values"
        model.base_model.register_forward_hook(self._remember)

    def _remember(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._hidden = output.last_hidden_state

    @classmethod
    def load(
        cls, folder: str | Path, device: str = "cpu", dtype: str = "auto", *, trust_remote_code: bool = False
    ) -> "TorchLM":
        """Load a checkpoint.

        Args:
            folder: a folder or a Hub id that transformers reads.
            device: cpu, cuda or mps. Default cpu.
            dtype: float32, float16, bfloat16, or auto for the checkpoint's own. Default auto.
            trust_remote_code: run Python code that comes with the checkpoint. Default False.

        Raises:
            DiversedError: no such device, or a checkpoint that transformers cannot read.
        """
        from transformers import AutoModelForCausalLM

        place = pick_device(device)
        kind = dtype if dtype == "auto" else getattr(torch, dtype)
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=kind, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError, TypeError) as error:
            raise DiversedError(f"transformers cannot load {folder}: {' '.join(str(error).split())[:300]}") from error
        return cls(model.to(place))

    @torch.no_grad()
    def __call__(self, tokens: Sequence[int], cache: Any = None) -> tuple[Tensor, Tensor]:
        """Read tokens after those in a cache: hidden states (T, hidden_size) and logits (T, W)."""
        ids = torch.tensor([list(tokens)], device=self.device)
        with_cache = {"use_cache": False} if cache is None else {"use_cache": True, self._cache_argument: cache}
        logits = self.model(input_ids=ids, **with_cache).logits[0]
        assert self._hidden is not None
        hidden, self._hidden = self._hidden[0], None
        return hidden, logits


class Reading:
    """What one model has read of a sequence: `committed[offset:]` is what it is fed next."""

    def __init__(self, lm: TorchLM):
        from transformers import DynamicCache

        self.lm = lm
        self.offset = 0
        self._make: Callable[[], Any] = lambda: DynamicCache(config=lm.model.config)
        self._cache = self._make()

    def read(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Read tokens; hidden states and logits of each."""
        self.offset += len(tokens)
        return self.lm(tokens, self._cache)

    def rewind(self, length: int) -> None:
        """Forget what was read behind the first `length` tokens; layers that cannot are made to read again."""
        if length >= self.offset:
            return
        if any(self._cache.is_sliding) or any(self._cache.is_linear):
            self._cache, self.offset = self._make(), 0
        else:
            self._cache.crop(length - self.offset)  # a negative number is how many to remove
            self.offset = length


@dataclass(frozen=True, kw_only=True)
class TorchPair:
    """A target and a draft on one vocabulary.

    Args:
        target: the model whose answers are wanted.
        draft: the small one that proposes.
        vocab_size: ids that both name alike and both can predict.
        nameless: ids below that no tokenizer names, which must never be emitted. Default none.
        stop_tokens: ids that end an answer. Default none.
    """

    target: TorchLM
    draft: TorchLM
    vocab_size: int
    nameless: tuple[int, ...] = ()
    stop_tokens: frozenset[int] = field(default_factory=frozenset)

    def shared_logits(self, logits: Tensor) -> Tensor:
        """Cut logits (R, W) to the shared vocabulary, (R, vocab_size)."""
        logits = logits[:, : self.vocab_size]
        if self.nameless:
            logits = logits.index_fill(-1, torch.tensor(self.nameless, device=logits.device), -math.inf)
        return logits

    @classmethod
    def load(cls, *, target: str, draft: str, device: str = "cpu", dtype: str = "auto") -> tuple["TorchPair", Any]:
        """Load a pair and the target's tokenizer; arguments as for `TorchLM.load`.

        Raises:
            DiversedError: a checkpoint that cannot be read, or two that do not share a vocabulary.
        """
        from transformers import AutoTokenizer

        models = [TorchLM.load(source, device, dtype) for source in (target, draft)]
        tokenizers = [AutoTokenizer.from_pretrained(source) for source in (target, draft)]
        widths = [lm.model.get_output_embeddings().weight.shape[0] for lm in models]
        theirs, ours = [
            {token: text for text, token in tokenizer.get_vocab().items() if token < width}
            for tokenizer, width in zip(tokenizers, widths, strict=True)
        ]
        differ = sorted(token for token in theirs.keys() & ours.keys() if theirs[token] != ours[token])
        added = tokenizers[0].added_tokens_decoder
        differ += sorted(token for token in theirs.keys() - ours.keys() if token not in added)
        if differ:
            raise DiversedError(f"{draft} and {target} do not share a vocabulary: they differ in token {differ[0]}")
        known = theirs.keys() & ours.keys()
        config = models[0].model.generation_config.eos_token_id
        ends = {tokenizers[0].eos_token_id, *(config if isinstance(config, list) else [config])} - {None}
        if ends - known:
            raise DiversedError(f"{draft} does not know the stop token {min(ends - known)} of {target}")
        size = max(known) + 1
        nameless = tuple(token for token in range(size) if token not in known)
        pair = cls(target=models[0], draft=models[1], vocab_size=size, nameless=nameless, stop_tokens=frozenset(ends))
        return pair, tokenizers[0]


# The round loop -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Block:
    """The tokens of one round up to the first stop token; fields as `diversed_mlx.speculate.Block`."""

    tokens: list[int]
    target_weights: list[float | None]
    proposed: int
    accepted: int


def seeded_uniforms(seed: int) -> Uniforms:
    """Numbers that repeat with the seed, on every device; not those of MLX."""
    generator = torch.Generator().manual_seed(seed)
    return lambda count: torch.rand(count, generator=generator)


def speculate(
    pair: TorchPair,
    prompt: Sequence[int],
    *,
    verifier: Verifier | None,
    sampling: Sampling,
    num_draft_tokens: int = 4,
    max_tokens: int = 256,
    uniforms: Uniforms | None = None,
) -> Iterator[Block]:
    """Decode until a stop token or a number of tokens, as `diversed_mlx.speculate.Decoder` does.

    Args:
        pair: the models.
        prompt: token ids, at least one.
        verifier: what to allow; None decodes with the target alone.
        sampling: how tokens are chosen.
        num_draft_tokens: K, at least 1. Default 4.
        max_tokens: most tokens of the answer. Default 256.
        uniforms: asked for 2 K + 1 numbers a round, and for one at each token of the target alone: K for the drafted
            tokens, K that accept them, one for the token that follows. Default `seeded_uniforms(0)`.

    Yields:
        One block a round.

    Raises:
        DiversedError: an empty prompt.
    """
    if not prompt:
        raise DiversedError("the prompt is empty")
    uniforms = uniforms or seeded_uniforms(0)
    committed, end = list(prompt), len(prompt) + max_tokens
    target, draft = Reading(pair.target), Reading(pair.draft)
    while len(committed) < end:
        length = min(num_draft_tokens, end - len(committed) - 1) if verifier is not None else 0
        if verifier is None or length == 0:
            block = _plain(pair, target, committed, sampling, uniforms(1))
        else:
            block = _round(pair, target, draft, committed, verifier, sampling, uniforms(2 * length + 1))
        committed += block.tokens
        yield block
        if block.tokens[-1] in pair.stop_tokens:
            return


def _choose(logits: Tensor, probabilities: Tensor, uniform: Tensor, greedy: bool) -> int:
    return int(logits.argmax()) if greedy else int(draw(probabilities, uniform))


def _plain(pair: TorchPair, target: Reading, committed: list[int], sampling: Sampling, uniform: Tensor) -> Block:
    _, logits = target.read(committed[target.offset :])
    logits = pair.shared_logits(logits[-1:])[0]
    token = _choose(logits, sampling.probabilities(logits), uniform.to(logits.device)[0], sampling.greedy)
    return Block(tokens=[token], target_weights=[None], proposed=0, accepted=0)


def _round(
    pair: TorchPair,
    target: Reading,
    draft: Reading,
    committed: list[int],
    verifier: Verifier,
    sampling: Sampling,
    uniforms: Tensor,
) -> Block:
    length, uniforms = len(uniforms) // 2, uniforms.to(pair.target.device)
    drafted: list[int] = []
    rows, states = [], []
    for step in range(length):
        hidden, logits = draft.read((committed + drafted)[draft.offset :])
        logits = pair.shared_logits(logits[-1:])
        rows.append(sampling.probabilities(logits))
        states.append(hidden[-1:])
        drafted.append(_choose(logits[0], rows[-1][0], uniforms[step], sampling.greedy))
    hidden, logits = target.read((committed + drafted)[target.offset :])
    target_logits = pair.shared_logits(logits[-length - 1 :])  # (K + 1, V)
    p = sampling.probabilities(target_logits)
    allowance = verifier(
        Evidence(
            tokens=torch.tensor(drafted, device=p.device),
            q=torch.cat(rows),  # (K, V)
            p=p[:-1],
            target_logits=target_logits[:-1],
            draft_hidden=torch.cat(states),
            target_hidden=hidden[-length - 1 : -1],
            greedy=sampling.greedy,
        )
    )
    accepted = accepted_length(allowance.accept, uniforms[length : 2 * length])
    bonus = target_logits[-1] if sampling.greedy else p[-1]
    row = bonus if accepted == length else allowance.correction[accepted]
    follower = _choose(row, row, uniforms[-1], sampling.greedy)
    new = [*drafted[:accepted], follower]
    stop = next((i for i, token in enumerate(new) if token in pair.stop_tokens), len(new) - 1)
    new = new[: stop + 1]
    kept = min(accepted, len(new))
    weights = [None if math.isnan(w) else w for w in allowance.target_weight.tolist()[: len(new)]]
    if len(new) > kept and accepted == length:
        weights.append(1.0)  # the bonus is the target's alone
    for reading in (target, draft):
        reading.rewind(len(committed) + kept)
    return Block(tokens=new, target_weights=weights, proposed=kept if stop < accepted else length, accepted=kept)
