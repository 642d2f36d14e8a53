"""The paper's figure and tables at a size that runs anywhere: the embedded pair on word problems.

    python examples/reproduce_pareto.py           # writes results/pareto.json and results/pareto.png, prints the tables

Every method on the same problems, in turn, at temperatures 0, 0.1 and 1 and drafts of 3, 5 and 7 tokens, with three
seeds; most problems at temperature 1 and K = 5, the paper's setting. Answers are kept in a folder, so that the same
command goes on after any interruption, and only what depends on another --head is done again.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from diversed_mlx import EnsembleHead, Pair, Sampling, load_head, load_pair
from diversed_mlx.evaluation.engine import Settings
from diversed_mlx.evaluation.log import AnswerLog
from diversed_mlx.evaluation.methods import expand, make_method
from diversed_mlx.evaluation.pareto import dominating, drafted, margin, surely_dominating
from diversed_mlx.evaluation.plots import front_figure, image
from diversed_mlx.evaluation.record import Answer
from diversed_mlx.evaluation.rows import Row, summarise
from diversed_mlx.evaluation.runner import run
from diversed_mlx.files import write_whole
from diversed_mlx.heads import EMBEDDED_HEAD
from diversed_mlx.tasks.arithmetic import Arithmetic

RESULTS = Path(__file__).parents[1] / "results"
SEEDS = (0, 1, 2)
MAIN = (1.0, 5)  # temperature and K that get the most problems
CELLS = (MAIN, *((temp, length) for temp in (1.0, 0.0, 0.1) for length in (5, 3, 7) if (temp, length) != MAIN))
# Two lists, because another head changes one of them only; each has the target alone, to compare its times with.
BASELINES = expand(
    "none,lossless,lenient:0.5,lenient:0.2,lenient:0.05,cascade-opt:0.1,cascade-opt:0.2,cascade-opt:0.3,"
    "cascade-opt:0.6,cascade-token:0.2,cascade-token:0.5,cascade-token:0.8,cascade-token:0.95,cascade-token:0.99,"
    "static:0.4..1.0:0.1"
)
DYNAMIC = expand("none,dynamic:-2,dynamic:0,dynamic:2")


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """The answers of one list of methods in one cell with one seed.

    Args:
        temp: temperature.
        length: K.
        seed: of the problems and of the answers.
        methods: their names.
        folder: where its log is.
        n: problems.
    """

    temp: float
    length: int
    seed: int
    methods: Sequence[str]
    folder: Path
    n: int

    def answers(self, pair: Pair, head: EnsembleHead, bar: tqdm | None) -> list[Answer]:
        """All answers, those that are missing made and kept; without a bar, those that are there."""
        task = Arithmetic()
        examples = task.examples("test", self.n, self.seed * 10_000)
        setting = {"temp": self.temp, "num_draft_tokens": self.length, "seed": self.seed, "methods": list(self.methods)}
        log = AnswerLog(self.folder, setting)
        # Problems of a seed are the first of more, so a log may have more than are asked for now, or fewer.
        most = task.examples("test", 1000, self.seed * 10_000)
        found = log.resume([example.question for example in most]) if log.path.exists() else []
        found = [answer for answer in found if answer.number < self.n]
        if bar is None or len(found) == self.n * len(self.methods):
            return found
        if not log.path.exists():
            log.begin()
        settings = Settings(sampling=Sampling(temp=self.temp), num_draft_tokens=self.length, max_tokens=task.max_tokens)
        methods = {name: make_method(name, pair, head) for name in self.methods}
        done = {(answer.method, answer.number) for answer in found}
        for answer in run(pair, task, examples, methods, settings, seed=self.seed * 10_000, done=done):
            log.append(answer)
            found.append(answer)
            bar.update()
        return found


def main() -> None:
    """Run what is missing, then write and print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-main", type=int, default=50, help="problems a seed at temperature 1, K = 5")
    parser.add_argument("--n", type=int, default=10, help="problems a seed in each other cell")
    parser.add_argument("--head", default=str(EMBEDDED_HEAD), help="head of the dynamic methods")
    parser.add_argument("--work", type=Path, default=RESULTS / "work", help="folder that keeps the answers")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of pareto.json and pareto.png")
    parser.add_argument("--report", action="store_true", help="only sum up what is there")
    args = parser.parse_args()
    pair = load_pair(target="tiny-target", draft="tiny-draft")
    head = load_head(args.head, pair)
    parts = {
        cell: [
            Part(*cell, seed, methods, args.work / folder / f"t{cell[0]:g}-k{cell[1]}-s{seed}",
                 args.n_main if cell == MAIN else args.n)
            for seed in SEEDS
            for methods, folder in ((BASELINES, "baselines"), (DYNAMIC, f"dynamic-{head.fingerprint}"))
        ]
        for cell in CELLS
    }  # fmt: skip
    total = sum(part.n * len(part.methods) for cell in CELLS for part in parts[cell])
    began = time.perf_counter()
    cells = []
    with tqdm(total=total, unit="answer", disable=args.report) as bar:
        for cell in CELLS:
            answers = {part: part.answers(pair, head, None if args.report else bar) for part in parts[cell]}
            bar.n = sum(len(found) for found in answers.values()) + sum(c["answers"] for c in cells)
            if rows := rows_of(answers):
                cells.append({
                    "temp": cell[0], "num_draft_tokens": cell[1], "rows": [row.to_json() for row in rows],
                    "answers": sum(len(found) for found in answers.values()),
                    "seconds": sum(answer.seconds for found in answers.values() for answer in found),
                })  # fmt: skip
                print(markdown(rows, *cell), flush=True)
                if cell == MAIN:
                    title = f"embedded pair, {rows[0].n} problems, temperature {cell[0]:g}, K = {cell[1]}"
                    args.output.mkdir(parents=True, exist_ok=True)
                    write_whole(args.output / "pareto.png", image(front_figure(rows, "right", title)))
    tested = [row for cell in cells for row in cell["rows"] if row["prediction_error_ci"] and row["acceptance_rate"]]
    outside = sum(not low <= 1e-6 or not high >= -1e-6 for low, high in (row["prediction_error_ci"] for row in tested))
    print(f"\ntheory: {outside} of {len(tested)} rows outside their 95 % interval (not independent: the same problems)")
    described = {
        "command": " ".join(["python", "examples/reproduce_pareto.py", *sys.argv[1:]]),
        "head": {"fingerprint": head.fingerprint, "recipe": head.metadata.get("recipe")},
        "seconds_of_answers": sum(cell["seconds"] for cell in cells),
        "seconds_of_this_run": time.perf_counter() - began,
        "seeds": SEEDS,
        "cells": cells,
    }
    args.output.mkdir(parents=True, exist_ok=True)
    write_whole(args.output / "pareto.json", json.dumps(described, indent=1) + "\n")
    print(f"wrote {args.output / 'pareto.json'}")


def rows_of(answers: dict[Part, list[Answer]]) -> list[Row]:
    """One row a method over all seeds; the times of each list are compared with its own target alone."""
    rows: list[Row] = []
    for methods in (BASELINES, DYNAMIC):
        pooled = [
            dataclasses.replace(answer, number=part.seed * 1000 + answer.number)
            for part, found in answers.items()
            if part.methods is methods
            for answer in found
        ]
        whole = _answered_by_all(pooled, methods)
        rows += [row for row in summarise(whole) if row.method != "none" or methods is BASELINES] if whole else []
    order = list(dict.fromkeys([*BASELINES, *DYNAMIC]))
    return sorted(rows, key=lambda row: order.index(row.method))


def _answered_by_all(answers: list[Answer], methods: Sequence[str]) -> list[Answer]:
    """Leave out problems that a run stopped halfway has not answered with every method."""
    count: dict[int, int] = {}
    for answer in answers:
        count[answer.number] = count.get(answer.number, 0) + 1
    return [answer for answer in answers if count[answer.number] == len(methods)]


def markdown(rows: Sequence[Row], temp: float, length: int) -> str:
    """A cell's table, and what it says about the claim."""
    lines = [
        f"\n### temperature {temp:g}, K = {length}, {rows[0].n} problems\n",
        "| method | right | acceptance | tokens per round | theory less measured | speed-up | s per answer |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        error = "" if row.prediction_error is None else f"{-row.prediction_error:z.3f}"
        inside = row.prediction_error_ci is None or abs(sum(row.prediction_error_ci)) < 1e-4 + _width(row)
        right, acceptance = _share(row.quality, row.quality_ci), _share(row.acceptance_rate, row.acceptance_ci)
        lines.append(
            f"| {row.method} | {right} | {acceptance} | {row.tokens_per_round:.2f} | {error}{'' if inside else ' (!)'} "
            f"| {_number(row.speedup, row.speedup_ci)} | {row.seconds:.2f} |"
        )
    return "\n".join([*lines, "", *claims(rows)])


def claims(rows: Sequence[Row]) -> list[str]:
    """What the rows say about "dynamic beats everything else", wins of others included."""
    lines = []
    others = [row for row in rows if not row.method.startswith("dynamic")]
    for row in (row for row in drafted(rows) if row.method.startswith("dynamic")):
        surely, by_mean = surely_dominating(row, others), dominating(row, others)
        beaten = [f"{r.method}{' beyond the intervals' if r in surely else ''}" for r in by_mean]
        lines.append(
            f"- {row.method}: "
            + (f"beaten by the means of both by {', '.join(beaten)}" if beaten
               else "no other method has both more right and more acceptance")
        )  # fmt: skip
        if (found := margin(row, others)) is not None:
            difference, best = found
            most = _share(best.acceptance_rate, best.acceptance_ci)
            lines[-1] += f"; of those at most a point less right {best.method} accepts most, {most}: "
            lines[-1] += f"{100 * abs(difference):.1f} points {'less' if difference > 0 else 'MORE'}"
    return lines


def _width(row: Row) -> float:
    assert row.prediction_error_ci is not None
    return row.prediction_error_ci[1] - row.prediction_error_ci[0]


def _share(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None or interval is None:
        return ""
    return f"{100 * value:.1f} % ({100 * interval[0]:.1f}-{100 * interval[1]:.1f})"


def _number(value: float | None, interval: tuple[float, float] | None) -> str:
    return "" if value is None or interval is None else f"{value:.2f} ({interval[0]:.2f}-{interval[1]:.2f})"


if __name__ == "__main__":
    main()
