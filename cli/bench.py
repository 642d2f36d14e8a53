"""`diversed bench`: methods beside each other on one task, with intervals and what theory expects."""

import hashlib
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diversed_mlx.cli import options as flags
from diversed_mlx.cli.options import note
from diversed_mlx.cli.task_flags import DATA, AllowCodeExecution, Rows, TaskFile, TaskName
from diversed_mlx.errors import DiversedError

if TYPE_CHECKING:
    from diversed_mlx.evaluation.engine import Method
    from diversed_mlx.evaluation.log import AnswerLog
    from diversed_mlx.evaluation.record import Answer
    from diversed_mlx.evaluation.rows import Row
    from diversed_mlx.head import EnsembleHead
    from diversed_mlx.pair import Pair

METHODS = "none,lossless,lenient:0.5,cascade-opt:0.2,cascade-token:0.2,static:0.5..1.0:0.1,mlx-lm"
FILES = "Files and progress"
FRONT, ROUNDS, WEIGHTS = "Quality against acceptance and time", "Accepted lengths", "Weight along an answer"
PICTURES = {FRONT: "", ROUNDS: "-rounds", WEIGHTS: "-weights"}  # what --plot adds to the file's name


def bench(
    task: TaskName = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="What is compared, by commas: none (the target alone), draft (alone), lossless, static:W, "
            "dynamic[:S], lenient:L, cascade-opt:A, cascade-token:A, mlx-lm. static:0.5..1.0:0.1 is a range.",
            show_default="none, each rule, and dynamic where there is a head",
        ),
    ] = None,
    draft: flags.Draft = None,
    target: flags.Target = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="dynamic: folder, Hub id or task name of a trained head.",
            rich_help_panel=flags.VERIFYING,
            show_default="one for this pair, of this task if there is one",
        ),
    ] = None,
    trust_remote_code: flags.TrustRemoteCode = False,
    n_examples: Annotated[int, typer.Option(min=2, help="Questions asked.", rich_help_panel=DATA)] = 50,
    data: Rows = None,
    task_file: TaskFile = None,
    allow_code_execution: AllowCodeExecution = False,
    few_shot: Annotated[
        int, typer.Option(min=0, help="Worked examples before each question.", rich_help_panel=DATA)
    ] = 0,
    num_draft_tokens: flags.NumDraftTokens = None,
    temp: flags.Temp = 1.0,
    top_p: flags.TopP = 1.0,
    min_p: flags.MinP = 0.0,
    top_k: flags.TopK = 0,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-m",
            min=1,
            help="Most tokens of an answer.",
            show_default="the task's",
            rich_help_panel=flags.SAMPLING,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**61, help="Makes a run repeatable, but for its times.", rich_help_panel=flags.SAMPLING
        ),
    ] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps every answer.", show_default="in ~/.cache/diversed/bench", rich_help_panel=FILES
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the comparison in the folder.", rich_help_panel=FILES)
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures.", rich_help_panel=FILES)
    ] = None,
    markdown_file: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Write the table for a README.", rich_help_panel=FILES),
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw quality against acceptance and time (png, svg or pdf), and beside it "
            "FILE-rounds and FILE-weights.",
            rich_help_panel=FILES,
        ),
    ] = None,
    html_file: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write it all on one page.", rich_help_panel=FILES),
    ] = None,
) -> None:
    """Compare methods on a task, side by side."""
    if (task is None) == (task_file is None):
        raise typer.BadParameter("name one task, or give a --task-file")
    _check_files(plot_file, html_file, json_file, markdown_file)

    from diversed_mlx.evaluation.engine import Settings
    from diversed_mlx.evaluation.log import AnswerLog
    from diversed_mlx.evaluation.methods import expand, make_method
    from diversed_mlx.evaluation.rows import summarise
    from diversed_mlx.evaluation.runner import run
    from diversed_mlx.files import write_whole
    from diversed_mlx.heads import identity
    from diversed_mlx.home import home
    from diversed_mlx.pair import load_pair
    from diversed_mlx.sampling import Sampling
    from diversed_mlx.tasks.find import load_task

    names = expand(methods if methods is not None else METHODS)
    wanted = load_task(task or "", data=data, task_file=task_file, allow_code_execution=allow_code_execution)
    settings = Settings(
        sampling=Sampling(temp=temp, top_p=top_p, min_p=min_p, top_k=top_k),
        num_draft_tokens=num_draft_tokens or 4,
        max_tokens=max_tokens or wanted.max_tokens,
    )
    draft_name = draft or (flags.DEFAULT_DRAFT if target is None else None)
    if draft_name is None:
        raise DiversedError("a comparison needs a draft: add --draft")
    examples = wanted.examples("test", n_examples, seed)
    shots = wanted.examples("train", few_shot, seed) if few_shot else []
    pair = load_pair(target=target or flags.DEFAULT_TARGET, draft=draft_name, trust_remote_code=trust_remote_code)
    trained = _head(pair, wanted.name, head, names, default=methods is None)
    if methods is None and trained is not None:
        names.append("dynamic")
    compared: dict[str, Method] = {name: make_method(name, pair, trained) for name in names}
    setting = {
        "task": wanted.name, "data": str(data) if data is not None else "default", "n": n_examples,
        "few_shot": few_shot, "methods": names, "temp": temp, "top_p": top_p, "min_p": min_p, "top_k": top_k,
        "num_draft_tokens": settings.num_draft_tokens, "max_tokens": settings.max_tokens, "seed": seed,
        "pair": identity(pair), "head": None if trained is None else trained.fingerprint,
    }  # fmt: skip
    folder = output.expanduser() if output is not None else home() / "bench" / _folder_name(setting)
    log = AnswerLog(folder, setting)
    answers: list[Answer] = []
    if resume:
        answers = log.resume([example.question for example in examples])
    else:
        log.begin()
    left = run(
        pair, wanted, examples, compared, settings, seed=seed, shots=shots,
        done={(answer.method, answer.number) for answer in answers},
    )  # fmt: skip
    note(f"{wanted.name}: {n_examples} questions x {len(names)} methods"
         + (f", going on after {len(answers)} answers" if resume else "") + f"; in {folder}")  # fmt: skip
    signal.signal(signal.SIGTERM, _as_interrupt)  # a plain kill
    try:
        _follow(left, log, answers, n_examples * len(names))
    except KeyboardInterrupt:
        note(f"\nstopped after {len(answers)} answers; the same command with --resume goes on")
        raise typer.Exit(130) from None
    rows = summarise(answers)
    described = {
        "task": wanted.name, "n": n_examples, "temp": temp, "num_draft_tokens": settings.num_draft_tokens,
        "seed": seed, "device": flags.device(), "metric": wanted.metric, "setting": setting,
        "rows": [row.to_json() for row in rows],
    }  # fmt: skip
    from diversed_mlx.cli.page import page
    from diversed_mlx.cli.tables import markdown_table, print_tables

    print_tables(rows, wanted.metric, settings.num_draft_tokens, temp)
    title = f"{wanted.name}: {n_examples} questions, temperature {temp:g}, K = {settings.num_draft_tokens}"
    files: dict[Path, str | bytes] = {}
    if json_file is not None:
        files[json_file] = json.dumps(described, indent=2) + "\n"
    if markdown_file is not None:
        files[markdown_file] = markdown_table(rows, wanted.metric)
    if plot_file is not None:
        for name, picture in _pictures(rows, answers, wanted.metric, title, plot_file.suffix[1:]).items():
            files[plot_file.with_stem(plot_file.stem + PICTURES[name])] = picture
    if html_file is not None:
        pictures = _pictures(rows, answers, wanted.metric, title, "png")
        files[html_file] = page(rows, answers, wanted.metric, title, pictures)
    for path, content in files.items():
        write_whole(path, content)
        note(f"wrote {path}")


def _check_files(plot: Path | None, html: Path | None, *others: Path | None) -> None:
    """Refuse what could not be written in the end, before anything is measured."""
    from diversed_mlx.evaluation.plots import SUFFIXES, require_matplotlib

    for path in (plot, html, *others):
        if path is not None and not path.absolute().parent.is_dir():
            raise DiversedError(f"cannot write {path}: its folder does not exist")
    if plot is not None and plot.suffix[1:] not in SUFFIXES:
        raise typer.BadParameter(f"--plot {plot}: the name must end in .{', .'.join(SUFFIXES)}")
    if plot is not None or html is not None:
        require_matplotlib()


def _pictures(rows: "list[Row]", answers: "list[Answer]", metric: str, title: str, suffix: str) -> dict[str, bytes]:
    """Every picture that the comparison has something for, by what it shows."""
    from diversed_mlx.evaluation import plots

    drawn = {FRONT: plots.front_figure(rows, metric, title)}
    if any(turn.chances for answer in answers for turn in answer.reply.rounds):
        drawn[ROUNDS] = plots.rounds_figure(answers)
    if (example := plots.weighed_example(answers)) is not None:
        drawn[WEIGHTS] = plots.weights_figure(example)
    return {name: plots.image(figure, suffix) for name, figure in drawn.items()}


def _head(pair: "Pair", task: str, named: str | None, methods: list[str], *, default: bool) -> "EnsembleHead | None":
    """Load the head of the dynamic methods: the named one, else this pair's, of this task if there is one."""
    from diversed_mlx.heads import find_head, load_head, other_task

    if not default and not any(method.split(":")[0] == "dynamic" for method in methods):
        if named is not None:
            raise typer.BadParameter("--head belongs to the method dynamic, which --methods leaves out")
        return None
    found = named or find_head(pair, task) or find_head(pair)
    if found is None:
        if default:
            note("no head was trained for this pair: comparing without dynamic")
        return None  # where dynamic was asked for, its method says what to do
    head = load_head(found, pair)
    if named is None:
        note(f"dynamic verifies with the head {found}")
    if (other := other_task(head, task)) is not None:
        note(f"warning: the head {found} was trained for {other}: expect less quality on other tasks")
    return head


def _folder_name(setting: dict) -> str:
    """The same for the same setting, so that --resume needs no folder."""
    digest = hashlib.sha256(json.dumps(setting, sort_keys=True).encode()).hexdigest()[:8]
    names = (setting["pair"][role].rstrip("/").split("/")[-1] for role in ("draft", "target"))
    return "-".join((setting["task"], *names, digest))


def _as_interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _follow(left: Any, log: "AnswerLog", answers: "list[Answer]", total: int) -> None:
    """Take the answers as they come, keep each, and show a bar."""
    from tqdm import tqdm

    with tqdm(total=total, initial=len(answers), unit="answer", dynamic_ncols=True) as bar:
        for answer in left:
            log.append(answer)
            answers.append(answer)
            bar.set_postfix_str(f"{answer.method} {answer.seconds:.2f} s")
            bar.update()
