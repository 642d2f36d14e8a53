"""The method in plain PyTorch: head, sampling, accept rule and verifiers, on any device.

A reference, written to be read beside `head.py`, `sampling.py`, `acceptance.py` and `verifiers.py`, whose names and
arithmetic it has; nothing of MLX is imported. Given the same numbers it decides as they do. The round loop over it is
`reference_loop.py`.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from diversed_mlx.errors import DiversedError

try:
    import torch
    from torch import Tensor, nn
except ImportError as missing:
    raise DiversedError("this needs PyTorch: pip install 'diversed-mlx[torch]'") from missing

ORDER = ["draft", "target"]  # of a head's inputs and rows


# The head -------------------------------------------------------------------------------------------------------------


class EnsembleHead(nn.Module):
    """Weight on the target from both hidden states, w = sigmoid(z_1 - z_0), as `diversed_mlx.EnsembleHead`.

    Args:
        draft_size: width of the draft's hidden state.
        target_size: width of the target's hidden state.
    """

    def __init__(self, draft_size: int, target_size: int):
        super().__init__()
        self.draft_size, self.target_size = draft_size, target_size
        self.summary = nn.Linear(draft_size + target_size, 2)

    def logit(self, draft_hidden: Tensor, target_hidden: Tensor) -> Tensor:
        """Logit of the weight on the target: (..., draft_size), (..., target_size) -> (..., 1), float32."""
        hidden = torch.cat([draft_hidden.float(), target_hidden.float()], dim=-1)
        weight, bias = self.summary.weight.float(), self.summary.bias.float()
        return hidden @ (weight[1:] - weight[:1]).T + (bias[1:] - bias[:1])

    def forward(self, draft_hidden: Tensor, target_hidden: Tensor) -> Tensor:
        """Weight on the target, shape (..., 1)."""
        return torch.sigmoid(self.logit(draft_hidden, target_hidden))

    @classmethod
    def load(cls, path: str | Path, draft_size: int | None = None, target_size: int | None = None) -> "EnsembleHead":
        """Read a folder with `head.safetensors` and `head.json`, or with `ensemble_head.bin` and its config.

        Args:
            path: the folder.
            draft_size: width of the draft that it is for; checked, where given, and needed where no config says it.
            target_size: the same of the target.

        Raises:
            DiversedError: no head there, or one for other models.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(path).expanduser()
        ours = (folder / "head.safetensors").is_file()
        described = folder / ("head.json" if ours else "ensemble_config.json")
        try:
            config: dict[str, Any] = {"draft_size": draft_size, "target_size": target_size}
            if ours or described.exists():  # the released head has no config
                config = json.loads(described.read_text(encoding="utf-8"))
            head = cls(config["draft_size"], config["target_size"])
            if ours:
                state = load_file(folder / "head.safetensors")
            else:
                state = torch.load(folder / "ensemble_head.bin", map_location="cpu", weights_only=True)
            head.summary.to(state["summary.weight"].dtype)
            head.load_state_dict(state)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise DiversedError(f"{folder} holds no head that can be read: {' '.join(str(error).split())}") from error
        if any(config.get(part, ORDER) != ORDER for part in ("inputs", "rows")):
            raise DiversedError(f"{described}: inputs and rows must stand in the order draft, target")
        if not all(torch.isfinite(tensor).all() for tensor in state.values()):
            raise DiversedError(f"{folder}: the head holds NaN or infinity: train it again")
        wanted = (draft_size or head.draft_size, target_size or head.target_size)
        if (head.draft_size, head.target_size) != wanted:
            raise DiversedError(
                f"the head {folder} is for a draft of width {head.draft_size} and a target of width "
                f"{head.target_size}, and this pair has {wanted[0]} and {wanted[1]}"
            )
        return head.eval().requires_grad_(False)


# Sampling and the accept rule -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a next token is chosen; order and values as `diversed_mlx.Sampling`, which checks their ranges."""

    temp: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0

    @property
    def greedy(self) -> bool:
        """True at temperature 0."""
        return self.temp == 0

    def probabilities(self, logits: Tensor) -> Tensor:
        """Turn logits (..., V) into the distribution that is sampled from, float32; at temperature 0 that at 1."""
        logits = logits.float()
        if self.top_p < 1 or self.min_p > 0 or 0 < self.top_k < logits.shape[-1]:
            logits = logits - logits.logsumexp(-1, keepdim=True)
            if self.top_p < 1:  # the most likely tokens up to that mass, and those equal to the last of them
                ordered = logits.sort(dim=-1, descending=True).values
                mass = ordered.exp().cumsum(-1)
                kept = (mass - ordered.exp() < self.top_p * mass[..., -1:]).sum(-1, keepdim=True)
                logits = logits.masked_fill(logits < ordered.gather(-1, kept - 1), -math.inf)
            if self.min_p > 0:
                least = logits.max(-1, keepdim=True).values + math.log(self.min_p)
                logits = logits.masked_fill(logits < least, -math.inf)
            if 0 < self.top_k < logits.shape[-1]:
                best = logits.topk(self.top_k, dim=-1)
                logits = torch.full_like(logits, -math.inf).scatter(-1, best.indices, best.values)
        if self.temp not in (0, 1):
            logits = (logits - logits.max(-1, keepdim=True).values) / self.temp
        return logits.softmax(-1)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw one index a row by inverting the cumulative sum: (..., V) unnormalised, (...) in [0, 1) -> (...)."""
    cumulative = torch.where(weights > 0, weights.cumsum(-1), -1.0)
    threshold = (1.0 - uniform[..., None]) * cumulative.max(-1, keepdim=True).values
    return (cumulative >= threshold).to(torch.uint8).argmax(-1)


def positive_part(p: Tensor, q: Tensor) -> Tensor:
    """Residual [p - q]_+, falling back to p where p = q leaves it empty; shapes (..., V)."""
    residual = (p - q).clamp(min=0)
    return torch.where((residual > 0).any(-1, keepdim=True), residual, p)


def accepted_length(accept: Tensor, uniforms: Tensor) -> int:
    """Count the drafted tokens before the first rejection; shapes (K,)."""
    return int((uniforms < accept).int().cumprod(0).sum())


# The verifiers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """What a verifier allows: acceptance (K,), unnormalised correction (K, V), weight on the target (K,) or NaN."""

    accept: Tensor
    correction: Tensor
    target_weight: Tensor


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one round knows of its K drafted tokens; fields and shapes as `diversed_mlx.verifiers.Evidence`."""

    tokens: Tensor
    q: Tensor
    p: Tensor
    target_logits: Tensor
    draft_hidden: Tensor
    target_hidden: Tensor
    greedy: bool


class Verifier(Protocol):
    """A method of verification."""

    def __call__(self, evidence: Evidence) -> Allowance:
        """Say what to allow at the drafted positions."""
        ...


def _at(values: Tensor, tokens: Tensor) -> Tensor:
    return values.gather(-1, tokens[:, None])[:, 0]


def _ratio(evidence: Evidence) -> Tensor:
    return (_at(evidence.p, evidence.tokens) / _at(evidence.q, evidence.tokens)).clamp(max=1.0)


def _ensemble(evidence: Evidence, target_weight: Tensor) -> Allowance:
    if evidence.greedy:
        weight = target_weight[:, None]
        mixture = weight * evidence.p + (1 - weight) * evidence.q
        accept = (mixture.argmax(-1) == evidence.tokens).float()
        return Allowance(accept=accept, correction=mixture, target_weight=target_weight)
    return Allowance(
        accept=1 - target_weight + target_weight * _ratio(evidence),
        correction=positive_part(evidence.p, evidence.q),
        target_weight=target_weight,
    )


def _each(evidence: Evidence, value: float) -> Tensor:
    """One number for each of the K positions."""
    return torch.full(evidence.tokens.shape, value, device=evidence.p.device)


@dataclass(frozen=True, kw_only=True)
class Lossless:
    """Verify against the target itself, nu = p."""

    def __call__(self, evidence: Evidence) -> Allowance:
        """Allow exactly what leaves the target's distribution unchanged."""
        if evidence.greedy:
            accept = (evidence.target_logits.argmax(-1) == evidence.tokens).float()
            return Allowance(accept=accept, correction=evidence.target_logits, target_weight=torch.ones_like(accept))
        return _ensemble(evidence, _each(evidence, 1.0))


@dataclass(frozen=True, kw_only=True)
class Static:
    """Verify against one fixed mixture, nu = w p + (1 - w) q."""

    target_weight: float = 0.7

    def __call__(self, evidence: Evidence) -> Allowance:
        """Allow what the mixture allows."""
        return _ensemble(evidence, _each(evidence, self.target_weight))


@dataclass(frozen=True, eq=False)
class Dynamic:
    """Verify against a mixture whose weight w_t = sigmoid(z_t + s) comes from a head."""

    head: EnsembleHead
    strictness: float = 0.0

    def __call__(self, evidence: Evidence) -> Allowance:
        """Allow what the mixture of each position allows."""
        logit = self.head.logit(evidence.draft_hidden, evidence.target_hidden)[..., 0]
        return _ensemble(evidence, torch.sigmoid(logit + self.strictness))


@dataclass(frozen=True, kw_only=True)
class Lenient:
    """Accept with min(1, p / (l q)); greedy: the target's choice, or p(x) > l max p."""

    lenience: float = 0.5

    def __call__(self, evidence: Evidence) -> Allowance:
        """Allow up to 1/l times the target's probability."""
        p, tokens, no_weight = evidence.p, evidence.tokens, _each(evidence, math.nan)
        if evidence.greedy:
            likely = _at(p, tokens) > self.lenience * p.max(-1).values
            return Allowance(accept=((p.argmax(-1) == tokens) | likely).float(), correction=p, target_weight=no_weight)
        accept = (_at(p, tokens) / (self.lenience * _at(evidence.q, tokens))).clamp(max=1.0)
        return Allowance(accept=accept, correction=positive_part(p, evidence.q), target_weight=no_weight)


@dataclass(frozen=True, kw_only=True)
class Cascade:
    """Take the draft's token unless the rule, "opt" or "token", defers to the target."""

    alpha: float = 0.2
    rule: Literal["opt", "token"] = "opt"

    def __call__(self, evidence: Evidence) -> Allowance:
        """Allow the draft where it is not deferred, and the target's own rule where it is."""
        p, q, tokens = evidence.p, evidence.q, evidence.tokens
        if self.rule == "opt":
            distance = 0.5 * (p - q).abs().sum(-1)
            return _ensemble(evidence, (q.max(-1).values < p.max(-1).values - self.alpha * distance).float())
        stands = _at(p, tokens) >= (1 - self.alpha) * p.max(-1).values
        no_weight = _each(evidence, math.nan)
        if evidence.greedy:
            accept = (stands | (p.argmax(-1) == tokens)).float()
            return Allowance(accept=accept, correction=p, target_weight=no_weight)
        accept = torch.where(stands, 1.0, _ratio(evidence))
        return Allowance(accept=accept, correction=positive_part(p, q), target_weight=no_weight)
