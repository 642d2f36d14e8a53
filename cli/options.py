"""The flags that commands share, and how they become a pair, a verifier and options.

Each flag is declared once, as an annotated type. A flag that does not belong to the chosen verifier is refused:
none is parsed and dropped.
"""

import json
import math
import shutil
import sys
import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diversed_mlx.cli.dial import MEANING, describe
from diversed_mlx.errors import DiversedError

if TYPE_CHECKING:
    from diversed_mlx.answer import Options
    from diversed_mlx.pair import Pair
    from diversed_mlx.verifiers import Verifier

DEFAULT_DRAFT, DEFAULT_TARGET = "1b", "8b"


class VerifierName(StrEnum):
    """Values of --verifier."""

    lossless = "lossless"
    static = "static"
    dynamic = "dynamic"
    lenient = "lenient"
    cascade = "cascade"
    none = "none"


class Rule(StrEnum):
    """Values of --rule."""

    opt = "opt"
    token = "token"


def _draft_length(text: str) -> int | str:
    if text == "auto":
        return text
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 64:
        return int(text)
    raise typer.BadParameter(f"{text} is neither a number from 1 to 64 nor auto")


def _number(value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def _positive(value: float | None) -> float | None:
    if value is not None and not value > 0:
        raise typer.BadParameter(f"{value} is not above 0")
    return value


def _bits(value: int | None) -> int | None:
    if value is not None and value not in (2, 3, 4, 5, 6, 8):
        raise typer.BadParameter(f"{value} is not one of 2, 3, 4, 5, 6, 8")
    return value


def _variables(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter('not a JSON object such as {"enable_thinking": false}')
    return value


def _name(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise typer.BadParameter("an empty name")
    return value


def _stop_strings(values: list[str] | None) -> list[str] | None:
    if values and not all(values):
        raise typer.BadParameter("an empty string would end every answer at once")
    return values


MODELS, VERIFYING, SAMPLING, CACHING = "Models", "Verification", "Sampling", "Prompt and cache"

Draft = Annotated[
    str | None,
    typer.Option(
        "--draft", "--draft-model", callback=_name, rich_help_panel=MODELS,
        help="Model that proposes: alias, folder or Hub id.", show_default="1b, if no target is named",
    ),
]  # fmt: skip
Target = Annotated[
    str | None,
    typer.Option(
        "--target", "--model", callback=_name, rich_help_panel=MODELS,
        help="Model that answers: alias, folder or Hub id.", show_default="8b",
    ),
]  # fmt: skip
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run Python code that comes with a model.", rich_help_panel=MODELS),
]
VerifierOption = Annotated[
    VerifierName | None,
    typer.Option(
        "--verifier", help="How drafts are checked; none decodes with the target alone.", rich_help_panel=VERIFYING,
        show_default="dynamic with a head for this pair, else lossless",
    ),
]  # fmt: skip
TargetWeight = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=1.0, callback=_number, help="static: weight on the target.", rich_help_panel=VERIFYING,
        show_default="0.7",
    ),
]  # fmt: skip
Head = Annotated[
    str | None,
    typer.Option(
        callback=_name, help="dynamic: folder, Hub id or task name of a trained head.", rich_help_panel=VERIFYING
    ),
]
Strictness = Annotated[
    float | None,
    typer.Option(
        callback=_number, help=f"dynamic: the dial of the head: {MEANING}.",
        rich_help_panel=VERIFYING, show_default="0",
    ),
]  # fmt: skip
Lenience = Annotated[
    float | None,
    typer.Option(
        max=1.0, callback=_positive, help="lenient: share of the draft's probability that is enough.",
        rich_help_panel=VERIFYING, show_default="0.5",
    ),
]  # fmt: skip
Alpha = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=1.0, callback=_number, help="cascade: cost of deferring to the target.",
        rich_help_panel=VERIFYING, show_default="0.2",
    ),
]  # fmt: skip
RuleOption = Annotated[
    Rule | None,
    typer.Option(
        "--rule", help="cascade: defer whole positions or tokens.", rich_help_panel=VERIFYING, show_default="opt"
    ),
]
NumDraftTokens = Annotated[
    Any,
    typer.Option(
        "--num-draft-tokens", parser=_draft_length, metavar="N|auto", rich_help_panel=VERIFYING,
        help="Tokens drafted a round; auto finds what pays, down to none.", show_default="4",
    ),
]  # fmt: skip
Temp = Annotated[
    float, typer.Option(min=0.0, callback=_finite, help="Temperature; 0 is greedy.", rich_help_panel=SAMPLING)
]
TopP = Annotated[
    float, typer.Option(max=1.0, callback=_positive, help="Nucleus sampling; 1 is off.", rich_help_panel=SAMPLING)
]
MinP = Annotated[
    float,
    typer.Option(
        min=0.0, max=1.0, callback=_finite, help="Least share of the most likely token; 0 is off.",
        rich_help_panel=SAMPLING,
    ),
]  # fmt: skip
TopK = Annotated[int, typer.Option(min=0, help="Most tokens to choose from; 0 is off.", rich_help_panel=SAMPLING)]
MaxTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens", "-m", min=-1, help="Most tokens of an answer; -1 is no limit.", rich_help_panel=SAMPLING
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Makes a run repeatable.", rich_help_panel=SAMPLING)]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        callback=_stop_strings,
        help="Text that ends the answer; may be given again.",
        rich_help_panel=SAMPLING,
    ),
]
SystemPrompt = Annotated[
    str | None, typer.Option("--system-prompt", help="System prompt of the chat template.", rich_help_panel=CACHING)
]
ChatTemplateConfig = Annotated[
    Any,
    typer.Option(
        "--chat-template-config", parser=_variables, metavar="JSON", rich_help_panel=CACHING,
        help='Variables of the chat template, such as {"enable_thinking": false}.',
    ),
]  # fmt: skip
MaxKvSize = Annotated[
    int | None,
    typer.Option(
        min=16, help="Tokens attended to: the first 4 and the latest.", rich_help_panel=CACHING, show_default="all"
    ),
]
KvBits = Annotated[
    int | None,
    typer.Option(callback=_bits, help="Quantise the cache to 2, 3, 4, 5, 6 or 8 bits.", rich_help_panel=CACHING),
]
PrefillStepSize = Annotated[int, typer.Option(min=1, help="Prompt tokens read at a time.", rich_help_panel=CACHING)]


def note(text: str) -> None:
    """Say something that is not the answer, on stderr; on a terminal lines break between words."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(
            line if len(line) <= width else textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)
            for line in text.split("\n")
        )
    typer.echo(text, err=True)


def device() -> str:
    """What measures here, for files of figures."""
    import platform
    from importlib.metadata import version

    import mlx.core as mx

    return f"{platform.system()} {platform.machine()}, MLX {version('mlx')} {mx.default_device()}"


@dataclass(frozen=True, kw_only=True)
class VerifierFlags:
    """The flags that say how drafts are checked, as they were given; None is not given.

    Raises:
        typer.BadParameter: a flag of another verifier than the chosen one.
    """

    verifier: VerifierName | None
    target_weight: float | None
    head: str | None
    strictness: float | None
    lenience: float | None
    alpha: float | None
    rule: Rule | None

    def __post_init__(self):
        owners = {
            "--target-weight": (self.target_weight, VerifierName.static),
            "--head": (self.head, VerifierName.dynamic),
            "--strictness": (self.strictness, VerifierName.dynamic),
            "--lenience": (self.lenience, VerifierName.lenient),
            "--alpha": (self.alpha, VerifierName.cascade),
            "--rule": (self.rule, VerifierName.cascade),
        }
        given = {flag: owner for flag, (value, owner) in owners.items() if value is not None}
        if self.verifier is None and given:  # a flag says which verifier is meant
            object.__setattr__(self, "verifier", next(iter(given.values())))
        for flag, owner in given.items():
            if owner is not self.verifier:
                raise typer.BadParameter(f"{flag} belongs to --verifier {owner}, not to {self.verifier}")

    def build(self, pair: "Pair") -> "Verifier | None":
        """Make the verifier; without flags, the head trained for this pair, else lossless, and say which.

        Raises:
            DiversedError: a head that is missing, damaged or for another pair.
        """
        from diversed_mlx.verifiers import Cascade, Lenient, Lossless, Static

        if pair.draft is None:
            return None
        match self.verifier:
            case VerifierName.lossless:
                return Lossless()
            case VerifierName.static:
                return Static(target_weight=0.7 if self.target_weight is None else self.target_weight)
            case VerifierName.lenient:
                return Lenient(lenience=0.5 if self.lenience is None else self.lenience)
            case VerifierName.cascade:
                rule = "token" if self.rule is Rule.token else "opt"
                return Cascade(alpha=0.2 if self.alpha is None else self.alpha, rule=rule)
            case _:
                return self._with_head(pair)

    def _with_head(self, pair: "Pair") -> "Verifier":
        from diversed_mlx.dial import nearest_setting
        from diversed_mlx.heads import find_head, load_head
        from diversed_mlx.verifiers import Dynamic, Lossless

        head = self.head
        if head is None and (found := find_head(pair)) is not None:
            head = str(found)
            note(f"verifying with the head {head}")
        if head is not None:
            verifier = Dynamic(load_head(head, pair), strictness=self.strictness or 0.0)
            if self.strictness is not None or nearest_setting(verifier.head, 0.0) is not None:
                for line in describe(verifier):
                    note(line)
            return verifier
        if self.verifier is VerifierName.dynamic:
            raise DiversedError("no head was trained for this pair on this machine: name one with --head")
        note("no head was trained for this pair: decoding is lossless (name a head with --head)")
        return Lossless()


def check_cache(max_kv_size: int | None, kv_bits: int | None) -> None:
    """Refuse two ways of bounding the cache at once, before anything is loaded.

    Raises:
        typer.BadParameter: both were given.
    """
    if max_kv_size is not None and kv_bits is not None:
        raise typer.BadParameter("--max-kv-size and --kv-bits exclude each other: a bounded cache is not quantised")


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """The flags that say which models take part.

    Args:
        draft: --draft.
        target: --target.
        trust_remote_code: --trust-remote-code.
        verifying: how drafts are checked; "none" loads no draft.
        need_draft: flags that were given and mean nothing without a draft.

    Raises:
        DiversedError: a verifier without a draft.
        typer.BadParameter: another flag that needs one.
    """

    draft: str | None
    target: str | None
    trust_remote_code: bool
    verifying: VerifierFlags
    need_draft: list[str]

    def __post_init__(self):
        verifier = self.verifying.verifier
        if self._draft_name is None and verifier not in (None, VerifierName.none):
            raise DiversedError(f"--verifier {verifier} needs a draft: add --draft, or say --verifier none")
        if self._draft_name is None and self.need_draft:
            raise typer.BadParameter(f"{self.need_draft[0]} needs a draft, and here the target decodes alone")

    @property
    def _draft_name(self) -> str | None:
        if self.verifying.verifier is VerifierName.none:
            return None
        return DEFAULT_DRAFT if self.draft is None and self.target is None else self.draft

    def load(self) -> "Pair":
        """Load what the flags need and no more.

        Raises:
            DiversedError: models that cannot be loaded or do not pair.
        """
        from diversed_mlx.pair import load_pair

        if self._draft_name is None and self.verifying.verifier is None:
            note("no --draft: the target decodes alone")
        return load_pair(
            target=self.target or DEFAULT_TARGET, draft=self._draft_name, trust_remote_code=self.trust_remote_code
        )


def make_options(
    pair: "Pair",
    verifier: "Verifier | None",
    *,
    temp: float,
    top_p: float,
    min_p: float,
    top_k: int,
    num_draft_tokens: int | str | None,
    max_tokens: int,
    seed: int,
    stop: list[str] | None,
    prefill_step_size: int,
) -> "Options":
    """Collect the flags of an answer; "auto" starts from what `diversed tune` measured here, if it did."""
    from diversed_mlx.answer import Options
    from diversed_mlx.sampling import Sampling

    start = None
    if num_draft_tokens == "auto":
        from diversed_mlx.tuning.store import find_start

        start = find_start(pair, verifier, temp)
    if start is not None:
        note("auto starts from what diversed tune measured on this machine")
    return Options(
        verifier=verifier,
        sampling=Sampling(temp=temp, top_p=top_p, min_p=min_p, top_k=top_k),
        num_draft_tokens=4 if num_draft_tokens is None else num_draft_tokens,
        max_tokens=max_tokens,
        seed=seed,
        stop=stop or (),
        prefill_step_size=prefill_step_size,
        auto_start=start,
    )
