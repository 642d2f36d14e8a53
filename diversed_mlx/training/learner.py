"""The head that is trained and the optimizer that moves it: one gradient step from a batch of answers.

What a step costs depends on the answers and the width of the hidden states, not on the vocabulary: nothing as wide as
that comes in here (`benchmarks/update.py` measures it). This file neither samples nor judges.
"""

import math
from collections.abc import Sequence
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

LOGITS_AN_UPDATE = 3.5  # a weight must be able to go from 0.8 to 0.998 in a few dozen updates, and back


def learning_rate_for(hidden: Sequence[mx.array]) -> float:
    """Choose AdamW's learning rate by the size of what the head reads.

    AdamW moves each weight by about the rate, whatever the gradient, and the two rows of the head in opposite
    directions: an update moves the logit by up to 2 rate sum |h|. A rate that suits one pair saturates a wider one.

    Args:
        hidden: hidden states of draft and target at some positions, shapes (T, d_q) and (T, d_p).
    """
    size = sum(cast(float, mx.mean(mx.sum(mx.abs(h.astype(mx.float32)), axis=-1)).item()) for h in hidden)
    return LOGITS_AN_UPDATE / (2 * size)


class Learner:
    """A head and its AdamW.

    Args:
        draft_size: width of the draft's hidden state.
        target_size: width of the target's.
        recipe: where the head starts, and how it moves.
        learning_rate: AdamW's highest.
        machines: over which gradients are averaged.
    """

    def __init__(self, draft_size: int, target_size: int, recipe: Recipe, learning_rate: float, machines: Machines):
        self.recipe, self.machines = recipe, machines
        self.head = EnsembleHead(draft_size, target_size)
        start = math.log(recipe.start_weight / (1 - recipe.start_weight)) / 2
        self.head.summary.bias = mx.array([-start, start])
        self.optimizer = _optimizer(recipe, learning_rate)
        self.optimizer.init(self.head.trainable_parameters())

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
            names, local = zip(*cast(list[tuple[str, mx.array]], tree_flatten(gradients)), strict=True)
            summed = [array / count for array in self.machines.total(list(local))]
            gradients, measured = optim.clip_grad_norm(
                tree_unflatten(list(zip(names, summed, strict=True))), self.recipe.grad_clip
            )
            norm = cast(float, mx.array(measured).item())
            if not math.isfinite(norm):
                raise DiversedError("the gradient is not a number: the head is as it was; lower learning_rate")
            self.optimizer.update(self.head, cast(dict, gradients))
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
    return optim.AdamW(optim.join_schedules([warm, decay], [warm_up]), weight_decay=0.0)
