"""Train a toy head and write its tensors; run alone or under `mlx.launch` by test_machines.py.

Arguments: folder of the pair, prompts a machine, folder of the run, the rank that leaves in its third update, or -1,
and perhaps the word resume.
"""

import os
import sys
from pathlib import Path

from diversed_mlx import load_pair
from diversed_mlx.tasks.task import Example
from diversed_mlx.training.machines import Machines
from diversed_mlx.training.recipe import Recipe
from diversed_mlx.training.run import Run
from diversed_mlx.training.trainer import Trainer


class Vowels:
    """The reward is the share of vowels."""

    name, metric, max_tokens = "vowels", "share", 8

    def examples(self, split, n, seed=0):
        return [Example(question=f"{split} {i}", answer="") for i in range(n)]

    def reward(self, text, example):
        return sum(c in "aeiou" for c in text) / 8


def main() -> None:
    models, batch_size, folder, leaver = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    pair = load_pair(target=str(models / "target"), draft=str(models / "draft"))
    recipe = Recipe(
        iters=6, batch_size=batch_size, samples_per_prompt=4, prompts=10, val_examples=7, steps_per_eval=3,
        save_every=2, max_quality_loss=0.02, baseline="ema",
    )  # fmt: skip
    trainer = Trainer(pair, Vowels(), recipe, Machines.join())
    run = Run(folder, trainer, data="none")
    if sys.argv[5:] == ["resume"]:
        run.resume()
    for report in run.reports():
        if report.step == 2 and trainer.machines.rank == leaver:
            os._exit(9)


if __name__ == "__main__":
    main()
