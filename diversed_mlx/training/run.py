"""A run on disk: one folder with the best head so far, the figures of each update, and the checkpoint to go on from.

A run that is killed at any moment leaves whole files, and goes on from its last checkpoint to the result that it would
have had.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from ..errors import DiversedError
from ..files import write_whole
from ..head import METADATA_FILE
from ..heads import identity
from . import checkpoint
from .trainer import Report, Trainer

METRICS_FILE = "metrics.jsonl"


class Run:
    """A training run and its folder.

    Args:
        folder: where everything goes; made if it does not exist.
        trainer: does the work.
        data: where the task's rows came from, for `head.json`.
    """

    def __init__(self, folder: Path, trainer: Trainer, data: str):
        self.folder = folder
        self.trainer = trainer
        self._data = data
        self._kept: int | None = None  # step of the head that is on disk

    def require_new(self) -> None:
        """Refuse a folder that holds a run or a head already.

        Raises:
            DiversedError: it does.
        """
        if not self.trainer.machines.leads:
            return
        for name in (checkpoint.FILE, METADATA_FILE):
            if (self.folder / name).exists():
                raise DiversedError(
                    f"{self.folder} holds a run already: go on with it with --resume, or choose another --output"
                )

    def resume(self) -> None:
        """Go on from the checkpoint: state and figures are as they were when it was written.

        Raises:
            DiversedError: no checkpoint, or one of another recipe, task or pair.
        """
        machines = self.trainer.machines
        content = checkpoint.read(self.folder) if machines.leads else b""
        tensors, facts = checkpoint.parse(machines.share(content))  # the others may not see this folder
        now = json.loads(json.dumps(self._description()))
        for key, value in facts["run"].items():
            if value != now[key]:
                other = {k: v for k, v in value.items() if now[key].get(k) != v} if isinstance(value, dict) else value
                raise DiversedError(
                    f"the run in {self.folder} has another {key}: {other}; go on with what it began with"
                )
        self.trainer.go_on(tensors, facts)
        if machines.leads:
            self._cut_metrics(facts["step"])
            self._save_head()

    def reports(self) -> Iterator[Report]:
        """Train to the end.

        Yields:
            A report an update. However this ends, the last whole update is on disk.

        Raises:
            DiversedError: as `Trainer.steps`, or a file that cannot be written.
        """
        trainer, leads = self.trainer, self.trainer.machines.leads
        if leads:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DiversedError(f"cannot make the folder {self.folder}: {error.strerror}") from error
        if trainer.progress.step == 0:
            self.save()  # so that a run killed in its first update can go on, too
            if leads:
                self._cut_metrics(0)
        saved = trainer.progress.step
        try:
            for report in trainer.steps():
                if leads:
                    self._write_metrics(report)
                if report.step % trainer.recipe.save_every == 0 or report.step == trainer.recipe.iters:
                    self.save()
                    saved = report.step
                yield report
        finally:
            if trainer.progress.step != saved:
                self.save()

    def save(self) -> None:
        """Write the checkpoint, and the best head where it is a new one."""
        if self.trainer.machines.leads:
            facts = self.trainer.facts() | {"run": self._description()}
            checkpoint.save(self.folder, self.trainer.tensors(), facts)
            self._save_head()

    def _description(self) -> dict:
        return {
            "task": self.trainer.task.name,
            "data": self._data,
            "pair": identity(self.trainer.pair),
            "recipe": asdict(self.trainer.recipe),
        }

    def _save_head(self) -> None:
        best, progress = self.trainer.progress.best, self.trainer.progress
        step = best.step if best is not None else progress.step
        if step == self._kept or (best is None and self.trainer.recipe.val_examples):
            return
        head = self.trainer.best_head()
        head.metadata.update(
            pair=identity(self.trainer.pair),
            task=self.trainer.task.name,
            data={"source": self._data, "split": "train"},
            recipe=asdict(self.trainer.recipe)
            | {"learning_rate": self.trainer.learning_rate, "machines": self.trainer.machines.size},
            seed=self.trainer.recipe.seed,
            metrics={
                "step": step,
                "held_out": best and asdict(best.measured),
                "target_alone": progress.reference and asdict(progress.reference),
                "metric": self.trainer.task.metric,
                "held_out_examples": self.trainer.recipe.val_examples,
            },
            versions={name: version(name) for name in ("diversed-mlx", "mlx", "mlx-lm")},
        )
        head.save(self.folder)
        self._kept = step

    def _write_metrics(self, report: Report) -> None:
        try:
            with open(self.folder / METRICS_FILE, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(report)) + "\n")
        except OSError as error:
            raise DiversedError(f"cannot write {self.folder / METRICS_FILE}: {error.strerror}") from error

    def _cut_metrics(self, step: int) -> None:
        """Drop the figures of updates after the checkpoint, which will be done again."""
        path = self.folder / METRICS_FILE
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        write_whole(path, "".join(lines[:step]))


def read_metrics(folder: Path) -> list[dict]:
    """The figures of every update of a run.

    Args:
        folder: of the run.

    Raises:
        DiversedError: it has none, or they cannot be read.
    """
    try:
        return [json.loads(line) for line in (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise DiversedError(f"{folder / METRICS_FILE} cannot be read: {error}") from error
