"""A checkpoint in Hugging Face's form, before it is converted: where it lies, whether it is whole, what it needs.

Staging makes a folder of links beside it in which mlx-lm finds what the checkpoint means: a config in the words that
mlx-lm reads, and weights in `.bin` files, which it does not read, as safetensors. This file converts nothing.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from huggingface_hub import snapshot_download
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS, load_config

from diversed_mlx.config import faithful_config
from diversed_mlx.convert.torch_file import read_tensors
from diversed_mlx.errors import DiversedError
from diversed_mlx.hub import cached, locate, resolve

DTYPES = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes of a weight
WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U32": 4}  # other types have one byte
BIN_WEIGHTS = "pytorch_model*.bin"
BESIDE_WEIGHTS = [pattern for pattern in DEFAULT_ALLOW_PATTERNS if "safetensors" not in pattern]

Progress = Callable[[str], None]


def fetch(source: str, progress: Progress) -> Path:
    """Find the folder of a checkpoint with its weights, downloaded if it must be.

    Args:
        source: alias, folder or Hub id.
        progress: told of a download.

    Raises:
        DiversedError: nothing there, no network, or no weights.
    """
    name = resolve(source)
    if cached(name) is None:
        progress(f"downloading {name}")
    folder = locate(name)
    if not Path(name).expanduser().is_dir() and not any(folder.glob("model*.safetensors")):
        folder = download(name, [*BESIDE_WEIGHTS, BIN_WEIGHTS])
    if not weight_files(folder):
        raise DiversedError(f"{source} holds no weights: neither model*.safetensors nor {BIN_WEIGHTS}")
    return folder


def download(name: str, patterns: list[str]) -> Path:
    """Get files of a checkpoint from the Hub.

    Args:
        name: the Hub id.
        patterns: of the files that are wanted.

    Raises:
        DiversedError: no such model, or no network.
    """
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # each HTTP library has its own errors for a network that is not there
        raise DiversedError(
            f"{name} is not in the local Hub cache, and the Hub does not give it: {one_line(error)}"
        ) from error


def weight_files(folder: Path) -> list[Path]:
    """List the weights that a conversion reads: safetensors, and `.bin` files only where there are none."""
    return sorted(folder.glob("model*.safetensors")) or sorted(folder.glob(BIN_WEIGHTS))


def staged_bytes(folder: Path) -> int:
    """Count the bytes that staging writes beside links: `.bin` files as safetensors."""
    return sum(file.stat().st_size for file in weight_files(folder) if file.suffix == ".bin")


def output_bytes(folder: Path, nbytes: Callable[[int, int], int]) -> int:
    """Estimate what a conversion will write, with what lies beside the weights.

    Args:
        folder: the checkpoint.
        nbytes: of a number of weights that had a number of bytes each.

    Raises:
        DiversedError: weights that are cut off or damaged.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    told = DTYPES.get(str(config.get("torch_dtype") or config.get("dtype")), 2)
    total = 2**20 + sum(file.stat().st_size for file in folder.glob("*.json"))
    for file in weight_files(folder):
        if file.suffix == ".bin":
            total += nbytes(file.stat().st_size // told, told)
            continue
        for entry in read_header(file).values():
            count, width = int(np.prod(entry["shape"], dtype=np.int64)), WIDTHS.get(entry["dtype"], 1)
            total += nbytes(count, width)
    return total


def read_header(file: Path) -> dict[str, Any]:
    """Read which tensors a safetensors file announces, and check that it is as long as they are.

    Args:
        file: its path.

    Raises:
        DiversedError: it is cut off or damaged.
    """
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > file.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if 8 + length + end != file.stat().st_size:
            raise ValueError(f"it has {file.stat().st_size} bytes and announces {8 + length + end}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise DiversedError(f"{file} is cut off or damaged: {one_line(error)}") from error
    return header


def stage(folder: Path, staged: Path, source: str, progress: Progress) -> dict[str, Any]:
    """Make a folder in which mlx-lm finds what the checkpoint means.

    Args:
        folder: the checkpoint.
        staged: an empty folder.
        source: how messages call the checkpoint.
        progress: told which files are read.

    Returns:
        The config in mlx-lm's words.

    Raises:
        DiversedError: a checkpoint that is not whole, damaged, hostile, or that mlx-lm cannot express.
    """
    weights = weight_files(folder)
    for file in folder.iterdir():
        if file.is_file() and file.name != "config.json" and file.suffix != ".bin":
            (staged / file.name).symlink_to(file.resolve())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= faithful_config(load_config(folder))
    (staged / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _require_all_shards(folder, weights)
    for number, file in enumerate(weights):
        if file.suffix != ".bin":
            read_header(file)
            continue
        progress(f"reading {file.name}")
        arrays = {}
        for name, tensor in read_tensors(file).items():
            if tensor.dtype == "float64":
                raise DiversedError(f"{file}: {name} is float64, which MLX does not compute with; save it as float32")
            array = mx.array(np.ascontiguousarray(tensor.values))
            arrays[name] = array.view(mx.bfloat16) if tensor.dtype == "bfloat16" else array
        try:
            mx.save_safetensors(str(staged / f"model-{number:05d}.safetensors"), arrays, metadata={"format": "pt"})
        except (OSError, RuntimeError) as error:
            raise DiversedError(f"cannot write the weights of {source} anew: {one_line(error)}") from error
    return config


def _require_all_shards(folder: Path, weights: list[Path]) -> None:
    suffix = weights[0].suffix
    index = folder / ("model.safetensors.index.json" if suffix == ".safetensors" else "pytorch_model.bin.index.json")
    if not index.is_file():
        return
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DiversedError(f"{index} cannot be read: {one_line(error)}") from error
    if missing := sorted(named - {file.name for file in weights}):
        raise DiversedError(f"{folder} is not whole: {', '.join(missing[:3])} of {len(named)} files missing")


def one_line(error: BaseException) -> str:
    """Put a foreign error into one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "..."
