"""What is kept of an answer: plain data that a line of JSON holds, enough for every figure and picture made of it.

It knows no model: a comparison can be read back, summed up and drawn on a machine that has none.
"""

from dataclasses import asdict, dataclass

from ..block import Origin
from ..theory import tokens_of_round

DECIMALS = 6  # of weights and chances: enough for every figure, and a third of the line


@dataclass(frozen=True, kw_only=True)
class Token:
    """One token of an answer.

    Args:
        text: what became readable with it.
        origin: where it comes from.
        target_weight: weight on the target that it was verified with; None where the rule has none.
    """

    text: str
    origin: Origin
    target_weight: float | None


@dataclass(frozen=True, kw_only=True)
class Round:
    """One pass of the target.

    Args:
        proposed: drafted tokens, without those behind the end of the answer.
        accepted: how many of them stand.
        tokens: tokens that the round gave.
        chances: probability that each drafted token is accepted if those before it are, up to the first stop token;
            None where the engine does not tell.
        ends: whether the last of these drafts is a stop token.
    """

    proposed: int
    accepted: int
    tokens: int
    chances: list[float] | None
    ends: bool

    @property
    def predicted(self) -> tuple[float, float] | None:
        """Mean and variance of its tokens by theory, given the drafts."""
        return None if self.chances is None else tokens_of_round(self.chances, self.ends)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a method makes of a prompt.

    Args:
        tokens: every token, in order.
        rounds: every pass of the target, in order.
        first_token_seconds: from the prompt to the first token.
    """

    tokens: list[Token]
    rounds: list[Round]
    first_token_seconds: float

    @property
    def text(self) -> str:
        """The text."""
        return "".join(token.text for token in self.tokens)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One method's answer to one example.

    Args:
        method: its name.
        number: the example's, from 0.
        question: the example's.
        reply: the tokens and rounds.
        quality: the task's reward; None where the task could not judge.
        seconds: wall time of the whole answer, the prompt included.
        peak_memory_gb: most memory that MLX held meanwhile, in 10^9 bytes.
    """

    method: str
    number: int
    question: str
    reply: Reply
    quality: float | None
    seconds: float
    peak_memory_gb: float

    @property
    def text(self) -> str:
        """The text of the answer."""
        return self.reply.text

    @property
    def proposed(self) -> int:
        """Drafted tokens."""
        return sum(turn.proposed for turn in self.reply.rounds)

    @property
    def accepted(self) -> int:
        """Drafted tokens that stand."""
        return sum(turn.accepted for turn in self.reply.rounds)

    @property
    def predicted(self) -> tuple[float, float] | None:
        """Mean and variance of its tokens by theory, summed over its rounds; None where any of them is not known."""
        rounds = [turn.predicted for turn in self.reply.rounds]
        known = [moments for moments in rounds if moments is not None]
        return (sum(m for m, _ in known), sum(v for _, v in known)) if len(known) == len(rounds) else None

    def verified_weights(self) -> list[float]:
        """Weights on the target where a drafted token was verified."""
        verified = (token.target_weight for token in self.reply.tokens if token.origin in ("accepted", "corrected"))
        return [weight for weight in verified if weight is not None]

    def to_json(self) -> dict:
        """Plain data; the tokens as lists, which are most of it."""
        plain = asdict(self)
        plain["reply"]["tokens"] = [[t.text, t.origin, t.target_weight] for t in self.reply.tokens]
        return plain

    @classmethod
    def from_json(cls, plain: dict) -> "Answer":
        """Read what `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        tokens = [
            Token(text=text, origin=origin, target_weight=weight) for text, origin, weight in plain["reply"]["tokens"]
        ]
        rounds = [Round(**turn) for turn in plain["reply"]["rounds"]]
        reply = Reply(tokens=tokens, rounds=rounds, first_token_seconds=plain["reply"]["first_token_seconds"])
        return cls(**{key: value for key, value in plain.items() if key != "reply"}, reply=reply)


def rounded(value: float | None) -> float | None:
    """A weight or a chance as it is kept."""
    return None if value is None else round(value, DECIMALS)
