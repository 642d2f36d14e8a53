"""What a head's dial is known to do: the figures that `head.json` records, by strictness, and the nearest of them.

`head.json` keeps them under "bench", a list of objects with the fields of `Setting`. The held-out figures of training
are not among them: its acceptance is that of a single token, not accepted / proposed. Knows no model; who measures is
`evaluation/`.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DiversedError
from .head import BENCH, EnsembleHead


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What was measured at one strictness.

    Args:
        strictness: s of `Dynamic`.
        acceptance_rate: accepted / proposed, from 0 to 1.
        quality: mean reward of the task with the head at this strictness.
        target_quality: the same of the target alone, on the same questions.
        task: name of the task.
        n: questions.
        temp: temperature.
        num_draft_tokens: tokens drafted a round; None where it was not recorded.

    Raises:
        DiversedError: a figure that is no finite number, or an acceptance that is no share.
    """

    strictness: float
    acceptance_rate: float
    quality: float
    target_quality: float
    task: str
    n: int
    temp: float
    num_draft_tokens: int | None = None

    def __post_init__(self):
        figures = (self.strictness, self.acceptance_rate, self.quality, self.target_quality, self.n, self.temp)
        if not all(type(figure) in (int, float) and math.isfinite(figure) for figure in figures):
            raise DiversedError(f"the figures of a setting must be finite numbers, and these are {figures}")
        if not 0 <= self.acceptance_rate <= 1:
            raise DiversedError(f"acceptance_rate must be between 0 and 1, not {self.acceptance_rate}")
        if not isinstance(self.task, str):
            raise DiversedError(f"the task of a setting must be its name, not {self.task!r}")
        if self.num_draft_tokens is not None and type(self.num_draft_tokens) is not int:
            raise DiversedError(f"num_draft_tokens must be an integer or None, not {self.num_draft_tokens!r}")


def settings(head: EnsembleHead) -> list[Setting]:
    """Read what is recorded of a head, in the order of strictness.

    Args:
        head: with the metadata of its `head.json`; what is no setting there is passed over, for a head works without.
    """
    recorded = head.metadata.get(BENCH)
    found = [one for value in (recorded if isinstance(recorded, list) else []) if (one := _setting(value)) is not None]
    return sorted(found, key=lambda setting: setting.strictness)


def nearest_setting(head: EnsembleHead, strictness: float) -> Setting | None:
    """Find the recorded setting that is nearest to a strictness; whether it is that one, its `strictness` tells.

    Args:
        head: with the metadata of its `head.json`.
        strictness: any number, infinite too.

    Returns:
        The setting, of two as near the stricter one, of several at one strictness the last; None where none is
        recorded.
    """
    wanted = min(max(strictness, -1e6), 1e6)  # to an infinite one all would be equally far
    nearest = None
    for setting in settings(head):
        if nearest is None or abs(setting.strictness - wanted) <= abs(nearest.strictness - wanted):
            nearest = setting
    return nearest


def record_settings(path: str | Path, measured: Iterable[Setting]) -> None:
    """Add measured settings to the `head.json` of a head.

    Args:
        path: the head's folder, as `EnsembleHead.save` wrote it; the weights stay as they are.
        measured: settings; each takes the place of a recorded one with the same strictness, task, temperature and
            draft length.

    Raises:
        DiversedError: no head there, or a folder that cannot be written.
    """
    head = EnsembleHead.load(path)
    recorded = head.metadata.get(BENCH)
    known = {
        _key(one): one
        for value in (recorded if isinstance(recorded, list) else [])
        if (one := _setting(value)) is not None
    }
    known |= {_key(setting): setting for setting in measured}
    in_order = sorted(known.values(), key=lambda setting: setting.strictness)
    head.metadata[BENCH] = [dataclasses.asdict(setting) for setting in in_order]
    head.save(path)


def _key(setting: Setting) -> tuple:
    return setting.strictness, setting.task, setting.temp, setting.num_draft_tokens


def _setting(value: Any) -> Setting | None:
    """A setting from JSON, None if it is something else."""
    names = [field.name for field in dataclasses.fields(Setting)]
    try:
        return Setting(**{name: value[name] for name in names if name != "num_draft_tokens" or name in value})
    except (DiversedError, KeyError, TypeError):
        return None
