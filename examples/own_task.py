"""A task of your own: questions, and a reward between 0 and 1 for an answer. Train a head on it:

diversed train --task-file examples/own_task.py --draft 1b --target 8b
"""

import random
import re
from collections.abc import Sequence
from itertools import pairwise

from diversed_mlx.tasks.task import Example, Split

WORDS = ("river", "stone", "candle", "garden", "window", "letter", "summer", "bridge", "silver", "forest")


class Alphabetical:
    """Put words in alphabetical order; the reward is the share of neighbours that are in the right order."""

    name = "alphabetical"
    metric = "order"
    max_tokens = 48

    def examples(self, split: Split, n: int, seed: int = 0) -> Sequence[Example]:
        """The two splits draw from different words, so no question is in both."""
        words = WORDS[:5] if split == "train" else WORDS[5:]
        draw = random.Random(f"{split} {seed}")
        asked = [draw.sample(words, 4) for _ in range(n)]
        return [Example(question="Sort by alphabet: " + ", ".join(a), answer=", ".join(sorted(a))) for a in asked]

    def reward(self, text: str, example: Example) -> float:
        """1 for the whole order; an answer that leaves a word out earns nothing."""
        found = [word for word in re.findall(r"[a-z]+", text.lower()) if word in example.answer.split(", ")]
        if sorted(found) != example.answer.split(", "):
            return 0.0
        return sum(a < b for a, b in pairwise(found)) / (len(found) - 1)


task = Alphabetical()
