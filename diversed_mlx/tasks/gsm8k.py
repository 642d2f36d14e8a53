"""GSM8K (Cobbe et al., 2021): school mathematics told in words; the reward is 1 for the right number at the end."""

import re
from pathlib import Path

from ..rewards import final_number_reward
from .rows import HubData, Row, Rows, text_of
from .task import Example, Split

HUB = HubData(repo="openai/gsm8k", config="main")
QUESTION = """{question}

Reason step by step. End with a line that holds only #### and the number, such as #### 42."""


class Gsm8k:
    """The task. Columns: `question`, and `answer`, which ends in `#### N`.

    Args:
        data: file or folder of rows. Default: the Hub's.
    """

    name = "gsm8k"
    metric = "accuracy"
    max_tokens = 256

    def __init__(self, data: Path | None = None):
        self._rows = Rows(HUB, _example, data=data)

    def examples(self, split: Split, n: int, seed: int = 0) -> list[Example]:
        """Give n examples; see `Rows.examples`."""
        return self._rows.examples(split, n, seed)

    def reward(self, text: str, example: Example) -> float:
        """Give 1 for the right final number, else 0."""
        return final_number_reward(text, example.answer)


def _example(row: Row) -> Example:
    # The references carry notes for a calculator, <<48/2=24>>, which no model should learn to write.
    answer = re.sub(r"<<.*?>>", "", text_of(row, "answer"))
    return Example(question=QUESTION.format(question=text_of(row, "question")), answer=answer)
