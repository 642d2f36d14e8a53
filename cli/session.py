"""A chat as it goes: one turn after the other, the last answer token by token, and the figures of all of them."""

import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diversed_mlx.cli.options import note
from diversed_mlx.cli.printer import count, make_screen, summary
from diversed_mlx.errors import DiversedError

if TYPE_CHECKING:
    from diversed_mlx.answer import Response
    from diversed_mlx.conversation import Conversation


@dataclass
class Totals:
    """Sums over the answers of a session."""

    answers: int = 0
    seconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    weights: list[float] = field(default_factory=list)  # of the drafts that were verified

    def add(self, responses: "list[Response]", seconds: float) -> None:
        """Count an answer that took some seconds, the reading of its prompt included."""
        stats = responses[-1].stats
        self.answers += 1
        self.seconds += seconds
        self.tokens += stats.generated_tokens
        self.rounds += stats.rounds
        self.proposed += stats.proposed
        self.accepted += stats.accepted
        checked = (response for response in responses if response.origin in ("accepted", "corrected"))
        self.weights += [response.target_weight for response in checked if response.target_weight is not None]

    def line(self) -> str:
        """One line of figures; what does not apply is left out."""
        parts = [f"{count(self.answers, 'answer')}, {count(self.tokens, 'token')} in {self.seconds:.1f} s"]
        if self.proposed:
            parts.append(f"acceptance {self.accepted / self.proposed:.1%} ({self.accepted}/{self.proposed})")
            parts.append(f"{self.tokens / self.rounds:.2f} tokens per round")
        if self.weights:
            parts.append(f"mean weight on the target {sum(self.weights) / len(self.weights):.2f}")
        return " | ".join(parts)


class Session:
    """A conversation and how it is shown.

    Args:
        conversation: who answers; its options trace, so that the last answer can be told token by token.
        show_tokens: mark tokens by their origin.
        markdown: lay answers out as Markdown, where the terminal can.
    """

    def __init__(self, conversation: "Conversation", *, show_tokens: bool, markdown: bool):
        self.conversation = conversation
        self.totals = Totals()
        self.last: list[Response] = []
        self._show_tokens = show_tokens
        self._markdown = markdown

    def ask(self, question: str) -> None:
        """Stream one answer and the line of figures behind it."""
        responses: list[Response] = []
        screen = make_screen(self._show_tokens, self._markdown)
        began = time.perf_counter()
        try:
            with closing(self.conversation.ask(question)) as stream:
                for response in stream:
                    responses.append(response)
                    screen.add(response)
            screen.finish()
        except KeyboardInterrupt:
            screen.finish()
            note("stopped")
        except DiversedError as error:  # this message failed, the session goes on
            note(f"error: {error}")
            return
        self.last = responses
        if responses:
            self.totals.add(responses, time.perf_counter() - began)
            note(summary(responses[-1].stats) + self._why_cut(responses[-1]))
        elif self.conversation.options.max_tokens == 0:
            note("no token was asked for: --max-tokens is 0")

    def _why_cut(self, last: "Response") -> str:
        limit = self.conversation.options.max_tokens
        if last.finish_reason != "length":
            return ""
        return f" | cut at --max-tokens {limit}" if last.stats.generated_tokens == limit else " | context is full"
