"""`diversed convert`: models and heads between Hugging Face, PyTorch and MLX, and the check that both agree."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diversed_mlx.cli.help import Command, Group
from diversed_mlx.cli.options import note
from diversed_mlx.errors import DiversedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diversed_mlx.convert.models import Recipe
    from diversed_mlx.convert.parity import Row


class Mode(StrEnum):
    """Values of --q-mode."""

    affine = "affine"
    mxfp4 = "mxfp4"
    nvfp4 = "nvfp4"
    mxfp8 = "mxfp8"


class Type(StrEnum):
    """Values of --dtype."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"


class Layout(StrEnum):
    """Values of --to."""

    mlx = "mlx"
    torch = "torch"


class Device(StrEnum):
    """Values of --device."""

    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


def _source(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise typer.BadParameter("an empty name")
    return value


MlxPath = Annotated[Path, typer.Option("--mlx-path", help="Folder to make; one that exists is refused.")]
Quantize = Annotated[bool, typer.Option("-q", "--quantize", help="Quantise.")]
QBits = Annotated[
    int | None, typer.Option("--q-bits", help="Bits of a quantised weight.", show_default="4; 8 for mxfp8")
]
QGroupSize = Annotated[
    int | None, typer.Option("--q-group-size", help="Weights that share a scale.", show_default="64 for affine")
]
QMode = Annotated[Mode, typer.Option("--q-mode", help="Kind of quantisation.")]
DType = Annotated[
    Type | None, typer.Option("--dtype", help="Type of what is not quantised.", show_default="the checkpoint's")
]
UploadRepo = Annotated[
    str | None, typer.Option("--upload-repo", callback=_source, help="Hub id to push the result to.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with a checkpoint.")
]
Check = Annotated[bool, typer.Option("--check/--no-check", help="Compare with the source where PyTorch is installed.")]

app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Convert models and heads, and check that MLX and PyTorch agree."
)


@app.command(cls=Command)
def model(
    hf_path: Annotated[
        str, typer.Option("--hf-path", "--model", callback=_source, help="Checkpoint: alias, folder or Hub id.")
    ],
    mlx_path: MlxPath = Path("mlx_model"),
    quantize: Quantize = False,
    q_bits: QBits = None,
    q_group_size: QGroupSize = None,
    q_mode: QMode = Mode.affine,
    dtype: DType = None,
    upload_repo: UploadRepo = None,
    trust_remote_code: TrustRemoteCode = False,
    check: Check = True,
) -> None:
    """Convert a checkpoint to MLX, with mlx-lm's converter."""
    from diversed_mlx.convert.models import convert_model

    recipe = _recipe(quantize, q_bits, q_group_size, q_mode, dtype)
    convert_model(
        hf_path, mlx_path, recipe, upload_repo=upload_repo, trust_remote_code=trust_remote_code, check=check,
        progress=note,
    )  # fmt: skip
    note(f"wrote {mlx_path}")


@app.command(cls=Command)
def pair(
    draft: Annotated[str, typer.Option(callback=_source, help="Model that proposes: alias, folder or Hub id.")],
    target: Annotated[str, typer.Option(callback=_source, help="Model that answers: alias, folder or Hub id.")],
    mlx_path: MlxPath = Path("mlx_pair"),
    quantize: Quantize = False,
    q_bits: QBits = None,
    q_group_size: QGroupSize = None,
    q_mode: QMode = Mode.affine,
    dtype: DType = None,
    upload_repo: UploadRepo = None,
    trust_remote_code: TrustRemoteCode = False,
    check: Check = True,
) -> None:
    """Convert a draft and a target that work together to FOLDER/draft and FOLDER/target."""
    from diversed_mlx.convert.models import convert_pair

    recipe = _recipe(quantize, q_bits, q_group_size, q_mode, dtype)
    convert_pair(
        draft, target, mlx_path, recipe, upload_repo=upload_repo, trust_remote_code=trust_remote_code, check=check,
        progress=note,
    )  # fmt: skip
    note(f"wrote {mlx_path / 'draft'} and {mlx_path / 'target'}")


def _recipe(quantize: bool, q_bits: int | None, q_group_size: int | None, q_mode: Mode, dtype: Type | None) -> "Recipe":
    from diversed_mlx.convert.models import Recipe

    return Recipe(
        quantize=quantize,
        q_bits=q_bits,
        q_group_size=q_group_size,
        q_mode=q_mode.value,  # pyright: ignore[reportArgumentType]  the values are the same, and it checks
        dtype=None if dtype is None else dtype.value,  # pyright: ignore[reportArgumentType]
    )


@app.command(cls=Command)
def head(
    source: Annotated[str, typer.Argument(metavar="IN", callback=_source, help="Head: folder, file or Hub id.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make; one that exists is refused.")],
    to: Annotated[Layout, typer.Option("--to", help="mlx: head.safetensors; torch: ensemble_head.bin.")],
    draft_size: Annotated[int | None, typer.Option(min=1, help="Width of the draft, where no file says it.")] = None,
    target_size: Annotated[int | None, typer.Option(min=1, help="Width of the target, where no file says it.")] = None,
    draft: Annotated[str | None, typer.Option(callback=_source, help="Draft that it must fit.")] = None,
    target: Annotated[str | None, typer.Option(callback=_source, help="Target that it must fit.")] = None,
    upload_repo: UploadRepo = None,
) -> None:
    """Convert a trained head, bit by bit; PyTorch is not needed."""
    if (draft is None) != (target is None):
        raise typer.BadParameter("--draft and --target go together")
    if draft is not None and (draft_size, target_size) != (None, None):
        raise typer.BadParameter("--draft and --target say the widths: leave --draft-size and --target-size out")

    from diversed_mlx.convert.head_files import convert_head, upload

    of_pair = None
    if draft is not None and target is not None:
        from diversed_mlx.heads import identity
        from diversed_mlx.pair import load_pair

        loaded = load_pair(target=target, draft=draft)
        assert loaded.draft is not None
        draft_size, target_size, of_pair = loaded.draft.hidden_size, loaded.target.hidden_size, identity(loaded)
    converted = convert_head(
        source, out, "torch" if to is Layout.torch else "mlx", draft_size=draft_size, target_size=target_size,
        pair=of_pair, note=note,
    )  # fmt: skip
    note(f"wrote {out}: for a draft of width {converted.draft_size} and a target of width {converted.target_size}")
    if upload_repo is not None:
        upload(out, upload_repo)
        note(f"pushed to {upload_repo}")


@app.command(cls=Command)
def parity(
    draft: Annotated[str, typer.Option(callback=_source, help="Draft in Hugging Face's form.")],
    target: Annotated[str, typer.Option(callback=_source, help="Target in Hugging Face's form.")],
    head: Annotated[
        str | None, typer.Option(callback=_source, help="Head of the dynamic method.", show_default="one made up")
    ] = None,
    device: Annotated[Device, typer.Option(help="Where PyTorch computes.")] = Device.cpu,
    dtype: Annotated[Type, typer.Option(help="Type that both compute in.")] = Type.float32,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts, one a line.", show_default="20 of its own")
    ] = None,
    n_prompts: Annotated[int | None, typer.Option(min=1, help="Only the first.", show_default="all")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-m", min=2, help="Tokens of each greedy text.")] = 64,
    positions: Annotated[int, typer.Option(min=1, help="Most positions at which decisions are compared.")] = 5000,
    num_draft_tokens: Annotated[int, typer.Option(min=1, max=64, help="Tokens drafted a round.")] = 4,
    seed: Annotated[int, typer.Option(min=0, max=2**61, help="Of the uniforms.")] = 0,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Compare MLX with PyTorch on a pair; exit status 1 where they differ more than rounding explains."""
    from diversed_mlx.convert.both import TextLength, load_both
    from diversed_mlx.convert.parity import PROMPTS, TOLERANCES, Plan, compare, made_up_head
    from diversed_mlx.heads import load_head

    texts = PROMPTS if prompts is None else _read_prompts(prompts)
    plan = Plan(
        prompts=texts[:n_prompts], positions=positions, seed=seed,
        length=TextLength(max_tokens=max_tokens, num_draft_tokens=num_draft_tokens),
    )  # fmt: skip
    ours, theirs = load_both(draft, target, device.value, dtype.value, trust_remote_code=trust_remote_code)
    assert ours.draft is not None
    if head is None:
        trained = made_up_head(ours.draft.hidden_size, ours.target.hidden_size)
        note("no --head: w comes from a head that was made up")
    else:
        trained = load_head(head, ours)
    rows = compare(ours, theirs, trained, dtype.value, plan, note)
    failed = [row for row in rows if not row.passed]
    if as_json:
        typer.echo(json.dumps(_described(draft, target, head, device, dtype, plan.seed, rows), indent=2))
    else:
        _table(rows, f"MLX and PyTorch on {device}, {dtype}")
        typer.echo(f"tolerances of {dtype}: {TOLERANCES[dtype.value].why}")
    if failed:
        raise DiversedError(f"MLX and PyTorch differ beyond the tolerance in: {', '.join(row.what for row in failed)}")


def _read_prompts(path: Path) -> "Sequence[str]":
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DiversedError(f"cannot read {path}: {error}") from error
    if not (texts := [line for line in lines if line.strip()]):
        raise DiversedError(f"{path} holds no prompt")
    return texts


def _described(
    draft: str, target: str, head: str | None, device: Device, dtype: Type, seed: int, rows: "Sequence[Row]"
) -> dict:
    return {
        "draft": draft, "target": target, "head": head, "device": device.value, "dtype": dtype.value, "seed": seed,
        "passed": all(row.passed for row in rows),
        "rows": [
            {
                "what": row.what, "value": row.value, "limit": row.limit, "at_least": row.at_least,
                "passed": row.passed, "detail": row.detail,
            }
            for row in rows
        ],
    }  # fmt: skip


def _table(rows: "Sequence[Row]", title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from diversed_mlx.cli.printer import use_colour

    table = Table(title=title)
    for column in ("compared", "found", "allowed", "", ""):
        table.add_column(column, justify="right" if column in ("found", "allowed") else "left")
    for row in rows:
        found = f"{row.value:.2%}" if row.at_least else f"{row.value:.1e}"
        limit = f">= {row.limit:.1%}" if row.at_least else f"<= {row.limit:.0e}"
        table.add_row(row.what, found, limit, "ok" if row.passed else "DIFFERS", row.detail)
    Console(no_color=not use_colour(), width=None if use_colour() else 130).print(table)
