"""CNN/DailyMail (See et al., 2017): an article in a few sentences; the reward is ROUGE-2 against the highlights."""

from pathlib import Path

from ..rewards import rouge2_reward
from .rows import HubData, Row, Rows, first_text, text_of
from .summaries import shorten
from .task import Example, Split

HUB = HubData(repo="abisee/cnn_dailymail", config="3.0.0")
QUESTION = """Summarize this article in three or four sentences. Write the summary only.

{article}"""


class CnnDm:
    """The task. Columns: `article`, cut to 3000 characters, and `highlights`.

    A file of Spec-Bench (columns `category`, `turns`, `reference`) does too: its rows of the category summarization
    are used, which are CNN/DailyMail's, without the `Summarize: ` before the article.

    Args:
        data: file or folder of rows. Default: the Hub's.
    """

    name = "cnndm"
    metric = "ROUGE-2"
    max_tokens = 128

    def __init__(self, data: Path | None = None):
        self._rows = Rows(HUB, _example, data=data, category="summarization")

    def examples(self, split: Split, n: int, seed: int = 0) -> list[Example]:
        """Give n examples; see `Rows.examples`."""
        return self._rows.examples(split, n, seed)

    def reward(self, text: str, example: Example) -> float:
        """Give ROUGE-2 of the whole text, its lines taken together."""
        return rouge2_reward(text, example.answer)


def _example(row: Row) -> Example:
    if "turns" in row:
        article, summary = first_text(row, "turns").removeprefix("Summarize: "), first_text(row, "reference")
    else:
        article, summary = text_of(row, "article"), text_of(row, "highlights")
    return Example(question=QUESTION.format(article=shorten(article)), answer=summary)
