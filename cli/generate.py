"""`diversed generate`: one answer to one prompt, streamed, or as one JSON object."""

import dataclasses
import json
import sys
from contextlib import closing
from typing import Annotated, Any

import typer

from diversed_mlx.cli import options as flags
from diversed_mlx.cli.printer import has_strips, legend, make_screen, summary
from diversed_mlx.errors import DiversedError


def generate(
    prompt: Annotated[
        str,
        typer.Option(
            "--prompt", "-p", help="The message to answer; - reads it from stdin, but for a newline at its end."
        ),
    ],
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
    max_tokens: flags.MaxTokens = 256,
    seed: flags.Seed = 0,
    stop: flags.Stop = None,
    system_prompt: flags.SystemPrompt = None,
    ignore_chat_template: Annotated[
        bool, typer.Option("--ignore-chat-template", help="Give the models the prompt as it is.")
    ] = False,
    chat_template_config: flags.ChatTemplateConfig = "{}",
    max_kv_size: flags.MaxKvSize = None,
    kv_bits: flags.KvBits = None,
    prefill_step_size: flags.PrefillStepSize = 2048,
    show_tokens: Annotated[bool, typer.Option("--show-tokens", help="Show where each token comes from.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else.")] = False,
) -> None:
    """Answer one prompt with speculative decoding."""
    if as_json and show_tokens:
        raise typer.BadParameter("--show-tokens and --json exclude each other")
    if ignore_chat_template and (system_prompt is not None or chat_template_config):
        raise typer.BadParameter("--ignore-chat-template leaves no place for --system-prompt or --chat-template-config")
    text = _read_stdin() if prompt == "-" else prompt
    if not text:
        raise DiversedError("the prompt is empty")
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

    from diversed_mlx.answer import answer
    from diversed_mlx.conversation import chat_prompt
    from diversed_mlx.text import encode

    if ignore_chat_template or not pair.tokenizer.has_chat_template:
        if system_prompt is not None or chat_template_config:
            raise DiversedError(f"{pair.target.name} has no chat template, so it takes no system prompt or variables")
        tokens = encode(pair.tokenizer, text)
    else:
        tokens = chat_prompt(pair, [{"role": "user", "content": text}], system_prompt, chat_template_config)
    if show_tokens:
        typer.echo(legend(strips=has_strips()), err=True)  # in colours, which note() would count
    responses = []
    screen = make_screen(show_tokens, markdown=False)
    with closing(answer(pair, pair.make_context(max_kv_size, kv_bits), tokens, options)) as stream:
        for response in stream:
            responses.append(response)
            if not as_json:
                screen.add(response)
    if as_json:
        escape = sys.stdout.encoding.lower() != "utf-8"  # what such a terminal cannot show would be lost
        typer.echo(json.dumps(_as_object(responses, len(tokens)), ensure_ascii=escape))
        return
    screen.finish()
    flags.note(summary(responses[-1].stats) if responses else "no token was asked for: --max-tokens is 0")


def _read_stdin() -> str:
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DiversedError(f"stdin is not valid UTF-8: {error}") from error
    return text.removesuffix("\n").removesuffix("\r")  # what echo adds is not part of the message


def _as_object(responses: list, prompt_tokens: int) -> dict[str, Any]:
    """The contract's JSON: text, tokens, finish_reason, stats."""
    from diversed_mlx.stats import Meter

    stats = responses[-1].stats if responses else Meter(prompt_tokens, 0).stats()  # none with --max-tokens 0
    figures = dataclasses.asdict(stats)
    figures |= {"acceptance_rate": stats.acceptance_rate, "tokens_per_round": stats.tokens_per_round}
    return {
        "text": "".join(response.text for response in responses),
        "tokens": [response.token for response in responses],
        "finish_reason": responses[-1].finish_reason if responses else "length",
        "stats": figures,
    }
