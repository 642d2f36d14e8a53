"""One thing that was looked at, whether it is well, and what to do where it is not."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found of a subject.

    Args:
        level: "ok"; "note" for what works but could be better or is worth knowing; "problem" for what stops work.
        subject: a word or two.
        found: one line.
        remedy: what to do, one line; every problem has one. Default None.
    """

    level: Level
    subject: str
    found: str
    remedy: str | None = None

    def __post_init__(self):
        assert self.level != "problem" or self.remedy, f"{self.subject}: a problem without anything to do"


def ready(findings: Iterable[Finding]) -> bool:
    """Tell whether nothing stops work."""
    return all(finding.level != "problem" for finding in findings)


def to_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings and their verdict as plain values."""
    findings = list(findings)
    return {"ready": ready(findings), "findings": [asdict(finding) for finding in findings]}
