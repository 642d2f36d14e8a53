"""`diversed chat`: a conversation in the terminal."""

import io
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from diversed_mlx.cli import options as flags
from diversed_mlx.cli.printer import legend, show, summary
from diversed_mlx.errors import DiversedError

if TYPE_CHECKING:
    from diversed_mlx.answer import Response
    from diversed_mlx.conversation import Conversation

HELP = "q leaves, r forgets the conversation, h shows this; Ctrl-C stops an answer, Ctrl-D leaves"


def chat(
    draft: flags.Draft = None,
    target: flags.Target = None,
    trust_remote_code: flags.TrustRemoteCode = False,
    verifier: flags.VerifierOption = None,
    target_weight: flags.TargetWeight = None,
    head: flags.Head = None,
    strictness: flags.Strictness = None,
    lenience: flags.Lenience = None,
    alpha: flags.Alpha = None,
    rule: flags.RuleOption = None,
    num_draft_tokens: flags.NumDraftTokens = None,
    temp: flags.Temp = 0.0,
    top_p: flags.TopP = 1.0,
    min_p: flags.MinP = 0.0,
    top_k: flags.TopK = 0,
    max_tokens: flags.MaxTokens = 1024,
    seed: flags.Seed = 0,
    stop: flags.Stop = None,
    system_prompt: flags.SystemPrompt = None,
    chat_template_config: flags.ChatTemplateConfig = "{}",
    max_kv_size: flags.MaxKvSize = None,
    kv_bits: flags.KvBits = None,
    prefill_step_size: flags.PrefillStepSize = 2048,
    show_tokens: Annotated[bool, typer.Option("--show-tokens", help="Show where each token comes from.")] = False,
) -> None:
    """Chat with a target that a draft makes faster."""
    verifying = flags.VerifierFlags(
        verifier=verifier,
        target_weight=target_weight,
        head=head,
        strictness=strictness,
        lenience=lenience,
        alpha=alpha,
        rule=rule,
    )
    flags.check_cache(max_kv_size, kv_bits)
    need_draft = {"--num-draft-tokens": num_draft_tokens is not None, "--show-tokens": show_tokens}
    models = flags.ModelFlags(
        draft=draft,
        target=target,
        trust_remote_code=trust_remote_code,
        verifying=verifying,
        need_draft=[flag for flag, given in need_draft.items() if given],
    )
    pair = models.load()
    options = flags.make_options(
        pair,
        verifying.build(pair),
        temp=temp,
        top_p=top_p,
        min_p=min_p,
        top_k=top_k,
        num_draft_tokens=num_draft_tokens,
        max_tokens=max_tokens,
        seed=seed,
        stop=stop,
        prefill_step_size=prefill_step_size,
    )

    from diversed_mlx.conversation import Conversation

    conversation = Conversation(
        pair,
        options,
        system=system_prompt,
        template_options=chat_template_config,
        max_kv_size=max_kv_size,
        kv_bits=kv_bits,
    )
    interactive = sys.stdin.isatty()
    if not interactive and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # whatever the locale says of terminals
    if interactive:
        import readline  # noqa: F401  gives input() its line editing and arrow keys

        flags.note(HELP)
    if show_tokens:
        flags.note(legend())
    while True:
        try:
            question = input(">> " if interactive else "")
        except EOFError:
            break
        except KeyboardInterrupt:  # drops the line that was being typed
            typer.echo()
            continue
        except UnicodeDecodeError as error:
            raise DiversedError(f"stdin is not valid UTF-8: {error}") from error
        if question == "q":
            break
        if question == "r":
            conversation.reset()
            flags.note("the conversation is forgotten")
        elif question == "h":
            flags.note(HELP)
        elif question.strip():
            _turn(conversation, question, show_tokens, max_tokens)
    if interactive:
        typer.echo()


def _turn(conversation: "Conversation", question: str, show_tokens: bool, max_tokens: int) -> None:
    """Stream one answer and the line of figures behind it."""
    last = None
    try:
        with closing(conversation.ask(question)) as responses:
            for response in responses:
                last = response
                show(response, show_tokens)
        typer.echo()
    except KeyboardInterrupt:
        typer.echo()
        flags.note("stopped")
    except DiversedError as error:  # this message failed, the session goes on
        flags.note(f"error: {error}")
        return
    if last is not None:
        flags.note(summary(last.stats) + _why_cut(last, max_tokens))


def _why_cut(last: "Response", max_tokens: int) -> str:
    if last.finish_reason != "length":
        return ""
    return f" | cut at --max-tokens {max_tokens}" if last.stats.generated_tokens == max_tokens else " | context is full"
