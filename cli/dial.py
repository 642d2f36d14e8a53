"""The dial in plain words: what a strictness does, and what it was measured to give."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diversed_mlx.dial import Setting
    from diversed_mlx.verifiers import Dynamic

MEANING = "0 as trained; above: closer to the target; below: more of the draft"


def in_words(strictness: float) -> str:
    """What a strictness does to the weights that the head gives."""
    if strictness == 0:
        return "as trained"
    if math.isinf(strictness):
        return "the target alone decides: lossless" if strictness > 0 else "every draft is taken"
    side = "closer to the target, fewer drafts pass" if strictness > 0 else "more of the draft, more drafts pass"
    return f"{side}: where the head says 0.50 for the target it counts as {_sigmoid(strictness):.2f}"


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def measured(setting: "Setting | None", strictness: float) -> str:
    """What is recorded for a strictness, or for the nearest one that is."""
    if setting is None:
        return "what it costs was not measured for this head"
    where = "at this setting" if setting.strictness == strictness else f"nearest measured, {setting.strictness:g}"
    length = "" if setting.num_draft_tokens is None else f", K = {setting.num_draft_tokens}"
    return (
        f"{where}: acceptance {setting.acceptance_rate:.1%}, quality {setting.quality:.3f} of the target's "
        f"{setting.target_quality:.3f} ({setting.task}, {setting.n} questions, temperature {setting.temp:g}{length})"
    )


def describe(verifier: "Dynamic") -> list[str]:
    """Lines that say where the dial stands."""
    from diversed_mlx.dial import nearest_setting

    setting = nearest_setting(verifier.head, verifier.strictness)
    line = f"strictness {verifier.strictness:g}: {in_words(verifier.strictness)}"
    return [line, measured(setting, verifier.strictness)]
