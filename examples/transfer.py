"""A head trained on some families of problems, used on others: the paper's transfer table on the embedded pair.

    python examples/transfer.py                   # writes results/transfer.json, prints the table

Trains one head on each half of the problem families, then measures both on both halves, beside the target alone and
lossless decoding. Everything is kept in a folder, so that the same command goes on after any interruption.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from tqdm import tqdm

from diversed_mlx import Dynamic, Lossless, Pair, Sampling, load_head, load_pair
from diversed_mlx.evaluation.engine import Engine, Method, Settings
from diversed_mlx.evaluation.log import AnswerLog
from diversed_mlx.evaluation.rows import Row, summarise
from diversed_mlx.evaluation.runner import run
from diversed_mlx.files import write_whole
from diversed_mlx.tasks.arithmetic import Arithmetic
from diversed_mlx.training.checkpoint import FILE as CHECKPOINT
from diversed_mlx.training.machines import Machines
from diversed_mlx.training.recipe import Recipe
from diversed_mlx.training.run import Run
from diversed_mlx.training.trainer import Trainer

RESULTS = Path(__file__).parents[1] / "results"
HALVES = {"counting": ("sharing", "ages", "comparisons"), "rates": ("shopping", "rates", "distances", "time")}
SEED = 40_000  # of the problems that are measured
LENGTH = 5


def train(pair: Pair, half: str, folder: Path, recipe: Recipe) -> Path:
    """Train a head on a half of the families, or go on with that, and give its folder."""
    trainer = Trainer(pair, Arithmetic(HALVES[half]), recipe, Machines.join())
    training = Run(folder, trainer, data="default")
    if (folder / CHECKPOINT).exists():
        training.resume()
    with tqdm(total=recipe.iters, initial=trainer.progress.step, unit="update", desc=half) as bar:
        for _ in training.reports():
            bar.update()
    return folder


def measure(pair: Pair, half: str, heads: dict[str, Path], folder: Path, n: int) -> list[Row]:
    """Compare all methods on a half's unseen problems."""
    task = Arithmetic(HALVES[half])
    loaded = {trained: load_head(path, pair) for trained, path in heads.items()}
    methods: dict[str, Method] = {"none": Engine(pair, None), "lossless": Engine(pair, Lossless())}
    methods |= {f"head of {trained}": Engine(pair, Dynamic(head)) for trained, head in loaded.items()}
    examples = task.examples("test", n, SEED)
    setting = {"task": task.name, "n": n, "heads": {trained: head.fingerprint for trained, head in loaded.items()}}
    log = AnswerLog(folder, setting)
    answers = []
    if log.path.exists():
        answers = log.resume([example.question for example in examples])
    else:
        log.begin()
    settings = Settings(sampling=Sampling(temp=1), num_draft_tokens=LENGTH, max_tokens=task.max_tokens)
    done = {(answer.method, answer.number) for answer in answers}
    with tqdm(total=n * len(methods), initial=len(answers), unit="answer", desc=f"on {half}") as bar:
        for answer in run(pair, task, examples, methods, settings, seed=SEED, done=done):
            log.append(answer)
            answers.append(answer)
            bar.update()
    return summarise(answers)


def main() -> None:
    """Train what is missing, measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="problems of each half")
    parser.add_argument("--iters", type=int, default=150, help="updates of each head")
    parser.add_argument("--val-examples", type=int, default=256, help="held-out problems that choose each head")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--work", type=Path, default=RESULTS / "work" / "transfer", help="folder that keeps everything")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of transfer.json")
    args = parser.parse_args()
    began = time.perf_counter()
    pair = load_pair(target="tiny-target", draft="tiny-draft")
    recipe = Recipe(
        iters=args.iters, val_examples=args.val_examples, max_quality_loss=0.01, learning_rate=0.01, seed=args.seed
    )
    name = f"{args.iters}-{args.val_examples}-{args.seed}"
    heads = {half: train(pair, half, args.work / f"head-{half}-{name}", recipe) for half in HALVES}
    rows = {half: measure(pair, half, heads, args.work / f"on-{half}-{name}-{args.n}", args.n) for half in HALVES}
    described = {
        "command": " ".join(["python", "examples/transfer.py", *sys.argv[1:]]),
        "halves": HALVES,
        "temp": 1.0,
        "num_draft_tokens": LENGTH,
        "seconds_of_this_run": time.perf_counter() - began,
        "rows": {half: [row.to_json() for row in found] for half, found in rows.items()},
    }
    args.output.mkdir(parents=True, exist_ok=True)
    write_whole(args.output / "transfer.json", json.dumps(described, indent=1) + "\n")
    print("| problems | method | right | acceptance |\n|---|---|---|---|")
    for half, found in rows.items():
        for row in found:
            assert row.quality is not None
            assert row.quality_ci is not None
            low, high = row.quality_ci
            accepted = "" if row.acceptance_rate is None else f"{100 * row.acceptance_rate:.1f} %"
            print(
                f"| {half} | {row.method} | {100 * row.quality:.1f} % ({100 * low:.1f}-{100 * high:.1f}) | {accepted} |"
            )


if __name__ == "__main__":
    main()
