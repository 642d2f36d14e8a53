"""`diversed doctor`: can this machine and this pair work, and what to do if not."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from diversed_mlx.cli import options as flags
from diversed_mlx.cli.printer import use_colour

if TYPE_CHECKING:
    from diversed_mlx.doctor.finding import Finding

COLOURS = {"ok": typer.colors.GREEN, "note": typer.colors.YELLOW, "problem": typer.colors.RED}


def doctor(
    draft: flags.Draft = None,
    target: flags.Target = None,
    trust_remote_code: flags.TrustRemoteCode = False,
    context: Annotated[
        int | None,
        typer.Option(
            min=1, max=2**24, help="Tokens for which memory is counted.", show_default="4096, or all the pair holds"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Look at this machine and, if named, at a pair; ends in "ready" or in what to do."""
    from diversed_mlx.doctor.environment import check_environment
    from diversed_mlx.doctor.finding import ready, to_json

    findings = check_environment()
    if not as_json:
        _tell(findings)
    if (draft is not None or target is not None) and ready(findings):
        from diversed_mlx.doctor.models import check_models

        of_models = check_models(
            target or flags.DEFAULT_TARGET, draft, context=context, trust_remote_code=trust_remote_code
        )
        findings += of_models
        if not as_json:
            _tell(of_models)
    if as_json:
        typer.echo(json.dumps(to_json(findings)))
    else:
        problems = [finding for finding in findings if finding.level == "problem"]
        named = "" if draft is not None or target is not None else "; name a pair with --draft and --target to check it"
        typer.echo(f"not ready: {len(problems)} to mend" if problems else f"ready{named}")
    if not ready(findings):
        raise typer.Exit(1)


def _tell(findings: "list[Finding]") -> None:
    for finding in findings:
        level = f"{finding.level:8}"
        if use_colour():
            level = typer.style(level, fg=COLOURS[finding.level])
        typer.echo(f"{level}{finding.subject:16}{finding.found}")
        if finding.remedy is not None:
            typer.echo(f"{'':24}-> {finding.remedy}")
