"""`diversed chat`: a conversation in the terminal, or one answer a line of a pipe."""

import sys
from dataclasses import replace
from typing import Annotated

import typer

from diversed_mlx.cli import options as flags
from diversed_mlx.cli.keyboard import Echo, Keyboard, Messages, Pipe
from diversed_mlx.cli.printer import has_strips, legend, use_colour
from diversed_mlx.cli.session import Session
from diversed_mlx.cli.slash import HELP, Leave, run_command


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
    markdown: Annotated[
        bool | None,
        typer.Option(
            "--markdown/--no-markdown",
            help="Lay answers out as Markdown, on a terminal.",
            show_default="on, without --show-tokens",
        ),
    ] = None,
) -> None:
    """Chat with a target that a draft makes faster."""
    if markdown and show_tokens:
        raise typer.BadParameter("--show-tokens and --markdown exclude each other")
    if markdown and not use_colour():
        raise typer.BadParameter("--markdown needs a terminal with colours (no pipe, no NO_COLOR, no TERM=dumb)")
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
    # /last tells p and q of an answer that is over, so they are kept of every answer.
    conversation.options = replace(options, trace=True)
    session = Session(conversation, show_tokens=show_tokens, markdown=markdown is not False)
    _greet(show_tokens)
    _talk(session)


def _greet(show_tokens: bool) -> None:
    if sys.stdin.isatty():
        flags.note(HELP)
    if show_tokens:
        typer.echo(legend(strips=has_strips()), err=True)  # in colours, which note() would count


def _talk(session: Session) -> None:
    """Take one message after the other until the end of them."""
    from diversed_mlx.home import home

    interactive = sys.stdin.isatty()
    messages: Messages = Keyboard(home() / "chat_history") if interactive else Pipe()
    echo = Echo()
    with echo.session():
        while True:
            try:
                message = messages.read()
            except EOFError:
                break
            except KeyboardInterrupt:  # drops the line that was being typed
                typer.echo()
                continue
            try:
                if not message.strip() or run_command(session, message):
                    continue
                with echo.silent():
                    session.ask(message)
            except KeyboardInterrupt:  # of a command, or before an answer could begin
                typer.echo()
            except Leave:
                return
    if interactive:
        typer.echo()
