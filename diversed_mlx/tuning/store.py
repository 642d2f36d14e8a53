"""Where measurements are kept: a JSON file for each pair, number format, machine, versions and verifier.

A pair is known by the fingerprints of its models, as heads do it. What was measured elsewhere, or with another MLX,
stays where it is and is not used.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..draft_length import AUTO_LONGEST, Start
from ..errors import DiversedError
from ..files import write_whole
from ..heads import identity
from ..home import home
from ..machine import this_machine
from ..pair import Pair
from ..verifiers import Cascade, Dynamic, Lenient, Lossless, Static, Verifier
from .forecast import Costs, Forecast, Trial, gain_over_plain, recommend

KEYS = ("draft_fingerprint", "target_fingerprint", "draft_format", "target_format", "machine", "versions")


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Everything that `diversed tune` measured and concluded.

    Args:
        made_for: what it holds for, as `conditions` says it.
        verifier: name of the verifier, see `verifier_name`.
        costs: bare passes in ascending order of depth.
        trials: answers, one a temperature.
        forecasts: expected rounds, for each trial at each depth.
        measured: when, for people.
    """

    made_for: Mapping[str, Any]
    verifier: str
    costs: Sequence[Costs]
    trials: Sequence[Trial]
    forecasts: Sequence[Forecast]
    measured: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M"))

    def at(self, temp: float) -> list[Forecast]:
        """The forecasts at one of the temperatures, in ascending order of depth."""
        return [each for each in self.forecasts if each.temp == temp]

    def to_json(self) -> dict[str, Any]:
        """As the file holds it; times in seconds, a list by draft length begins with plain decoding."""
        return {
            **self.made_for,
            "verifier": self.verifier,
            "measured": self.measured,
            "costs": [
                {
                    "depth": each.depth,
                    "draft_step": each.draft_step,
                    "target_passes": list(each.passes),
                    "spread": each.spread,
                }
                for each in self.costs
            ],
            "temperatures": [
                {
                    "temp": trial.temp,
                    "acceptance": trial.acceptance,
                    "survival": list(trial.survival),
                    "recommended": recommend(self.at(trial.temp)),
                    "gain_over_plain": gain_over_plain(self.at(trial.temp)),
                    "depths": [
                        {"depth": each.depth, "seconds": list(each.seconds), "tokens_per_second": list(each.speeds)}
                        for each in self.at(trial.temp)
                    ],
                }
                for trial in self.trials
            ],
        }


def folder() -> Path:
    """Where the files lie: `tuning` in the home folder."""
    return home() / "tuning"


def conditions(pair: Pair) -> dict[str, Any]:
    """What measurements of a pair hold for: models, number formats, machine and versions.

    Args:
        pair: with a draft.
    """
    assert pair.draft is not None
    return {
        **identity(pair),
        "draft_format": pair.draft.number_format,
        "target_format": pair.target.number_format,
        "machine": this_machine(measure=False).name,
        "versions": {name: version(name) for name in ("mlx", "mlx-lm")},
    }


def verifier_name(verifier: Verifier) -> str:
    """Name a verifier with its settings; two that accept alike have one name.

    Args:
        verifier: one of the library's.
    """
    match verifier:
        case Lossless():
            return "lossless"
        case Static(target_weight=weight):
            return f"static {weight:g}"
        case Lenient(lenience=lenience):
            return f"lenient {lenience:g}"
        case Cascade(alpha=alpha, rule=rule):
            return f"cascade {rule} {alpha:g}"
        case Dynamic(head=head, strictness=strictness):
            return f"dynamic {head.fingerprint} {strictness:+g}"
        case _:
            return type(verifier).__name__


def save(tuning: Tuning) -> Path:
    """Write a file by rename, in place of one for the same conditions and verifier.

    Args:
        tuning: what to keep.

    Returns:
        The file.

    Raises:
        DiversedError: it cannot be written.
    """
    described = json.dumps([[tuning.made_for[key] for key in KEYS], tuning.verifier], sort_keys=True)
    path = folder() / f"{_prefix(tuning.made_for)}-{hashlib.sha256(described.encode()).hexdigest()[:8]}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiversedError(f"cannot write {path}: {error.strerror or error}") from error
    write_whole(path, json.dumps(tuning.to_json(), indent=2) + "\n")
    return path


def find(made_for: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Find what was measured for a pair.

    Args:
        made_for: what it must hold for, from `conditions`.

    Returns:
        The files' contents that hold here, and those that do not because something else than the models differs;
        the newest first.
    """
    holding, stale = [], []
    for content in _read(made_for):
        holds = all(content.get(key) == made_for[key] for key in KEYS)
        (holding if holds else stale).append(content)
    return holding, stale


def find_start(pair: Pair, verifier: Verifier | None, temp: float) -> Start | None:
    """Where the draft length "auto" starts for a pair on this machine.

    Args:
        pair: the models.
        verifier: how drafts will be checked; measurements with another one still tell the times.
        temp: the temperature; the nearest measured one counts.

    Returns:
        None where nothing was measured, and in plain decoding.
    """
    if pair.draft is None or verifier is None:
        return None
    holding, _ = find(conditions(pair))
    same = [content for content in holding if content["verifier"] == verifier_name(verifier)]
    for content in (*same, *holding):
        try:
            nearest = min(content["temperatures"], key=lambda each: abs(each["temp"] - temp))
            seconds = tuple(float(value) for value in nearest["depths"][0]["seconds"])
            acceptance = float(nearest["acceptance"]) if content in same else None
        except (KeyError, TypeError, ValueError, IndexError):
            continue  # edited by hand, or half of a file of another program
        if len(seconds) == AUTO_LONGEST + 1 and all(0 < value < 3600 for value in seconds):
            return Start(seconds=seconds, acceptance=acceptance)
    return None


def _prefix(made_for: Mapping[str, Any]) -> str:
    return f"{made_for['draft_fingerprint']}-{made_for['target_fingerprint']}"


def _read(made_for: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    found = []
    try:
        for path in folder().glob(f"{_prefix(made_for)}-*.json"):
            found.append((path.stat().st_mtime, path))
    except OSError:
        return
    for _, path in sorted(found, reverse=True):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # measuring again replaces it
        if isinstance(content, dict) and "verifier" in content:
            yield content
