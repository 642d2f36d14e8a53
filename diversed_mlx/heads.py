"""Finding the head that belongs to a pair: a folder, a Hub id, or the name of a task trained on this machine."""

import json
import os
from pathlib import Path

from huggingface_hub import snapshot_download

from .errors import DiversedError
from .head import METADATA_FILE, WEIGHTS_FILE, EnsembleHead
from .pair import Pair


def heads_folder() -> Path:
    """Where trained heads are kept: `heads` in DIVERSED_HOME, by default in ~/.cache/diversed."""
    return Path(os.environ.get("DIVERSED_HOME", "~/.cache/diversed")).expanduser() / "heads"


def load_head(source: str | Path, pair: Pair) -> EnsembleHead:
    """Load a head and check that it fits a pair.

    Args:
        source: a folder that `EnsembleHead.save` wrote, a Hub id, or the name of a task in `heads_folder()`.
        pair: the pair that it will verify for.

    Raises:
        DiversedError: no such head, a damaged one, or one for models of other sizes.
    """
    if pair.draft is None:
        raise DiversedError("a head needs a draft: load the pair with one")
    head = EnsembleHead.load(_locate(str(source)))
    sizes = pair.draft.hidden_size, pair.target.hidden_size
    if (head.draft_size, head.target_size) != sizes:
        raise DiversedError(
            f"the head {source} is for a draft of width {head.draft_size} and a target of width {head.target_size}, "
            f"and this pair has {sizes[0]} and {sizes[1]}: use a head that was trained for it"
        )
    return head


def find_head(pair: Pair) -> Path | None:
    """Find the newest head on this machine that was trained for a pair.

    Args:
        pair: the pair, whose models are known by the name or folder that they were loaded from.

    Returns:
        The folder to give to `load_head`, or None.
    """
    if pair.draft is None:
        return None
    wanted = {"draft": pair.draft.name, "target": pair.target.name}
    found = []
    for metadata in heads_folder().glob(f"*/{METADATA_FILE}"):
        try:
            described = json.loads(metadata.read_text(encoding="utf-8"))
            if described["pair"] == wanted:
                found.append((metadata.stat().st_mtime, metadata.parent))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # something else that lies there; naming it with --head says what is wrong
    return max(found)[1] if found else None


def _locate(source: str) -> Path:
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise DiversedError(f"{source} is a file; give the folder that holds {WEIGHTS_FILE} and {METADATA_FILE}")
    trained = heads_folder() / source
    if trained.is_dir():
        return trained
    if source.count("/") != 1 or source.startswith((".", "~", "/")):
        raise DiversedError(f"no head {source}: neither a folder, nor a head in {heads_folder()}, nor a Hub id")
    files = [WEIGHTS_FILE, METADATA_FILE]
    try:
        return Path(snapshot_download(source, allow_patterns=files))
    except Exception as error:  # each HTTP library has its own errors for a network that is not there
        raise DiversedError(
            f"the head {source} is not on this machine and the Hub does not give it: {error}"
        ) from error
