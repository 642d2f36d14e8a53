"""What a task is: questions with a reference answer, and a reward for a text that answers one.

Training and evaluation know only this; each task is a file beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Split = Literal["train", "test"]


@dataclass(frozen=True, kw_only=True)
class Example:
    """One question of a task.

    Args:
        question: what the user says; the chat template comes around it.
        answer: the reference that the reward compares with.
    """

    question: str
    answer: str


class Task(Protocol):
    """A source of examples and the reward of an answer.

    Attributes:
        name: by which the command line and `head.json` call it.
        metric: what the reward is called in tables.
        max_tokens: tokens that an answer needs at most.
    """

    name: str
    metric: str
    max_tokens: int

    def examples(self, split: Split, n: int, seed: int = 0) -> Sequence[Example]:
        """Give n examples of a split, the same for the same seed; none is in both splits."""
        ...

    def reward(self, text: str, example: Example) -> float | None:
        """Judge an answer, between 0 and 1; None where it cannot be judged."""
        ...


def conversation_of(example: Example, shots: Sequence[Example] = ()) -> list[dict[str, str]]:
    """What is said before an answer: worked examples as earlier turns, then the question.

    Args:
        example: what is asked.
        shots: worked examples. Default none.

    Returns:
        Messages for a chat template.
    """
    turns = [
        {"role": role, "content": text}
        for shot in shots
        for role, text in (("user", shot.question), ("assistant", shot.answer))
    ]
    return [*turns, {"role": "user", "content": example.question}]
