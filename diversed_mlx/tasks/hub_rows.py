"""Rows of the Hub's data sets, through `datasets`, which keeps what it downloads in its cache. Knows no task."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DiversedError


@dataclass(frozen=True, kw_only=True)
class HubData:
    """A data set of the Hub.

    Args:
        repo: its id.
        config: which of its configurations.
        splits: its names of the splits for training and testing; None where all its rows are in one, "test".
    """

    repo: str
    config: str | None = None
    splits: tuple[str, str] | None = ("train", "test")


def load_from_hub(hub: HubData, split: str) -> Sequence[Mapping[str, Any]]:
    """Load a split; its rows are read when they are asked for.

    Args:
        hub: the data set.
        split: its name there.

    Raises:
        DiversedError: it is neither on the Hub nor in the local cache, or the Hub cannot be reached.
    """
    import datasets

    try:
        with _quiet(), _offline_unless(_answers(hub.repo)):
            return datasets.load_dataset(hub.repo, hub.config, split=split)  # pyright: ignore[reportReturnType]
    except Exception as error:  # it hands on what the network, the file system and its readers raise
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise DiversedError(
            f"cannot get {hub.repo} from the Hub or its local cache ({first_line}): "
            f"check the network, or give the rows with --data FOLDER"
        ) from error


def _answers(repo: str) -> bool:
    """Whether the Hub can be asked. `datasets` finds that out only after 23 seconds of retries."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().dataset_info(repo, timeout=10)
    except HfHubHTTPError:  # a refusal is an answer; `datasets` tells it better
        return True
    except Exception:  # each HTTP library has its own errors for a network that is not there
        return False
    return True


@contextlib.contextmanager
def _offline_unless(online: bool) -> Iterator[None]:
    """Let `datasets` look into its cache only, without trying the network."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or not online
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without its warnings; a download keeps its bar."""
    from datasets.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
