"""Heads to and from the research layout, bit by bit and without PyTorch.

The research layout is `ensemble_head.bin`, a dictionary of the tensors `summary.weight` and `summary.bias` as torch
saves it, and beside it `ensemble_config.json`, which says what `head.json` says and in which order the rows and the
inputs stand. The tensors are the same in both layouts; this file checks them and moves them.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from huggingface_hub import HfApi, snapshot_download

from diversed_mlx.convert.output import new_folder, require_new, writing
from diversed_mlx.convert.torch_file import Tensor, read_tensors, write_tensors
from diversed_mlx.errors import DiversedError
from diversed_mlx.head import BENCH, METADATA_FIELDS, METADATA_FILE, WEIGHTS_FILE, EnsembleHead, recorded_fields

TORCH_FILE = "ensemble_head.bin"
TORCH_CONFIG = "ensemble_config.json"
KEYS = ("summary.weight", "summary.bias")
ORDER = ["draft", "target"]  # of the inputs and of the rows, in the research code and here
FLOATS = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}

# Released without a config: known by the bits of its tensors. Draft width, target width, and what it was trained for.
RELEASED = {
    "c66a444108df838e7b6ca84ad42b708c9d16c84b5f7c95e4d5f64eb0cfa1fcbc": (
        2048,
        4096,
        {"draft": "Llama-3.2-1B-Instruct", "target": "Llama-3.1-8B-Instruct"},
    ),
}


def convert_head(
    source: str,
    out: str | Path,
    to: Literal["mlx", "torch"],
    *,
    draft_size: int | None = None,
    target_size: int | None = None,
    pair: dict[str, str] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> EnsembleHead:
    """Write a head in the other layout.

    Args:
        source: its folder or Hub id; for the research layout its `.bin` file too.
        out: the folder to make.
        to: "mlx" reads the research layout and writes `head.safetensors` and `head.json`; "torch" the other way.
        draft_size: width of the draft that it is for; needed where no config says it, else checked.
        target_size: the same of the target.
        pair: what `head.json` shall record of the pair, from `heads.identity`. Default None, what the config says.
        note: told what the user should know beside errors.

    Raises:
        DiversedError: a head that is missing, damaged, hostile or for other models, or a place that cannot be written.
    """
    out = require_new(out)
    if to == "mlx":
        head = read_torch_head(source, draft_size=draft_size, target_size=target_size, note=note)
    else:
        head = EnsembleHead.load(_locate(source, [WEIGHTS_FILE, METADATA_FILE]))
        _require_sizes(source, head, draft_size, target_size)
    if pair is not None:
        head.metadata["pair"] = pair
    with new_folder(out) as folder:
        if to == "mlx":
            head.save(folder)
        else:
            write_torch_head(head, folder)
    return head


def read_torch_head(
    source: str | Path,
    *,
    draft_size: int | None = None,
    target_size: int | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> EnsembleHead:
    """Read a head in the research layout.

    Args:
        source: the file `ensemble_head.bin`, the folder that holds it, or a Hub id.
        draft_size: width of the draft that it is for; needed where no config says it, else checked.
        target_size: the same of the target.
        note: told of entries of the config that `head.json` has no place for.

    Raises:
        DiversedError: a file that is missing, damaged or hostile, tensors that are no head, or sizes that disagree.
    """
    path = _locate(str(source), [TORCH_FILE, TORCH_CONFIG])
    if path.is_dir():
        path = path / TORCH_FILE
    if not path.is_file():
        raise DiversedError(f"{path.parent} holds no head in the research layout: {path.name} is missing")
    tensors = read_tensors(path)
    _require_keys(path, tensors)
    config = _read_config(path.parent / TORCH_CONFIG)
    sizes = _sizes(path, tensors, config, draft_size, target_size)
    expected = {"summary.weight": (2, sum(sizes)), "summary.bias": (2,)}
    for name, tensor in tensors.items():
        _require_sound(f"{path}: {name}", tensor, expected[name], sizes)
    released = RELEASED.get(_digest(tensors))
    metadata: dict[str, Any] = recorded_fields(config)
    if released is not None and metadata["pair"] is None:
        metadata["pair"] = released[2]
    known = {*METADATA_FIELDS, BENCH, "draft_size", "target_size", "inputs", "rows"}
    if unknown := sorted(config.keys() - known):
        note(f"{TORCH_CONFIG} also says {', '.join(unknown)}, which {METADATA_FILE} has no place for")
    head = EnsembleHead(*sizes, metadata)
    head.summary.weight, head.summary.bias = (_to_mlx(tensors[name]) for name in KEYS)
    return head


def write_torch_head(head: EnsembleHead, folder: Path) -> None:
    """Write a head in the research layout.

    Args:
        head: the head.
        folder: where `ensemble_head.bin` and `ensemble_config.json` shall appear; it exists.

    Raises:
        DiversedError: it cannot be written.
    """
    write_tensors(folder / TORCH_FILE, {name: _from_mlx(head.summary[name.split(".")[1]]) for name in KEYS})
    described = {"draft_size": head.draft_size, "target_size": head.target_size, "inputs": ORDER, "rows": ORDER}
    recorded = recorded_fields(head.metadata)
    with writing(folder / TORCH_CONFIG) as partial:
        partial.write_text(json.dumps(described | recorded, indent=2) + "\n", encoding="utf-8")


def upload(folder: Path, repo: str) -> None:
    """Push a converted head to the Hub.

    Args:
        folder: what `convert_head` wrote.
        repo: the Hub id, made if it does not exist.

    Raises:
        DiversedError: the Hub cannot be reached or refuses it.
    """
    try:
        api = HfApi()
        api.create_repo(repo, exist_ok=True)
        api.upload_folder(folder_path=str(folder), repo_id=repo)
    except Exception as error:  # each HTTP library has its own errors for a network that is not there
        raise DiversedError(
            f"{folder} is written, but the Hub does not take it as {repo}: {str(error).splitlines()[0]}"
        ) from error


def _locate(source: str, files: list[str]) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        return path
    if source.count("/") != 1 or source.startswith((".", "~", "/")):
        raise DiversedError(f"no head {source}: neither a file or a folder, nor a Hub id")
    try:
        return Path(snapshot_download(source, allow_patterns=files))
    except Exception as error:  # as above
        raise DiversedError(
            f"the head {source} is not on this machine and the Hub does not give it: {str(error).splitlines()[0]}"
        ) from error


def _read_config(path: Path) -> dict[str, Any]:
    """The config, empty where there is none; refuses one that says that rows or inputs stand the other way round."""
    if not path.exists():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DiversedError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise DiversedError(f"{path} must hold a JSON object, not a {type(config).__name__}")
    for field, what in (("rows", "the rows of summary.weight"), ("inputs", "the hidden states")):
        if field in config and config[field] != ORDER:
            raise DiversedError(
                f"{path}: {what} must stand in the order draft, target, and this head has {config[field]!r}: it would "
                f"trust the wrong model"
            )
    return config


def _require_keys(path: Path, tensors: dict[str, Tensor]) -> None:
    if missing := [name for name in KEYS if name not in tensors]:
        found = ", ".join(tensors) or "nothing"
        raise DiversedError(f"{path} is no head: {' and '.join(missing)} missing; it holds {found[:200]}")
    if extra := sorted(tensors.keys() - set(KEYS)):
        raise DiversedError(f"{path} is no head of this kind: it also holds {', '.join(extra)[:200]}")


def _sizes(
    path: Path, tensors: dict[str, Tensor], config: dict[str, Any], draft_size: int | None, target_size: int | None
) -> tuple[int, int]:
    """Both widths, from the config, else from the table of released heads, else as they were given."""
    asked = {"draft_size": draft_size, "target_size": target_size}
    released = RELEASED.get(_digest(tensors))
    told = {name: config.get(name) for name in asked}
    if released is not None:
        told = dict(zip(asked, released[:2], strict=True))
    sizes = []
    for name, given in asked.items():
        value = given if told[name] is None else told[name]
        if value is None:
            raise DiversedError(
                f"{path}: no {TORCH_CONFIG} beside it says {name}: give --draft-size and --target-size, or "
                f"--draft and --target"
            )
        if type(value) is not int or value < 1:
            raise DiversedError(f"{path.parent / TORCH_CONFIG}: {name} must be a positive integer, not {value!r}")
        sizes.append(value)
    for name, given, size in zip(asked, asked.values(), sizes, strict=True):
        if given is not None and given != size:
            raise DiversedError(
                f"{path} is for a draft of width {sizes[0]} and a target of width {sizes[1]}, and the {name} of this "
                f"pair is {given}: use a head that was trained for it"
            )
    return sizes[0], sizes[1]


def _require_sizes(source: str, head: EnsembleHead, draft_size: int | None, target_size: int | None) -> None:
    wanted = (draft_size or head.draft_size, target_size or head.target_size)
    if (head.draft_size, head.target_size) != wanted:
        raise DiversedError(
            f"the head {source} is for a draft of width {head.draft_size} and a target of width {head.target_size}, "
            f"and this pair has {wanted[0]} and {wanted[1]}: use a head that was trained for it"
        )


def _require_sound(what: str, tensor: Tensor, shape: tuple[int, ...], sizes: tuple[int, int]) -> None:
    if tensor.dtype not in FLOATS:
        raise DiversedError(f"{what} is {tensor.dtype}; a head is {', '.join(FLOATS)}")
    if tensor.values.shape == shape[::-1] != shape:
        raise DiversedError(f"{what} has the shape {tensor.values.shape}: it is transposed, and must be {shape}")
    if tensor.values.shape != shape:
        raise DiversedError(
            f"{what} has the shape {tensor.values.shape}, but a draft of width {sizes[0]} and a target of width "
            f"{sizes[1]} need {shape}: it was trained for another pair"
        )
    if not mx.all(mx.isfinite(_to_mlx(tensor))).item():
        raise DiversedError(f"{what} holds NaN or infinity: train the head again")


def _digest(tensors: dict[str, Tensor]) -> str:
    """Hash of the tensors, by which a released head is known whatever zip it lies in."""
    digest = hashlib.sha256()
    for name in KEYS:
        digest.update(tensors[name].dtype.encode() + np.ascontiguousarray(tensors[name].values).tobytes())
    return digest.hexdigest()


def _to_mlx(tensor: Tensor) -> mx.array:
    array = mx.array(np.ascontiguousarray(tensor.values))
    return array.view(mx.bfloat16) if tensor.dtype == "bfloat16" else array


def _from_mlx(array: mx.array) -> Tensor:
    name = next((name for name, dtype in FLOATS.items() if dtype == array.dtype), None)
    if name is None:
        raise DiversedError(f"a head of {array.dtype} cannot be exchanged; it must be {', '.join(FLOATS)}")
    return Tensor(name, np.array(array.view(mx.uint16) if name == "bfloat16" else array))
