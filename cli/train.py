"""`diversed train`: a head for a pair, trained on a task's own reward, on one machine or several."""

import dataclasses
import signal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diversed_mlx.cli import options as flags
from diversed_mlx.cli.options import note
from diversed_mlx.cli.task_flags import DATA, AllowCodeExecution, Rows, TaskFile, TaskName
from diversed_mlx.errors import DiversedError

if TYPE_CHECKING:
    from diversed_mlx.training.progress import Measured
    from diversed_mlx.training.trainer import Report, Trainer

UPDATES, REWARD, ANSWERS, FILES = "Updates", "Reward and price", "Answers", "Files and progress"
OWN = ("draft", "target", "data", "task_file", "output")  # keys of a config file beside the recipe's


class Baseline(StrEnum):
    """Values of --baseline."""

    loo = "loo"
    ema = "ema"
    none = "none"


def _whole(panel: str, text: str, default: str, least: int = 1) -> Any:
    return typer.Option(min=least, help=text, show_default=default, rich_help_panel=panel)


def _real(panel: str, text: str, default: str) -> Any:
    return typer.Option(help=text, show_default=default, rich_help_panel=panel)


def train(
    task: TaskName = None,
    draft: flags.Draft = None,
    target: flags.Target = None,
    trust_remote_code: flags.TrustRemoteCode = False,
    data: Rows = None,
    task_file: TaskFile = None,
    allow_code_execution: AllowCodeExecution = False,
    prompts: Annotated[int | None, _whole(DATA, "Training questions that are used.", "400")] = None,
    few_shot: Annotated[int | None, _whole(DATA, "Worked examples before each question.", "0", 0)] = None,
    val_examples: Annotated[int | None, _whole(DATA, "Held-out questions to measure on.", "128", 0)] = None,
    iters: Annotated[int | None, _whole(UPDATES, "Updates.", "150")] = None,
    batch_size: Annotated[int | None, _whole(UPDATES, "Prompts an update, on each machine.", "8")] = None,
    samples_per_prompt: Annotated[int | None, _whole(UPDATES, "Answers to each prompt.", "4")] = None,
    learning_rate: Annotated[
        float | None, _real(UPDATES, "AdamW's highest.", "by the size of the hidden states")
    ] = None,
    grad_clip: Annotated[float | None, _real(UPDATES, "Most that a gradient's norm may be.", "1")] = None,
    reuse: Annotated[int | None, _whole(UPDATES, "Passes over the same answers, clipped above 1.", "1")] = None,
    clip: Annotated[float | None, _real(UPDATES, "How far their ratio may go from 1.", "0.2")] = None,
    reg_scale: Annotated[float | None, _real(REWARD, "λ, the price of a rejected token.", "0.02")] = None,
    max_quality_loss: Annotated[
        float | None,
        _real(
            REWARD, "Adapt λ so that at most this share of the target's own reward is lost, such as 0.01.", "λ is fixed"
        ),
    ] = None,
    reg_rate: Annotated[float | None, _real(REWARD, "How fast λ adapts.", "5")] = None,
    start_weight: Annotated[float | None, _real(REWARD, "Weight on the target at the start.", "0.8")] = None,
    baseline: Annotated[
        Baseline | None,
        typer.Option(
            help="What a reward is compared with: the prompt's other answers, a running mean, nothing.",
            show_default="loo",
            rich_help_panel=REWARD,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-m",
            min=1,
            help="Most tokens of an answer.",
            show_default="the task's",
            rich_help_panel=ANSWERS,
        ),
    ] = None,
    temp: Annotated[float | None, _real(ANSWERS, "Temperature, above 0.", "1")] = None,
    top_p: Annotated[float | None, _real(ANSWERS, "Nucleus sampling.", "1, off")] = None,
    min_p: Annotated[float | None, _real(ANSWERS, "Least share of the most likely token.", "0, off")] = None,
    top_k: Annotated[int | None, _whole(ANSWERS, "Most tokens to choose from.", "0, off", 0)] = None,
    seed: Annotated[int | None, _whole(ANSWERS, "Makes a run repeatable.", "0", 0)] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="YAML file of these settings; flags win.", rich_help_panel=FILES),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder of the run.", show_default="in ~/.cache/diversed/heads", rich_help_panel=FILES),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the folder.", rich_help_panel=FILES)
    ] = False,
    steps_per_report: Annotated[
        int, typer.Option(min=1, help="Updates between two lines of figures.", rich_help_panel=FILES)
    ] = 10,
    steps_per_eval: Annotated[int | None, _whole(FILES, "Updates between two measurements.", "30")] = None,
    save_every: Annotated[int | None, _whole(FILES, "Updates between two checkpoints.", "10")] = None,
) -> None:
    """Train an ensemble head for a pair on a task's reward."""
    given: dict[str, Any] = {
        "prompts": prompts, "few_shot": few_shot, "val_examples": val_examples, "iters": iters,
        "batch_size": batch_size, "samples_per_prompt": samples_per_prompt, "learning_rate": learning_rate,
        "grad_clip": grad_clip, "reuse": reuse, "clip": clip, "reg_scale": reg_scale,
        "max_quality_loss": max_quality_loss, "reg_rate": reg_rate, "start_weight": start_weight,
        "baseline": baseline and str(baseline), "max_tokens": max_tokens, "temp": temp, "top_p": top_p,
        "min_p": min_p, "top_k": top_k, "seed": seed, "steps_per_eval": steps_per_eval, "save_every": save_every,
        "draft": draft, "target": target, "data": data, "task_file": task_file, "output": output, "task": task,
    }  # fmt: skip
    settings = (_read_config(config) if config is not None else {}) | {k: v for k, v in given.items() if v is not None}
    own = {key: settings.pop(key, None) for key in (*OWN, "task")}
    if (own["task"] is None) == (own["task_file"] is None):
        raise typer.BadParameter("name one task, or give a --task-file")

    from diversed_mlx.pair import load_pair
    from diversed_mlx.tasks.find import load_task
    from diversed_mlx.training.machines import Machines
    from diversed_mlx.training.recipe import Recipe
    from diversed_mlx.training.run import Run
    from diversed_mlx.training.trainer import Trainer

    recipe = Recipe(**settings)
    data_path, file_path = (Path(own[key]) if own[key] is not None else None for key in ("data", "task_file"))
    wanted = load_task(
        own["task"] or "", data=data_path, task_file=file_path, allow_code_execution=allow_code_execution
    )
    machines = Machines.join()
    target_name = own["target"] or flags.DEFAULT_TARGET
    draft_name = own["draft"] or (flags.DEFAULT_DRAFT if own["target"] is None else None)
    if draft_name is None:
        raise DiversedError("a head needs a draft: add --draft")
    pair = load_pair(target=target_name, draft=draft_name, trust_remote_code=trust_remote_code)
    trainer = Trainer(pair, wanted, recipe, machines)
    folder = Path(own["output"]).expanduser() if own["output"] is not None else _default_folder(trainer)
    run = Run(folder, trainer, data=str(data_path) if data_path is not None else "default")
    if resume:
        run.resume()
    else:
        run.require_new()
    speak = note if machines.leads else _silence
    speak(f"{wanted.name}: {recipe.iters} updates of {recipe.batch_size} x {recipe.samples_per_prompt} answers"
          + (f" on each of {machines.size} machines" if machines.size > 1 else "")
          + (f", going on after update {trainer.progress.step}" if resume else "") + f"; in {folder}")  # fmt: skip
    signal.signal(signal.SIGTERM, _as_interrupt)  # a launcher that ends this process, or a plain kill
    try:
        _follow(run, trainer, steps_per_report)
    except KeyboardInterrupt:
        speak(f"\nstopped after update {trainer.progress.step}; the same command with --resume goes on")
        raise typer.Exit(130) from None
    if machines.leads:
        _conclude(trainer, folder)


def _as_interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _silence(text: str) -> None:
    pass


def _follow(run: Any, trainer: "Trainer", steps_per_report: int) -> None:
    """Show a bar, a line every few updates, and each measurement."""
    from tqdm import tqdm

    leads, metric = trainer.machines.leads, trainer.task.metric
    told_reference = trainer.progress.reference is not None
    with tqdm(
        total=trainer.recipe.iters, initial=trainer.progress.step, unit="update", disable=not leads, dynamic_ncols=True
    ) as bar:
        since: list[Report] = []
        for report in run.reports():
            reference = trainer.progress.reference
            if leads and reference is not None and not told_reference:
                bar.write(f"held out, target alone: {_figures(reference, metric)}")
                bar.write(f"held out, at the start: {_figures(trainer.progress.history[0], metric)}")
                told_reference = True
            since.append(report)
            bar.update()
            seconds = report.rollout_seconds + report.update_seconds
            bar.set_postfix_str(
                f"reward {report.reward:.2f}, acceptance {report.acceptance_rate:.2f}, "
                f"weight {report.mean_target_weight:.2f}, {report.tokens / seconds:.0f} tok/s"
            )
            if leads and (report.step % steps_per_report == 0 or report.measured is not None):
                bar.write(_line(since))
                since = []
            if leads and report.measured is not None:
                bar.write(f"held out, after update {report.step}: {_figures(report.measured, metric)}")


def _line(reports: "list[Report]") -> str:
    def mean(name: str) -> float:
        return sum(getattr(report, name) for report in reports) / len(reports)

    tokens = sum(report.tokens for report in reports)
    seconds = sum(report.rollout_seconds + report.update_seconds for report in reports)
    unjudged = sum(report.unjudged for report in reports)
    return (
        f"update {reports[-1].step}: reward {mean('reward'):.3f}, acceptance {mean('acceptance_rate'):.1%}, weight "
        f"{mean('mean_target_weight'):.3f}, λ {reports[-1].reg_scale:.4f}, {tokens / seconds:.0f} tok/s"
        + (f", {unjudged} answers WITHOUT A REWARD left out" if unjudged else "")
    )


def _figures(measured: "Measured", metric: str) -> str:
    return (
        f"{metric} {measured.quality:.3f}, acceptance {measured.acceptance_rate:.1%}, "
        f"weight {measured.mean_target_weight:.3f}"
    )


def _conclude(trainer: "Trainer", folder: Path) -> None:
    from diversed_mlx.training.curves import plot_curves

    best, reference = trainer.progress.best, trainer.progress.reference
    if best is not None and reference is not None:
        note(f"kept the head of update {best.step}: {_figures(best.measured, trainer.task.metric)} "
             f"(target alone {reference.quality:.3f})")  # fmt: skip
    try:
        note(f"curves in {plot_curves(folder)}")
    except DiversedError as error:
        note(str(error))
    note(f"the head is in {folder}: use it with --head {folder}")


def _default_folder(trainer: "Trainer") -> Path:
    from diversed_mlx.heads import heads_folder

    pair = trainer.pair
    assert pair.draft is not None
    names = (trainer.task.name, *(name.rstrip("/").split("/")[-1] for name in (pair.draft.name, pair.target.name)))
    return heads_folder() / "-".join(names)


def _read_config(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings, whose keys are the flags' names.

    Raises:
        DiversedError: it cannot be read, or holds a key that is no setting.
    """
    import yaml

    from diversed_mlx.training.recipe import Recipe

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DiversedError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise DiversedError(f"{path} is not a list of settings such as `iters: 300`")
    settings = {str(key).replace("-", "_"): value for key, value in content.items()}
    fields = {field.name: field for field in dataclasses.fields(Recipe)}
    for key, value in settings.items():
        if key not in fields and key not in (*OWN, "task"):
            raise DiversedError(f"{path}: {key} is no setting; there are {', '.join((*OWN, 'task', *fields))}")
        if key in fields and value is not None:
            settings[key] = _typed(path, key, value, fields[key].type)
        elif value is not None and not isinstance(value, str):
            raise DiversedError(f"{path}: {key} must be a text, not {value!r}")
    return {key: value for key, value in settings.items() if value is not None}


def _typed(path: Path, key: str, value: Any, kind: Any) -> Any:
    """Check a value of a config file against its field's type; a whole number is a real one too."""
    if kind in (float, float | None) and type(value) in (int, float):
        return float(value)
    if (kind in (int, int | None) and type(value) is int) or (key == "baseline" and isinstance(value, str)):
        return value
    wanted = "a number" if kind in (float, float | None) else "a whole number" if key != "baseline" else "a text"
    raise DiversedError(f"{path}: {key} must be {wanted}, not {value!r}")
