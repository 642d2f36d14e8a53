"""WMT16, German to English (Bojar et al., 2016); the reward is BLEU of the sentence against the reference."""

from pathlib import Path

from ..errors import DiversedError
from ..rewards import bleu_reward
from .rows import HubData, Row, Rows, first_text, text_of
from .task import Example, Split

HUB = HubData(repo="wmt/wmt16", config="de-en")
QUESTION = """Translate from German to English. Write the translation only.

{german}"""


class Wmt:
    """The task. Column: `translation`, an object with the sentence in `de` and in `en`.

    A file of Spec-Bench (columns `category`, `turns`, `reference`) does too: its rows of the category translation
    are used, which are German to English, without the `Translate German to English: ` before the sentence.

    Args:
        data: file or folder of rows. Default: the Hub's.
    """

    name = "wmt"
    metric = "BLEU"
    max_tokens = 128

    def __init__(self, data: Path | None = None):
        self._rows = Rows(HUB, _example, data=data, category="translation")

    def examples(self, split: Split, n: int, seed: int = 0) -> list[Example]:
        """Give n examples; see `Rows.examples`."""
        return self._rows.examples(split, n, seed)

    def reward(self, text: str, example: Example) -> float:
        """Give BLEU of the sentence."""
        return bleu_reward(text, example.answer)


def _example(row: Row) -> Example:
    if "turns" in row:
        german, english = first_text(row, "turns"), first_text(row, "reference")
        german = german.removeprefix("Translate German to English: ")
    else:
        pair = row.get("translation")
        if not isinstance(pair, dict):
            raise DiversedError("no column 'translation' with an object that holds `de` and `en`")
        german, english = text_of(pair, "de"), text_of(pair, "en")
    return Example(question=QUESTION.format(german=german), answer=english)
