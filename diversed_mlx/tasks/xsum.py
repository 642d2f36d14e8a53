"""XSum (Narayan et al., 2018): an article in one sentence; the reward is ROUGE-2 against the BBC's own."""

from pathlib import Path

from ..rewards import rouge2_reward
from .rows import HubData, Row, Rows, text_of
from .summaries import shorten
from .task import Example, Split

HUB = HubData(repo="EdinburghNLP/xsum")
QUESTION = """Summarize this article in one sentence. Write the sentence only.

{article}"""


class XSum:
    """The task. Columns: `document`, cut to 3000 characters, and `summary`.

    Args:
        data: file or folder of rows. Default: the Hub's.
    """

    name = "xsum"
    metric = "ROUGE-2"
    max_tokens = 64

    def __init__(self, data: Path | None = None):
        self._rows = Rows(HUB, _example, data=data)

    def examples(self, split: Split, n: int, seed: int = 0) -> list[Example]:
        """Give n examples; see `Rows.examples`."""
        return self._rows.examples(split, n, seed)

    def reward(self, text: str, example: Example) -> float:
        """Give ROUGE-2 of the text."""
        return rouge2_reward(text, example.answer)


def _example(row: Row) -> Example:
    return Example(question=QUESTION.format(article=shorten(text_of(row, "document"))), answer=text_of(row, "summary"))
