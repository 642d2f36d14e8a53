"""What one update of a head costs at three vocabulary sizes, beside the same update by autograd over the vocabulary.

The answers are made up: hidden states and logits are random, and of the logits the few numbers a token are kept that
`training/rollout.py` keeps. Both ways give the same gradient, which is checked before anything is timed. Times are
medians; the vocabulary sizes take turns. Peak memory is MLX's own count during one update, above what is held anyway.

    python benchmarks/update.py
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from tqdm import tqdm

from diversed_mlx.head import EnsembleHead
from diversed_mlx.training.learner import Learner, Scale
from diversed_mlx.training.machines import Machines
from diversed_mlx.training.objective import log_mixture, policy_loss
from diversed_mlx.training.recipe import Recipe
from diversed_mlx.training.rollout import Rollouts

REG_SCALE = 0.02


def made_up(vocabulary: int, answers: int, tokens: int, sizes: tuple[int, int]) -> tuple[Rollouts, mx.array, mx.array]:
    """Rollouts, and the distributions p and q (N, T, V) that they were taken from."""
    keys = mx.random.split(mx.random.key(vocabulary), 6)
    shape = (answers, tokens)
    hidden = [mx.random.normal((*shape, size), key=key) for size, key in zip(sizes, keys, strict=False)]
    p, q = (mx.softmax(3 * mx.random.normal((*shape, vocabulary), key=key), axis=-1) for key in keys[2:4])
    drawn = mx.random.randint(0, vocabulary, shape, key=keys[4])
    p_x, q_x = (mx.take_along_axis(x, drawn[..., None], axis=-1)[..., 0] for x in (p, q))
    rollouts = Rollouts(
        tokens=drawn,
        mask=mx.ones(shape),
        draft_hidden=hidden[0],
        target_hidden=hidden[1],
        p=p_x,
        q=q_x,
        distance=0.5 * mx.sum(mx.abs(p - q), axis=-1),
        log_mixture=log_mixture(mx.zeros(shape), p_x, q_x),
    )
    mx.eval(vars(rollouts), p, q)
    return rollouts, p, q


def gradient(head: EnsembleHead, loss: Callable[[EnsembleHead], mx.array]) -> dict[str, mx.array]:
    """The gradient of a loss by the head's weights."""
    _, gradients = nn.value_and_grad(head, loss)(head)
    return dict(cast(list[tuple[str, mx.array]], tree_flatten(gradients)))


def length(gradients: dict[str, mx.array]) -> float:
    """Euclidean length of a gradient."""
    squares = mx.stack([mx.sum(mx.square(array)) for array in gradients.values()])
    return cast(float, mx.sqrt(mx.sum(squares)).item())


def closed_form(rollouts: Rollouts, advantage: mx.array) -> Callable[[EnsembleHead], mx.array]:
    """The trainer's loss."""

    def loss(head: EnsembleHead) -> mx.array:
        logit = head.logit(rollouts.draft_hidden, rollouts.target_hidden)[..., 0]
        return policy_loss(
            logit, rollouts.p, rollouts.q, rollouts.distance, rollouts.mask, advantage, REG_SCALE
        )  # fmt: skip

    return loss


def over_vocabulary(
    rollouts: Rollouts, p: mx.array, q: mx.array, advantage: mx.array
) -> Callable[[EnsembleHead], mx.array]:
    """The same loss written down as it is defined: nu over the whole vocabulary, its logarithm, and TV(q, nu)."""

    def loss(head: EnsembleHead) -> mx.array:
        weight = head(rollouts.draft_hidden, rollouts.target_hidden)
        nu = weight * p + (1 - weight) * q
        log_nu = mx.take_along_axis(mx.log(nu), rollouts.tokens[..., None], axis=-1)[..., 0]
        distance = 0.5 * mx.sum(mx.abs(q - nu), axis=-1)
        return mx.sum(rollouts.mask * (REG_SCALE * distance - advantage[:, None] * log_nu))

    return loss


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", default="1024,32768,131072", help="sizes, with commas between")
    parser.add_argument("--answers", type=int, default=8, help="answers of an update (default 8)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer (default 64)")
    parser.add_argument("--draft-size", type=int, default=2048, help="width of the draft (default 2048)")
    parser.add_argument("--target-size", type=int, default=4096, help="width of the target (default 4096)")
    parser.add_argument("--repeats", type=int, default=40, help="updates timed at each size (default 40)")
    arguments = parser.parse_args()
    vocabularies = [int(size) for size in arguments.vocabularies.split(",")]
    sizes = (arguments.draft_size, arguments.target_size)
    scale = Scale(mx.zeros(sum(sizes)), float(sum(sizes)))
    learner = Learner(*sizes, Recipe(iters=10**6), 1e-3, scale, Machines.join())
    advantage = mx.where(mx.arange(arguments.answers) % 2 == 0, 0.5, -0.5)
    judged = mx.ones(arguments.answers).astype(mx.bool_)

    def update(rollouts: Rollouts) -> None:
        learner.update(rollouts, advantage, judged, arguments.answers, REG_SCALE)

    ours, wide, distributions = {}, {}, {}
    for vocabulary in tqdm(vocabularies, desc="over the vocabulary", leave=False):
        rollouts, p, q = made_up(vocabulary, arguments.answers, arguments.tokens, sizes)
        loss = over_vocabulary(rollouts, p, q, advantage)
        mine, theirs = gradient(learner.head, closed_form(rollouts, advantage)), gradient(learner.head, loss)
        differs = length({name: mine[name] - theirs[name] for name in mine}) / length(theirs)
        assert differs < 1e-3, f"the two gradients differ by {differs:.1e} of their length"
        wide[vocabulary] = measure(lambda loss=loss: mx.eval(gradient(learner.head, loss)), 3)
        ours[vocabulary], distributions[vocabulary] = rollouts, p.nbytes
        del p, q, loss, theirs
        mx.clear_cache()
    seconds: dict[int, list[float]] = {vocabulary: [] for vocabulary in vocabularies}
    peaks = {vocabulary: measure(lambda v=vocabulary: update(ours[v]), 3)[1] for vocabulary in vocabularies}
    for _ in tqdm(range(arguments.repeats), desc="closed forms", leave=False):
        for vocabulary in vocabularies:
            began = time.perf_counter()
            update(ours[vocabulary])
            seconds[vocabulary].append(time.perf_counter() - began)

    print(f"{arguments.answers} answers of {arguments.tokens} tokens, widths {sizes[0]} and {sizes[1]}, float32")
    print("| vocabulary | update | peak memory | over the vocabulary: gradient | peak memory |")
    print("|---|---|---|---|---|")
    for vocabulary in vocabularies:
        slow, peak = wide[vocabulary]
        print(
            f"| {vocabulary:,} | {1e3 * median(seconds[vocabulary]):.2f} ms | {peaks[vocabulary] / 1e6:.1f} MB "
            f"| {1e3 * slow:.0f} ms | {peak / 1e6:.0f} MB, and p and q {2 * distributions[vocabulary] / 1e6:.0f} MB |"
        )
    times = [median(seconds[vocabulary]) for vocabulary in vocabularies]
    print(f"largest over smallest: time {max(times) / min(times):.2f}, memory "
          f"{max(peaks.values()) / min(peaks.values()):.2f}")  # fmt: skip


def measure(work: Callable[[], None], repeats: int) -> tuple[float, int]:
    """Median seconds, and the most bytes above those held before."""
    times, peaks = [], []
    for _ in range(repeats):
        mx.reset_peak_memory()
        held, began = mx.get_active_memory(), time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
        peaks.append(mx.get_peak_memory() - held)
    return median(times), max(peaks)


if __name__ == "__main__":
    main()
