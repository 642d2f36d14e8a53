"""Finding the head that belongs to a pair: a folder, a Hub id, or the name of a task trained on this machine."""

import json
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from .errors import DiversedError
from .head import METADATA_FILE, WEIGHTS_FILE, EnsembleHead
from .home import home
from .pair import Pair

EMBEDDED_HEAD = Path(__file__).parent / "tiny" / "head"  # for the pair that ships in the package


def heads_folder() -> Path:
    """Where trained heads are kept: `heads` in DIVERSED_HOME, by default in ~/.cache/diversed."""
    return home() / "heads"


def identity(pair: Pair) -> dict[str, str]:
    """What `head.json` records of a pair: the models' names, and the hashes by which they are known again.

    Args:
        pair: with a draft.
    """
    assert pair.draft is not None
    return {
        "draft": pair.draft.name,
        "target": pair.target.name,
        "draft_fingerprint": pair.draft.fingerprint,
        "target_fingerprint": pair.target.fingerprint,
    }


def load_head(source: str | Path, pair: Pair) -> EnsembleHead:
    """Load a head and check that it fits a pair.

    Args:
        source: a folder that `EnsembleHead.save` wrote, a Hub id, or the name of a task whose head was trained for this
            pair on this machine.
        pair: the pair that it will verify for.

    Raises:
        DiversedError: no such head, a damaged one, or one for other models.
    """
    if pair.draft is None:
        raise DiversedError("a head needs a draft: load the pair with one")
    head = EnsembleHead.load(_locate(str(source), pair))
    sizes = pair.draft.hidden_size, pair.target.hidden_size
    if (head.draft_size, head.target_size) != sizes:
        raise DiversedError(
            f"the head {source} is for a draft of width {head.draft_size} and a target of width {head.target_size}, "
            f"and this pair has {sizes[0]} and {sizes[1]}: use a head that was trained for it"
        )
    if not _is_for(head.metadata.get("pair"), pair, by_name=False):
        trained = head.metadata["pair"]
        raise DiversedError(
            f"the head {source} was trained for the draft {trained['draft']} and the target {trained['target']}, and "
            f"these are other models, though of the same widths: use a head that was trained for them"
        )
    return head


def other_task(head: EnsembleHead, task: str) -> str | None:
    """Tell which task a head was trained for, where it is another: it then keeps its acceptance and loses quality.

    Args:
        head: with the metadata of its `head.json`.
        task: what it is to be used on.

    Returns:
        The other task's name, or None where it is the same or not recorded.
    """
    trained = head.metadata.get("task")
    return trained if isinstance(trained, str) and trained != task else None


def find_head(pair: Pair, task: str | None = None) -> Path | None:
    """Find the newest head on this machine that was trained for a pair, else the one that ships with it.

    Args:
        pair: the pair, whose models are known by their hashes, or by name where a head records none.
        task: only heads for this task. Default None, any.

    Returns:
        The folder to give to `load_head`, or None.
    """
    if pair.draft is None:
        return None
    found = []
    for path in (*heads_folder().glob(f"*/{METADATA_FILE}"), EMBEDDED_HEAD / METADATA_FILE):
        try:
            described = json.loads(path.read_text(encoding="utf-8"))
            if _is_for(described["pair"], pair, by_name=True) and task in (None, described.get("task")):
                found.append((path.parent != EMBEDDED_HEAD, path.stat().st_mtime, path.parent))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # something else that lies there; naming it with --head says what is wrong
    return max(found)[2] if found else None


def _is_for(described: Any, pair: Pair, *, by_name: bool) -> bool:
    """Tell whether `head.json` speaks of this pair; where it has no hashes, the names decide or nothing does."""
    try:
        if "target_fingerprint" in described:
            of = identity(pair)
            return all(described[f"{role}_fingerprint"] == of[f"{role}_fingerprint"] for role in ("draft", "target"))
        assert pair.draft is not None
        return not by_name or described == {"draft": pair.draft.name, "target": pair.target.name}
    except (KeyError, TypeError):
        return not by_name


def _locate(source: str, pair: Pair) -> Path:
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise DiversedError(f"{source} is a file; give the folder that holds {WEIGHTS_FILE} and {METADATA_FILE}")
    trained = heads_folder() / source
    if trained.is_dir():
        return trained
    if (of_task := find_head(pair, source)) is not None:
        return of_task
    if source.count("/") != 1 or source.startswith((".", "~", "/")):
        raise DiversedError(f"no head {source}: neither a folder, nor a head in {heads_folder()}, nor a Hub id")
    files = [WEIGHTS_FILE, METADATA_FILE]
    try:
        return Path(snapshot_download(source, allow_patterns=files))
    except Exception as error:  # each HTTP library has its own errors for a network that is not there
        raise DiversedError(
            f"the head {source} is not on this machine and the Hub does not give it: {error}"
        ) from error
