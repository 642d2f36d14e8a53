"""The head that is trained and the optimizer that moves it: one gradient step from a batch of answers.

What a step costs depends on the answers and the width of the hidden states, not on the vocabulary: nothing as wide as
that comes in here (`benchmarks/update.py` measures it). This file neither samples nor judges.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from ..errors import DiversedError
from ..head import EnsembleHead
from .machines import Machines
from .objective import policy_loss
from .recipe import Recipe
from .rollout import Rollouts

LOGITS_AN_UPDATE = 3.5  # of one token: a weight must be able to go from 0.8 to 0.998 in a few dozen updates, and back
BIAS_SHARE = 1 / 7  # of that, what moves all tokens at once


@dataclass(frozen=True)
class Scale:
    """Where the hidden states of a pair lie and how far they spread, so that one recipe fits pairs of any width.

    Hidden states share a large mean. Trained as they are, every weight pulls that mean along, and the price alone,
    which asks for less of the target everywhere, moves the logits of all tokens by several units an update, long
    before rewards have told tokens apart. So the head is trained on what remains without the mean, and its bias, which
    alone moves all tokens, as the weight of one more input.

    Args:
        centre: mean of the concatenated hidden states, draft first, shape (d_q + d_p,).
        spread: mean over positions of the summed absolute deviations from it.
    """

    centre: mx.array
    spread: float

    @classmethod
    def of(cls, hidden: mx.array) -> "Scale":
        """Measure hidden states, draft first, shape (T, d_q + d_p)."""
        hidden = hidden.astype(mx.float32)
        centre = mx.mean(hidden, axis=0)
        spread = mx.mean(mx.sum(mx.abs(hidden - centre), axis=-1))
        return cls(centre, max(cast(float, spread.item()), 1e-6))

    @property
    def learning_rate(self) -> float:
        """AdamW's rate for these hidden states.

        AdamW moves each weight by about the rate, whatever the gradient, and the two rows of the head in opposite
        directions: an update moves the logit of a token by up to 2 rate spread.
        """
        return LOGITS_AN_UPDATE / (2 * self.spread)


class Learner:
    """A head and its AdamW.

    Args:
        draft_size: width of the draft's hidden state.
        target_size: width of the target's.
        recipe: where the head starts, and how it moves.
        learning_rate: AdamW's highest.
        scale: of the pair's hidden states.
        machines: over which gradients are averaged.
    """

    def __init__(
        self,
        draft_size: int,
        target_size: int,
        recipe: Recipe,
        learning_rate: float,
        scale: Scale,
        machines: Machines,
    ):
        self.recipe, self.scale, self.machines = recipe, scale, machines
        self.head = EnsembleHead(draft_size, target_size)
        start = math.log(recipe.start_weight / (1 - recipe.start_weight)) / 2
        self.head.summary.bias = mx.array([-start, start])
        self.optimizer = _optimizer(recipe, learning_rate)
        self.optimizer.init(self.head.summary.trainable_parameters())

    def logit(self, rollouts: Rollouts) -> mx.array:
        """Logit of the head's weight at each token of the answers, shape (N, T)."""
        return self.head.logit(rollouts.draft_hidden, rollouts.target_hidden)[..., 0]

    def update(
        self, rollouts: Rollouts, advantage: mx.array, judged: mx.array, count: float, reg_scale: float
    ) -> float:
        """Move the head by one batch, `recipe.reuse` times.

        Args:
            rollouts: the answers of this machine.
            advantage: of each, shape (N,).
            judged: whether it has a reward, shape (N,); an answer without one takes no part at all.
            count: answers with a reward on all machines together.
            reg_scale: lambda.

        Returns:
            Norm of the gradient before it was clipped.

        Raises:
            DiversedError: the gradient is not a number; the head is then as it was.
        """
        mask = rollouts.mask * judged[:, None]
        sampled = rollouts.log_mixture if self.recipe.reuse > 1 else None

        def loss(head: EnsembleHead) -> mx.array:
            logit = head.logit(rollouts.draft_hidden, rollouts.target_hidden)[..., 0]
            return policy_loss(
                logit, rollouts.p, rollouts.q, rollouts.distance, mask, advantage, reg_scale, sampled, self.recipe.clip
            )

        norm = 0.0
        for _ in range(self.recipe.reuse):
            _, gradients = nn.value_and_grad(self.head, loss)(self.head)
            weight, bias = self.machines.total([gradients["summary"]["weight"], gradients["summary"]["bias"]])
            norm = self._step(weight / count, bias / count)
        return norm

    def _step(self, weight_gradient: mx.array, bias_gradient: mx.array) -> float:
        """One step of AdamW on z = weight (h - centre) + size c, that is bias = size c - weight centre."""
        centre, size, summary = self.scale.centre, BIAS_SHARE * self.scale.spread, self.head.summary
        weight, bias = summary.weight, summary.bias
        assert bias is not None
        centred = {"weight": weight_gradient - bias_gradient[:, None] * centre, "bias": bias_gradient * size}
        clipped, measured = optim.clip_grad_norm(centred, self.recipe.grad_clip)
        norm = cast(float, mx.array(measured).item())
        if not math.isfinite(norm):
            raise DiversedError("the gradient is not a number: the head is as it was; lower learning_rate")
        moved = self.optimizer.apply_gradients(cast(dict, clipped), {"weight": weight, "bias": bias / size})
        summary.weight = moved["weight"]
        summary.bias = moved["bias"] * size - (moved["weight"] - weight) @ centre
        mx.eval(self.head.parameters(), self.optimizer.state)
        return norm

    def tensors(self) -> dict[str, mx.array]:
        """Every tensor to go on from."""
        state: dict[str, Any] = {"head": self.head.parameters(), "optimizer": self.optimizer.state}
        return dict(cast(list[tuple[str, mx.array]], tree_flatten(tree_map(mx.array, state))))

    def restore(self, tensors: dict[str, mx.array]) -> None:
        """Go on from what `tensors` gave."""
        state = cast(dict, tree_unflatten(list(tensors.items())))
        self.head.update(state["head"])
        self.optimizer.state = state["optimizer"]


def _optimizer(recipe: Recipe, peak: float) -> optim.Optimizer:
    updates = recipe.iters * recipe.reuse
    warm_up = max(1, updates // 10)
    warm = optim.linear_schedule(peak / warm_up, peak, warm_up)
    decay = optim.cosine_decay(peak, max(1, updates - warm_up), peak / 10)
    # Without the bias correction that MLX leaves off, the first dozens of steps would be three to six times the rate.
    return optim.AdamW(optim.join_schedules([warm, decay], [warm_up]), weight_decay=0.0, bias_correction=True)
