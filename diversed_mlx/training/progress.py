"""How far a run has come: all that changes from update to update beside the head and its optimizer."""

from dataclasses import asdict, dataclass, field

import mlx.core as mx


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A head on the held-out questions.

    Args:
        quality: mean reward.
        acceptance_rate: mean of 1 - w TV(q, p) over the tokens of its answers.
        mean_target_weight: mean w over them.
    """

    quality: float
    acceptance_rate: float
    mean_target_weight: float


@dataclass(kw_only=True)
class Best:
    """The head that is kept, and what was measured of it."""

    step: int
    measured: Measured
    weights: dict[str, mx.array]


@dataclass(kw_only=True)
class Progress:
    """All that changes from update to update, beside the head's and the optimizer's tensors."""

    step: int = 0
    reg_scale: float
    running_reward: float | None = None
    reference: Measured | None = None
    best: Best | None = None
    history: list[Measured] = field(default_factory=list)

    def to_json(self) -> dict:
        """Everything but the best head's weights, as plain data."""
        return {
            "step": self.step,
            "reg_scale": self.reg_scale,
            "running_reward": self.running_reward,
            "reference": self.reference and asdict(self.reference),
            "best": self.best and {"step": self.best.step, "measured": asdict(self.best.measured)},
            "history": [asdict(measured) for measured in self.history],
        }

    @classmethod
    def from_json(cls, data: dict, best_weights: dict[str, mx.array]) -> "Progress":
        """Make it from what `to_json` gave.

        Args:
            data: plain data; other keys are passed over.
            best_weights: of the best head, empty where there is none.
        """
        reference, best = data["reference"], data["best"]
        return cls(
            step=data["step"],
            reg_scale=data["reg_scale"],
            running_reward=data["running_reward"],
            reference=reference and Measured(**reference),
            best=best and Best(step=best["step"], measured=Measured(**best["measured"]), weights=best_weights),
            history=[Measured(**measured) for measured in data["history"]],
        )
