"""The verifiers: what each method allows at the drafted positions, in one dataclass a method.

Each maps one round's `Evidence` to an `Allowance`; the accept rule itself is `acceptance.py`, and no verifier
knows models or caches. Symbols as in the paper: p target, q draft, w weight on the target, nu verified against.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import mlx.core as mx

from .acceptance import Allowance, positive_part
from .errors import DiversedError
from .head import EnsembleHead


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one round knows about its K drafted tokens.

    Args:
        tokens: the drafted tokens, shape (K,).
        q: draft probabilities at their positions, shape (K, V), float32.
        p: target probabilities at their positions, shape (K, V), float32.
        target_logits: the logits that p comes from, shape (K, V): enough, and cheaper, where only their order matters.
        draft_hidden: the draft's last hidden states there, shape (K, draft_size).
        target_hidden: the target's last hidden states there, shape (K, target_size).
        greedy: temperature 0; p and q are then taken at temperature 1.
    """

    tokens: mx.array
    q: mx.array
    p: mx.array
    target_logits: mx.array
    draft_hidden: mx.array
    target_hidden: mx.array
    greedy: bool


class Verifier(Protocol):
    """A method of verification."""

    def __call__(self, evidence: Evidence) -> Allowance:
        """Say what to allow at the drafted positions."""
        ...


def _at(values: mx.array, tokens: mx.array) -> mx.array:
    """Entries of `values` (K, V) at `tokens` (K,), shape (K,)."""
    return mx.take_along_axis(values, tokens[:, None].astype(mx.int32), axis=-1)[:, 0]


def _ratio(evidence: Evidence) -> mx.array:
    """min(1, p/q) at the drafted tokens, shape (K,); a drafted token has q > 0."""
    return mx.minimum(_at(evidence.p, evidence.tokens) / _at(evidence.q, evidence.tokens), 1.0)


def _ensemble(evidence: Evidence, target_weight: mx.array) -> Allowance:
    """Verify against nu = w p + (1 - w) q with one weight a position, shape (K,)."""
    if evidence.greedy:
        weight = target_weight[:, None]
        mixture = weight * evidence.p + (1 - weight) * evidence.q  # (K, V), to the last bit p at w = 1 and q at w = 0
        accept = (mx.argmax(mixture, axis=-1) == evidence.tokens).astype(mx.float32)
        return Allowance(accept=accept, correction=mixture, target_weight=target_weight)
    return Allowance(
        accept=1 - target_weight + target_weight * _ratio(evidence),  # min(1, nu/q)
        correction=positive_part(evidence.p, evidence.q),  # [nu - q]_+ = w [p - q]_+: w cancels
        target_weight=target_weight,
    )


@dataclass(frozen=True, kw_only=True)
class Lossless:
    """Verify against the target itself, nu = p (Leviathan 2023)."""

    def __call__(self, evidence: Evidence) -> Allowance:
        """Allow exactly what leaves the target's distribution unchanged."""
        if evidence.greedy:
            accept = (mx.argmax(evidence.target_logits, axis=-1) == evidence.tokens).astype(mx.float32)
            return Allowance(accept=accept, correction=evidence.target_logits, target_weight=mx.ones(accept.shape))
        return _ensemble(evidence, mx.ones(evidence.tokens.shape))


@dataclass(frozen=True, kw_only=True)
class Static:
    """Verify against one fixed mixture, nu = w p + (1 - w) q.

    Args:
        target_weight: w, in [0, 1]. Default 0.7.

    Raises:
        DiversedError: w out of its range.
    """

    target_weight: float = 0.7

    def __post_init__(self):
        if not 0 <= self.target_weight <= 1:
            raise DiversedError(f"target_weight must be between 0 and 1, not {self.target_weight}")

    def __call__(self, evidence: Evidence) -> Allowance:
        """Allow what the mixture allows."""
        return _ensemble(evidence, mx.full(evidence.tokens.shape, self.target_weight))


@dataclass(frozen=True, eq=False)
class Dynamic:
    """Verify against nu_t = w_t p_t + (1 - w_t) q_t with w_t = sigmoid(z_t + s) from a head (DIVERSED).

    Args:
        head: gives the logit z_t from both hidden states.
        strictness: s, 0 as trained; larger is stricter, inf is lossless, -inf takes every draft. Default 0.0.

    Raises:
        DiversedError: a strictness that is not a number.
    """

    head: EnsembleHead
    strictness: float = 0.0

    def __post_init__(self):
        if math.isnan(self.strictness):
            raise DiversedError("strictness must be a number, not NaN")

    def __call__(self, evidence: Evidence) -> Allowance:
        """Allow what the mixture of each position allows."""
        logit = self.head.logit(evidence.draft_hidden, evidence.target_hidden)[..., 0]  # (K,)
        return _ensemble(evidence, mx.sigmoid(logit + self.strictness))


@dataclass(frozen=True, kw_only=True)
class Lenient:
    """Accept with min(1, p / (l q)), so that no token is emitted with more than p/l (Leviathan 2023, A.5).

    At temperature 0 a drafted token stands if it is the target's choice or p(x) > l max p.

    Args:
        lenience: l, in (0, 1]; 1 is lossless. Default 0.5.

    Raises:
        DiversedError: l out of its range.
    """

    lenience: float = 0.5

    def __post_init__(self):
        if not 0 < self.lenience <= 1:
            raise DiversedError(f"lenience must be above 0 and at most 1, not {self.lenience}")

    def __call__(self, evidence: Evidence) -> Allowance:
        """Allow up to 1/l times the target's probability."""
        p, tokens = evidence.p, evidence.tokens
        no_weight = mx.full(tokens.shape, float("nan"))
        if evidence.greedy:
            likely = _at(p, tokens) > self.lenience * mx.max(p, axis=-1)
            accept = ((mx.argmax(p, axis=-1) == tokens) | likely).astype(mx.float32)
            return Allowance(accept=accept, correction=p, target_weight=no_weight)
        accept = mx.minimum(_at(p, tokens) / (self.lenience * _at(evidence.q, tokens)), 1.0)
        return Allowance(accept=accept, correction=positive_part(p, evidence.q), target_weight=no_weight)


@dataclass(frozen=True, kw_only=True)
class Cascade:
    """Take the draft's token unless the rule defers to the target (SpecCascade, 2405.19261).

    Args:
        alpha: cost of deferring, in [0, 1]. Default 0.2.
        rule: "opt" defers a position iff max q < max p - alpha TV(p, q); "token" defers a token iff
            p(x) < (1 - alpha) max p. Default "opt".

    Raises:
        DiversedError: alpha out of its range or an unknown rule.
    """

    alpha: float = 0.2
    rule: Literal["opt", "token"] = "opt"

    def __post_init__(self):
        if not 0 <= self.alpha <= 1:
            raise DiversedError(f"alpha must be between 0 and 1, not {self.alpha}")
        if self.rule not in ("opt", "token"):
            raise DiversedError(f'rule must be "opt" or "token", not {self.rule!r}')

    def __call__(self, evidence: Evidence) -> Allowance:
        """Allow the draft where it is not deferred, and the target's own rule where it is."""
        p, q, tokens = evidence.p, evidence.q, evidence.tokens
        if self.rule == "opt":
            distance = 0.5 * mx.sum(mx.abs(p - q), axis=-1)
            deferred = mx.max(q, axis=-1) < mx.max(p, axis=-1) - self.alpha * distance  # (K,)
            return _ensemble(evidence, deferred.astype(mx.float32))
        stands = _at(p, tokens) >= (1 - self.alpha) * mx.max(p, axis=-1)  # (K,)
        no_weight = mx.full(tokens.shape, float("nan"))
        if evidence.greedy:
            accept = (stands | (mx.argmax(p, axis=-1) == tokens)).astype(mx.float32)
            return Allowance(accept=accept, correction=p, target_weight=no_weight)
        accept = mx.where(stands, 1.0, _ratio(evidence))
        return Allowance(accept=accept, correction=positive_part(p, q), target_weight=no_weight)
