"""A conversation: the chat template, the history, and both caches kept between turns.

Each turn renders the whole history through the tokenizer's own template and starts the context with it. The context
keeps what it already holds of that prompt, so the system prompt and earlier turns are read once, and the answer is
the one that a cold start on the same history gives.
"""

import dataclasses
from collections.abc import Generator, Sequence
from inspect import signature

from transformers import PreTrainedTokenizerBase

from .answer import Options, Response, answer
from .errors import DiversedError
from .pair import Pair
from .text import require_unicode
from .transcript import Transcript

# What the tokenizer's own call takes beside the template's variables.
TEMPLATE_ARGUMENTS = {"messages", *signature(PreTrainedTokenizerBase.apply_chat_template).parameters} - {"kwargs"}


class Conversation:
    """Turns between a person and a pair.

    Args:
        pair: the models.
        options: shape every answer; the seed is moved on by one each turn. Default `Options()`.
        system: a system prompt. Default None.
        template_options: more variables for the template, such as {"enable_thinking": False}. Default none.
        max_kv_size: as for `LM.make_cache`. Default None.
        kv_bits: as for `LM.make_cache`. Default None.

    Raises:
        DiversedError: the tokenizer has no chat template.
    """

    def __init__(
        self,
        pair: Pair,
        options: Options | None = None,
        *,
        system: str | None = None,
        template_options: dict | None = None,
        max_kv_size: int | None = None,
        kv_bits: int | None = None,
    ):
        if not pair.tokenizer.has_chat_template:
            raise DiversedError(f"{pair.target.name} has no chat template, so it cannot chat: use generate")
        self.pair = pair
        self.options = options if options is not None else Options()
        self.system = system
        self.template_options = template_options
        self.messages: list[dict[str, str]] = []
        self.context = pair.make_context(max_kv_size, kv_bits)
        self._turns = 0

    def ask(self, text: str) -> Generator[Response, None, None]:
        """Answer a message and remember both.

        An answer that is interrupted stays in the history as far as it went; a message without any answer does not,
        because templates want the roles to alternate.

        Args:
            text: what the person says.

        Yields:
            One response a token.

        Raises:
            DiversedError: a message that does not fit in the context, or that the template refuses.
        """
        options = dataclasses.replace(self.options, seed=(self.options.seed + self._turns) % 2**64)
        question = {"role": "user", "content": text}
        prompt = chat_prompt(self.pair, [*self.messages, question], self.system, self.template_options)
        pieces: list[str] = []
        try:
            for response in answer(self.pair, self.context, prompt, options):
                pieces.append(response.text)
                yield response
        finally:
            self._turns += 1
            if reply := "".join(pieces):
                self.messages += [question, {"role": "assistant", "content": reply}]

    def reset(self) -> None:
        """Begin again: forget every turn. The system prompt stays, and stays read."""
        self.messages.clear()
        self._turns = 0

    def set_system(self, system: str | None) -> None:
        """Change the system prompt and keep the turns: the next answer is as if it had always been this one.

        Args:
            system: the system prompt, or None for none.

        Raises:
            DiversedError: the template refuses it; the old one then stays.
        """
        chat_prompt(self.pair, [*self.messages, {"role": "user", "content": "?"}], system, self.template_options)
        self.system = system

    def transcript(self) -> Transcript:
        """What `Transcript.write` puts into a file."""
        return Transcript(system=self.system, messages=list(self.messages), turns=self._turns)

    def restore(self, transcript: Transcript) -> None:
        """Go on from a transcript, in place of the present turns: with the same options, the same answers.

        Args:
            transcript: from `transcript` or `Transcript.read`.

        Raises:
            DiversedError: the template refuses it; the conversation then stays as it is.
        """
        question = {"role": "user", "content": "?"}
        chat_prompt(self.pair, [*transcript.messages, question], transcript.system, self.template_options)
        self.system, self.messages, self._turns = transcript.system, list(transcript.messages), transcript.turns


def chat_prompt(
    pair: Pair,
    messages: Sequence[dict[str, str]],
    system: str | None = None,
    template_options: dict | None = None,
) -> list[int]:
    """Render messages through the target's chat template, ready for an answer.

    Args:
        pair: gives the tokenizer.
        messages: {"role", "content"} each, the last one the user's.
        system: a system prompt. Default None.
        template_options: more variables for the template. Default none.

    Returns:
        Token ids.

    Raises:
        DiversedError: the template refuses them, as some do a system prompt.
    """
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    for message in messages:
        require_unicode(message["content"])
    options = template_options or {}
    if taken := sorted(TEMPLATE_ARGUMENTS & options.keys()):
        raise DiversedError(f"{', '.join(taken)} cannot be set as a variable of the chat template")
    try:
        return list(pair.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, **options))
    except Exception as error:  # templates raise what they like
        raise DiversedError(f"the chat template of {pair.target.name} refuses this conversation: {error}") from error
