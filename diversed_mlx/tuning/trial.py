"""Answers to a few prompts, from which the acceptance at each drafted position and the times of real rounds come."""

from collections.abc import Callable, Sequence
from contextlib import closing
from statistics import mean, median

from ..conversation import chat_prompt
from ..draft_length import AUTO_LONGEST
from ..errors import DiversedError
from ..pair import Pair
from ..sampling import Sampling
from ..speculate import Decoder
from ..text import encode
from ..verifiers import Verifier
from .forecast import Trial, survival

LENGTHS = (AUTO_LONGEST, 4, 2, 1)  # tried in turn; what lies between is on a line
PLAIN_TOKENS = 16  # of each prompt, to time plain steps
PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "A baker sells 12 boxes of 6 buns in the morning and 9 boxes in the afternoon. How many buns is that in all?",
    "Write a Python function that returns the largest of three numbers.",
    "Write a short letter that thanks a neighbour for watering the plants.",
)


class Turns:
    """Draft lengths in turn, whatever they give, and what their rounds took."""

    def __init__(self, lengths: Sequence[int]):
        self._lengths = lengths
        self._chosen = 0
        self.seconds: dict[int, list[float]] = {length: [] for length in lengths}

    def next(self) -> int:
        """The next of the lengths."""
        self._chosen += 1
        return self._lengths[(self._chosen - 1) % len(self._lengths)]

    def record(self, proposed: int, accepted: int, tokens: int, seconds: float) -> None:
        """Keep the time of a whole round; one cut short by the end of the answer is none."""
        if proposed == self._lengths[(self._chosen - 1) % len(self._lengths)]:
            self.seconds[proposed].append(seconds)


def read_prompts(pair: Pair, prompts: Sequence[str]) -> list[list[int]]:
    """Put prompts into the chat template where there is one.

    Args:
        pair: gives the tokenizer.
        prompts: texts.

    Raises:
        DiversedError: a prompt that is empty, not valid text or longer than the context.
    """
    made = []
    for prompt in prompts:
        chats = pair.tokenizer.has_chat_template
        ids = chat_prompt(pair, [{"role": "user", "content": prompt}]) if chats else encode(pair.tokenizer, prompt)
        if not ids:
            raise DiversedError("a prompt is empty")
        if pair.context_length is not None and len(ids) + PLAIN_TOKENS > pair.context_length:
            raise DiversedError(f"a prompt has {len(ids)} tokens and this pair's context holds {pair.context_length}")
        made.append(ids)
    return made


def run_trials(
    pair: Pair,
    verifier: Verifier,
    prompts: Sequence[list[int]],
    temps: Sequence[float],
    *,
    max_tokens: int,
    seed: int,
    tick: Callable[[], None],
) -> list[Trial]:
    """Answer each prompt at each temperature, with drafts of several lengths and plainly, in turn.

    Args:
        pair: with a draft.
        verifier: what to allow of it.
        prompts: token ids.
        temps: temperatures.
        max_tokens: most tokens of an answer.
        seed: makes the texts repeatable.
        tick: called after each answer; there are as many as prompts times temperatures.

    Returns:
        One trial a temperature.

    Raises:
        DiversedError: the answers ended before a round of each length was timed.
    """
    drafted = {temp: Turns(LENGTHS) for temp in temps}
    plain = {temp: Turns((0,)) for temp in temps}
    chances: dict[float, list[list[float]]] = {temp: [] for temp in temps}
    depths: dict[float, list[int]] = {temp: [] for temp in temps}
    for number, prompt in enumerate(prompts):
        room = max_tokens if pair.context_length is None else min(max_tokens, pair.context_length - len(prompt))
        for temp in temps:
            for turns, limit in ((drafted[temp], room), (plain[temp], min(room, PLAIN_TOKENS))):
                context = pair.make_context()
                context.start(prompt)
                decoder = Decoder(
                    pair,
                    context,
                    verifier=verifier,
                    sampling=Sampling(temp=temp),
                    processors=(),
                    seed=(seed + number) % 2**64,
                    prefill_step_size=2048,
                    trace=False,
                )
                with closing(decoder.blocks(turns, limit)) as blocks:
                    for block in blocks:
                        if block.proposed:
                            chances[temp].append(block.accept_probabilities)
                            depths[temp].append(len(context.tokens))
            tick()
    trials = []
    for temp in temps:
        seconds = drafted[temp].seconds | plain[temp].seconds
        if not all(seconds.values()):
            raise DiversedError(
                f"the answers at temperature {temp:g} were too short to time a round of each length: "
                f"give longer or more prompts"
            )
        trials.append(
            Trial(
                temp=temp,
                depth=mean(depths[temp]),
                survival=survival(chances[temp]),
                seconds={length: median(times) for length, times in seconds.items()},
            )
        )
    return trials
