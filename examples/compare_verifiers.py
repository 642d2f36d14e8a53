"""What each verifier keeps of a draft, on the same problems: python examples/compare_verifiers.py (embedded pair)."""

import sys

from diversed_mlx import Sampling, load_head, load_pair
from diversed_mlx.evaluation.engine import Settings
from diversed_mlx.evaluation.methods import make_method
from diversed_mlx.evaluation.rows import summarise
from diversed_mlx.evaluation.runner import run
from diversed_mlx.heads import find_head
from diversed_mlx.tasks.arithmetic import Arithmetic

METHODS = ("none", "lossless", "static:0.7", "lenient:0.3", "cascade-opt:0.2", "dynamic")


def main(n_examples: str = "8") -> None:
    """Print a line a method."""
    pair, task = load_pair(target="tiny-target", draft="tiny-draft"), Arithmetic()
    found = find_head(pair, "arithmetic")
    assert found is not None  # it ships
    head = load_head(found, pair)
    answers = run(
        pair,
        task,
        task.examples("test", int(n_examples)),
        {name: make_method(name, pair, head) for name in METHODS},
        Settings(sampling=Sampling(temp=1.0), num_draft_tokens=4, max_tokens=task.max_tokens),
        seed=0,
    )
    for row in summarise(list(answers)):
        accepted = "" if row.acceptance_rate is None else f", {row.acceptance_rate:.0%} of the drafts accepted"
        print(f"{row.method:16} {row.quality:.0%} right, {row.tokens_per_round:.2f} tokens a round{accepted}")


if __name__ == "__main__":
    main(*sys.argv[1:])
