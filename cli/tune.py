"""`diversed tune`: what drafting costs and gains on this machine, and the draft length that pays."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diversed_mlx.cli import options as flags
from diversed_mlx.cli.printer import use_colour
from diversed_mlx.errors import DiversedError

if TYPE_CHECKING:
    from diversed_mlx.tuning.store import Tuning


def _depths(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text} is not numbers of tokens by commas, such as 64,1024")
    return [int(part) for part in parts]


def tune(
    draft: flags.Draft = None,
    target: flags.Target = None,
    trust_remote_code: flags.TrustRemoteCode = False,
    verifier: flags.VerifierOption = None,
    target_weight: flags.TargetWeight = None,
    head: flags.Head = None,
    strictness: flags.Strictness = None,
    lenience: flags.Lenience = None,
    alpha: flags.Alpha = None,
    rule: flags.RuleOption = None,
    depths: Annotated[
        Any,
        typer.Option(
            parser=_depths, metavar="N,N", help="Tokens in the context when passes are timed.", show_default="64,1024"
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts to answer, one a line; four of ours otherwise.")
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-m", min=16, help="Most tokens of an answer.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each pass is timed.")] = 10,
    seed: flags.Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else.")] = False,
) -> None:
    """Measure which draft length pays on this machine, for --num-draft-tokens auto to start from."""
    verifying = flags.VerifierFlags(
        verifier=verifier,
        target_weight=target_weight,
        head=head,
        strictness=strictness,
        lenience=lenience,
        alpha=alpha,
        rule=rule,
    )
    if verifying.verifier is flags.VerifierName.none:
        raise typer.BadParameter("--verifier none drafts nothing, so there is nothing to tune")
    texts = _read_prompts(prompt_file) if prompt_file is not None else None
    if target is not None and draft is None:
        raise DiversedError("there is nothing to tune without a draft: add --draft")
    models = flags.ModelFlags(
        draft=draft, target=target, trust_remote_code=trust_remote_code, verifying=verifying, need_draft=[]
    )

    from tqdm import tqdm

    from diversed_mlx.tuning.forecast import BUSY
    from diversed_mlx.tuning.measure import measure, ticks
    from diversed_mlx.tuning.store import save
    from diversed_mlx.tuning.trial import PROMPTS

    pair = models.load()
    chosen = verifying.build(pair)
    assert chosen is not None
    prompts = texts if texts is not None else PROMPTS
    with tqdm(total=ticks(prompts, repeats), unit="turn", leave=False, dynamic_ncols=True) as bar:

        def tick() -> None:
            bar.update()

        tuning = measure(
            pair,
            chosen,
            depths=depths,
            prompts=prompts,
            repeats=repeats,
            max_tokens=max_tokens,
            seed=seed,
            tick=tick,
        )
    try:  # before anything is printed: what took a minute must not hang on who reads it
        kept = f"kept in {save(tuning)}: --num-draft-tokens auto starts from it"
    except DiversedError as error:
        kept = f"warning: {error}, so --num-draft-tokens auto will not start from it"
    if as_json:
        typer.echo(json.dumps(tuning.to_json()))
    else:
        _tell(tuning, repeats)
    if (spread := max(cost.spread for cost in tuning.costs)) > BUSY:
        flags.note(f"warning: the same pass took times {spread:.0%} apart; measure again when the machine is less busy")
    flags.note(kept)


def _read_prompts(path: Path) -> list[str]:
    try:
        prompts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise DiversedError(f"cannot read {path}: {error}") from error
    if not prompts:
        raise DiversedError(f"{path} holds no prompt: write one a line")
    return prompts


def _tell(tuning: "Tuning", repeats: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(no_color=not use_colour(), width=None if use_colour() else 100)
    passes = Table(title=f"forward passes in ms, medians of {repeats}")
    for column in ("", *(f"{cost.depth} tokens deep" for cost in tuning.costs)):
        passes.add_column(column, justify="right" if column else "left")
    passes.add_row("draft step", *(f"{1e3 * cost.draft_step:.2f}" for cost in tuning.costs))
    for index in range(len(tuning.costs[0].passes)):
        name = "target step" if index == 0 else f"target over {index + 1} tokens"
        passes.add_row(name, *(f"{1e3 * cost.passes[index]:.2f}" for cost in tuning.costs))
    console.print(passes)

    speeds = Table(title=f"expected tokens/s, {tuning.verifier}")
    for column in ("drafted", *(f"T = {each.temp:g}, {each.depth} deep" for each in tuning.forecasts)):
        speeds.add_column(column, justify="right")
    for length in range(len(tuning.forecasts[0].speeds)):
        speeds.add_row(
            str(length) if length else "0, plain", *(f"{each.speeds[length]:.1f}" for each in tuning.forecasts)
        )
    console.print(speeds)
    for line in _advice(tuning):
        typer.echo(line)


def _advice(tuning: "Tuning") -> list[str]:
    from diversed_mlx.tuning.forecast import gain_over_plain, recommend

    lines = []
    for trial in tuning.trials:
        forecasts = tuning.at(trial.temp)
        length, gains = recommend(forecasts), gain_over_plain(forecasts)
        begin = f"temperature {trial.temp:g}, acceptance {trial.acceptance:.0%} a token: "
        if length:
            lines.append(f"{begin}--num-draft-tokens {length}, {gains[length]:.2f} times plain decoding")
        else:
            best = max(range(1, len(gains)), key=gains.__getitem__)
            lines.append(
                f"{begin}speculation does not pay here (at best {gains[best]:.2f} times plain decoding, with {best} "
                f"drafted): --verifier none"
            )
    return lines
