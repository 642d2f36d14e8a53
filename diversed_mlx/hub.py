"""Where a checkpoint lies: folders, the local Hub cache, the Hub. Knows names and files, no models."""

from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, IncompleteSnapshotError, LocalEntryNotFoundError
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

from .aliases import ALIASES, EMBEDDED
from .errors import DiversedError


def resolve(name: str) -> str:
    """Turn an alias into a Hub id, and a folder into its full path, by which a head knows it again.

    A local folder of an alias's name wins; any other name stays as it is.

    Args:
        name: an alias, a folder or a Hub id.

    Raises:
        DiversedError: an alias of the embedded pair in a build that has none.
    """
    if (folder := Path(name).expanduser()).is_dir():
        return str(folder.resolve())
    if name in EMBEDDED:
        folder = Path(__file__).parent / "tiny" / EMBEDDED[name]
        if not folder.is_dir():
            raise DiversedError(f"{name}: this build of diversed-mlx holds no embedded pair; give a folder or a Hub id")
        return str(folder)
    return ALIASES.get(name, name)


def short_name(source: str) -> str:
    """Name a model as people do: the alias of an embedded one, else the source itself.

    Args:
        source: a folder or a Hub id, as `resolve` returns it.
    """
    folders = {str(Path(__file__).parent / "tiny" / folder): alias for alias, folder in EMBEDDED.items()}
    return folders.get(source, source)


def cached(source: str) -> Path | None:
    """Find a checkpoint on this machine, without the network.

    Args:
        source: a folder or a Hub id, as `resolve` returns it.

    Returns:
        Its folder, or None for a model of the Hub that is not, or not wholly, in the local cache.

    Raises:
        DiversedError: neither a model's folder nor the name of a model.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise DiversedError(f"{source} is no model: it holds no config.json")
        return folder
    if folder.exists():
        raise DiversedError(f"{source} is a file; give the folder of a model or a Hub id")
    if source.count("/") != 1 or source.startswith((".", "~", "/")):
        raise DiversedError(
            f"{source}: no such folder, and not the name of a model; give a folder, owner/name on the Hub, "
            f"or one of {', '.join((*ALIASES, *EMBEDDED))}"
        )
    try:
        return Path(snapshot_download(source, local_files_only=True, allow_patterns=DEFAULT_ALLOW_PATTERNS))
    except HFValidationError as error:
        raise DiversedError(f"{source}: no such folder, and not a valid Hub id") from error
    except (LocalEntryNotFoundError, IncompleteSnapshotError):
        return None


def locate(source: str) -> Path:
    """Find the folder of a checkpoint, downloading it only if it is not on this machine.

    Args:
        source: a folder or a Hub id, as `resolve` returns it.

    Raises:
        DiversedError: no such folder, no such model, or no network.
    """
    if (folder := cached(source)) is not None:
        return folder
    try:
        folder = Path(snapshot_download(source, allow_patterns=DEFAULT_ALLOW_PATTERNS))
    except HfHubHTTPError as error:
        raise DiversedError(f"the Hub does not give {source}: {str(error).splitlines()[0]}") from error
    except Exception as error:  # each HTTP library has its own errors for a network that is not there
        raise DiversedError(
            f"{source} is not in the local Hub cache and the Hub cannot be reached: check the network, "
            f"or give the folder of a model"
        ) from error
    return cached(str(folder)) or folder


def weight_bytes(source: str) -> int | None:
    """Bytes of a checkpoint's weights, before they are read or downloaded.

    Args:
        source: a folder or a Hub id, as `resolve` returns it.

    Returns:
        The bytes, or None where the Hub is needed and does not answer.
    """
    if (folder := cached(source)) is not None:
        return sum(file.stat().st_size for file in folder.glob("model*.safetensors"))
    try:
        files = HfApi().model_info(source, files_metadata=True).siblings or []
    except Exception:  # the download that follows says what is wrong
        return None
    return sum(file.size or 0 for file in files if file.rfilename.endswith(".safetensors"))
