"""Models from Hugging Face's form to MLX's: mlx-lm's converter, behind checks and in front of one.

The converter is mlx-lm's. `checkpoint.py` puts what it reads into words that it understands, and `self_check.py`
compares the result with the source. A pair is known to be one before anything long begins.
"""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, Literal

import mlx.core as mx
from huggingface_hub import ModelCard
from mlx_lm.convert import convert
from mlx_lm.utils import load_config, load_model, load_tokenizer, upload_to_hub

from diversed_mlx.config import faithful_config
from diversed_mlx.convert.checkpoint import (
    BESIDE_WEIGHTS,
    DTYPES,
    Progress,
    download,
    fetch,
    one_line,
    output_bytes,
    read_header,
    stage,
    staged_bytes,
)
from diversed_mlx.convert.output import new_folder, require_new, require_space
from diversed_mlx.convert.self_check import check_conversion
from diversed_mlx.errors import DiversedError
from diversed_mlx.hub import cached, resolve
from diversed_mlx.lm import LM
from diversed_mlx.pair import Pair

MODES = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}  # mlx-lm's group size and bits
TELL_EVERY = 5.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How weights are stored; names and defaults are mlx-lm's.

    Args:
        quantize: quantise. Default False.
        q_bits: bits of a weight. Default None, what the mode has, 4 or 8.
        q_group_size: weights that share a scale. Default None, what the mode has.
        q_mode: affine, mxfp4, nvfp4 or mxfp8. Default affine.
        dtype: type of what is not quantised. Default None, what the config says, else that of the weights.

    Raises:
        DiversedError: values that do not go together.
    """

    quantize: bool = False
    q_bits: int | None = None
    q_group_size: int | None = None
    q_mode: Literal["affine", "mxfp4", "nvfp4", "mxfp8"] = "affine"
    dtype: Literal["float16", "bfloat16", "float32"] | None = None

    def __post_init__(self):
        if self.q_mode not in MODES:
            raise DiversedError(f"the mode must be one of {', '.join(MODES)}, not {self.q_mode}")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise DiversedError(f"the dtype must be one of {', '.join(DTYPES)}, not {self.dtype}")
        if not self.quantize:
            if (self.q_bits, self.q_group_size, self.q_mode) != (None, None, "affine"):
                raise DiversedError("--q-bits, --q-group-size and --q-mode need -q, which quantises")
            return
        try:  # MLX knows which values go together
            mx.eval(mx.quantize(mx.zeros((32, 512)), self.group_size, self.bits, self.q_mode))
        except (ValueError, RuntimeError) as error:
            raise DiversedError(f"MLX cannot quantise so: {' '.join(str(error).split())}") from error

    @property
    def bits(self) -> int:
        """Bits of a quantised weight."""
        return self.q_bits or MODES[self.q_mode][1]

    @property
    def group_size(self) -> int:
        """Weights that share a scale."""
        return self.q_group_size or MODES[self.q_mode][0]

    def nbytes(self, count: int, width: int) -> int:
        """Estimate the bytes of `count` weights that had `width` bytes each; scales and biases have at most 32 bits."""
        width = DTYPES.get(self.dtype or "", width)
        return int(count * ((self.bits / 8 + 4 / self.group_size) if self.quantize else width))


def convert_model(
    source: str,
    out: str | Path,
    recipe: Recipe = Recipe(),
    *,
    upload_repo: str | None = None,
    trust_remote_code: bool = False,
    check: bool = True,
    progress: Progress = lambda text: None,
) -> None:
    """Convert one model.

    Args:
        source: alias, folder or Hub id of a checkpoint in Hugging Face's form.
        out: the folder to make.
        recipe: how weights are stored. Default, as they are.
        upload_repo: a Hub id to push the result to. Default None.
        trust_remote_code: run Python code that comes with the checkpoint. Default False.
        check: compare the result with the source, where PyTorch is installed. Default True.
        progress: told what is being done, a line at a time.

    Raises:
        DiversedError: a source that cannot be read or said in mlx-lm's words, a place that cannot be written, or a
            result that differs from its source.
    """
    out = require_new(out)
    folder = fetch(source, progress)
    _load_skeleton(folder, source, trust_remote_code)  # what mlx-lm cannot express is refused early
    require_space(out, output_bytes(folder, recipe.nbytes) + staged_bytes(folder))
    with new_folder(out) as partial:
        _convert(source, folder, partial / "model", recipe, trust_remote_code, check, progress)
        _lift(partial / "model", partial)
    _upload(out, upload_repo, progress)


def convert_pair(
    draft: str,
    target: str,
    out: str | Path,
    recipe: Recipe = Recipe(),
    *,
    upload_repo: str | None = None,
    trust_remote_code: bool = False,
    check: bool = True,
    progress: Progress = lambda text: None,
) -> None:
    """Convert a draft and a target to `out`/draft and `out`/target, after making sure that they are a pair.

    Args:
        draft: alias, folder or Hub id of the model that proposes.
        target: the same of the model that answers.
        out: the folder to make; both models appear in it, or neither.
        recipe: how the weights of both are stored. Default, as they are.
        upload_repo: Hub ids to push to, with -draft and -target added. Default None.
        trust_remote_code: run Python code that comes with a checkpoint. Default False.
        check: compare the results with their sources, where PyTorch is installed. Default True.
        progress: told what is being done, a line at a time.

    Raises:
        DiversedError: as for `convert_model`, or two models that are no pair.
    """
    out = require_new(out)
    progress("checking that the two are a pair")
    sources = {"draft": draft, "target": target}
    skeletons = {role: _skeleton(source, trust_remote_code) for role, source in sources.items()}
    Pair(skeletons["target"], skeletons["draft"])
    folders = {role: fetch(source, progress) for role, source in sources.items()}
    needed = [output_bytes(folder, recipe.nbytes) for folder in folders.values()]
    require_space(out, sum(needed) + max(map(staged_bytes, folders.values())))
    with new_folder(out) as partial:
        for role, source in sources.items():
            progress(f"{role}: {source}")
            _convert(source, folders[role], partial / role, recipe, trust_remote_code, check, progress)
    if upload_repo is not None:
        for role in sources:
            _upload(out / role, f"{upload_repo}-{role}", progress)


# Before ---------------------------------------------------------------------------------------------------------------


def _skeleton(source: str, trust_remote_code: bool) -> LM:
    """A model without its weights: config, tokenizer and shapes are all that the checks of a pair look at."""
    folder = cached(resolve(source)) or download(resolve(source), BESIDE_WEIGHTS)
    return _load_skeleton(folder, source, trust_remote_code)


def _load_skeleton(folder: Path, source: str, trust_remote_code: bool) -> LM:
    try:
        config = load_config(folder)
        overrides = faithful_config(config)
        with TemporaryDirectory() as scratch:  # without weights none are read, and lazily none are made
            bare = Path(scratch)
            for file in folder.iterdir():
                if file.is_file() and file.suffix not in (".safetensors", ".bin"):
                    (bare / file.name).symlink_to(file.resolve())
            model, config = load_model(
                bare, lazy=True, strict=False, model_config=overrides, trust_remote_code=trust_remote_code
            )
            tokenizer = load_tokenizer(
                bare, {"trust_remote_code": trust_remote_code}, eos_token_ids=config.get("eos_token_id")
            )
        return LM(model, tokenizer, config, source)
    except DiversedError as error:
        raise DiversedError(f"{source}: {error}") from error
    # A foreign checkpoint can fail in any of these ways, and none of them is a bug of ours.
    except (
        OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, AssertionError, ImportError, SystemExit,
    ) as error:  # fmt: skip
        raise DiversedError(f"cannot load {source}: {one_line(error)}") from error


# The conversion -------------------------------------------------------------------------------------------------------


class _Lines(io.TextIOBase):
    """Hands the lines that mlx-lm prints to `progress`, for only the command line prints."""

    def __init__(self, progress: Progress):
        self._progress = progress
        self._begun = ""

    def write(self, text: str, /) -> int:
        """Take text, and hand on what is a whole line."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if said := line.removeprefix("[INFO]").strip():
                self._progress(said.lower())
        return len(text)


@contextlib.contextmanager
def _telling_how_much(folder: Path, expected: int, progress: Progress) -> Iterator[None]:
    """Say now and then how much of a folder is written, for mlx-lm does not."""
    finished = Event()

    def watch() -> None:
        while not finished.wait(TELL_EVERY):
            written = sum(file.stat().st_size for file in folder.glob("model*.safetensors"))
            if written:
                progress(f"{written / 1e9:.2f} of about {expected / 1e9:.2f} GB written")

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _convert(
    source: str,
    folder: Path,
    out: Path,
    recipe: Recipe,
    trust_remote_code: bool,
    check: bool,
    progress: Progress,
) -> None:
    """Stage, convert and check one model; `out` is inside a folder that is removed if this fails."""
    out.parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=".staged-") as scratch:
        staged = Path(scratch)
        config = stage(folder, staged, source, progress)
        if recipe.quantize and ("quantization" in config or "quantization_config" in config):
            raise DiversedError(f"{source} is quantised already: convert it without -q, or start from its original")
        told = config.get("torch_dtype") or config.get("dtype")
        try:
            expected = output_bytes(folder, recipe.nbytes)
            with contextlib.redirect_stdout(_Lines(progress)), _telling_how_much(out, expected, progress):
                convert(
                    str(staged),
                    str(out),
                    quantize=recipe.quantize,
                    q_group_size=recipe.q_group_size,
                    q_bits=recipe.q_bits,
                    q_mode=recipe.q_mode,
                    dtype=recipe.dtype or told,  # transformers 5 writes `dtype`, which mlx-lm does not look for
                    trust_remote_code=trust_remote_code,
                )
        except (
            OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, AssertionError, ImportError,
            SystemExit,
        ) as error:  # fmt: skip
            raise DiversedError(f"cannot convert {source}: {one_line(error)}") from error
        for file in sorted(out.glob("model*.safetensors")):
            read_header(file)  # a disk that filled up leaves a file that is shorter than it announces
        if not Path(source).expanduser().exists():  # mlx-lm saw a folder only
            card: Any = ModelCard.load(out / "README.md")
            card.data.base_model = resolve(source)
            card.save(out / "README.md")
        if check:
            progress("comparing with the source")
            said = check_conversion(folder, staged, out, quantized=recipe.quantize, trust_remote_code=trust_remote_code)
            progress(said)


def _lift(inner: Path, outer: Path) -> None:
    """Move a finished model one folder up, so that one rename makes it appear."""
    for file in inner.iterdir():
        file.rename(outer / file.name)
    inner.rmdir()


def _upload(out: Path, repo: str | None, progress: Progress) -> None:
    if repo is None:
        return
    progress(f"uploading to {repo}")
    try:
        upload_to_hub(str(out), repo)
    except Exception as error:  # as for a download
        raise DiversedError(f"{out} is written, but the Hub does not take it as {repo}: {one_line(error)}") from error
