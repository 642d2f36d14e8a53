"""Every setting of a training run; the flags of `diversed train` and the keys of its config file are its fields."""

from dataclasses import dataclass
from typing import Literal

from ..errors import DiversedError
from ..sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a head is trained.

    Args:
        iters: updates. Default 150.
        batch_size: prompts an update, on each machine. Default 8.
        samples_per_prompt: answers to each prompt. Default 4.
        learning_rate: AdamW's highest, after a linear warm-up over a tenth of the updates; then a cosine to a tenth.
            Default None, what moves the logit of a token's weight by about 3.5 an update at most, for hidden states
            of any size: `learner.Scale`.
        grad_clip: most that the norm of a gradient may be. Default 1.0.
        reg_scale: lambda, the price of a rejected token; with `max_quality_loss` only where it starts. Default 0.02.
        max_quality_loss: share of the target's own reward that may be lost: after a fifth of the updates lambda rises
            while no more is, and falls when it is. Default None, lambda is fixed.
        reg_rate: change of log lambda an update for the whole of that reward, with `max_quality_loss`. Default 5.
        start_weight: weight on the target of the untrained head, in (0, 1): low enough that some answers go wrong, high
            enough that most do not. Default 0.8.
        baseline: what a reward is compared with: the other answers to its prompt ("loo"), a running mean over updates
            ("ema"), or nothing ("none"). Default "loo".
        reuse: passes over the same answers; above 1 the policy ratio is clipped. Default 1.
        clip: how far that ratio may go from 1. Default 0.2.
        prompts: questions of the training split that are used, in a new order each time all were seen. Default 400.
        max_tokens: most tokens of an answer. Default None, the task's.
        temp: temperature of the answers, above 0. Default 1.0.
        top_p: nucleus of the answers. Default 1.0, off.
        min_p: least share of the most likely token. Default 0.0, off.
        top_k: most tokens to choose from. Default 0, off.
        val_examples: held-out questions that the head is measured on. Default 128.
        steps_per_eval: updates between two measurements. Default 30.
        save_every: updates between two checkpoints. Default 10.
        few_shot: worked examples before each question. Default 0.
        seed: of the order of the prompts and of the answers. Default 0.

    Raises:
        DiversedError: a value out of its range.
    """

    iters: int = 150
    batch_size: int = 8
    samples_per_prompt: int = 4
    learning_rate: float | None = None
    grad_clip: float = 1.0
    reg_scale: float = 0.02
    max_quality_loss: float | None = None
    reg_rate: float = 5.0
    start_weight: float = 0.8
    baseline: Literal["loo", "ema", "none"] = "loo"
    reuse: int = 1
    clip: float = 0.2
    prompts: int = 400
    max_tokens: int | None = None
    temp: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    val_examples: int = 128
    steps_per_eval: int = 30
    save_every: int = 10
    few_shot: int = 0
    seed: int = 0

    def __post_init__(self):
        for name in ("iters", "batch_size", "samples_per_prompt", "reuse", "prompts", "steps_per_eval", "save_every"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("grad_clip", "clip"):
            self._require(name, 0 < getattr(self, name) < float("inf"), "above 0")
        self._require("learning_rate", self.learning_rate is None or 0 < self.learning_rate < float("inf"), "above 0")
        for name in ("reg_scale", "reg_rate"):
            self._require(name, 0 <= getattr(self, name) < float("inf"), "at least 0")
        self._require("start_weight", 0 < self.start_weight < 1, "between 0 and 1, both excluded")
        self._require("baseline", self.baseline in ("loo", "ema", "none"), "loo, ema or none")
        self._require("temp", 0 < self.temp < float("inf"), "above 0: the policy gradient needs samples")
        self._require("val_examples", self.val_examples >= 0, "at least 0")
        self._require("few_shot", self.few_shot >= 0, "at least 0")
        self._require("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1")
        if self.max_quality_loss is not None:
            self._require("max_quality_loss", 0 <= self.max_quality_loss < 1, "at least 0 and below 1")
            self._require("reg_scale", self.reg_scale > 0, "above 0 with max_quality_loss, which multiplies it")
            self._require(
                "val_examples", self.val_examples > 0, "above 0 with max_quality_loss, which measures on them"
            )
        if self.baseline == "loo" and self.samples_per_prompt < 2:
            raise DiversedError('baseline "loo" needs samples_per_prompt of 2 or more; or use "ema"')
        _ = self.sampling

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise DiversedError(f"{name} must be {what}, not {getattr(self, name)}")

    @property
    def sampling(self) -> Sampling:
        """How the answers are sampled."""
        return Sampling(temp=self.temp, top_p=self.top_p, min_p=self.min_p, top_k=self.top_k)
