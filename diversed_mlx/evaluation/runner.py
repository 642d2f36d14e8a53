"""Runs methods on the same examples, in turn.

Methods take turns on each example, so that a machine that warms up or slows down treats all alike. It does not print.
"""

import dataclasses
import time
from collections.abc import Container, Iterator, Mapping, Sequence

import mlx.core as mx

from ..conversation import chat_prompt
from ..pair import Pair
from ..tasks.task import Example, Task, conversation_of
from .engine import Method, Settings
from .record import Answer

WARM_UP_TOKENS = 8


def run(
    pair: Pair,
    task: Task,
    examples: Sequence[Example],
    methods: Mapping[str, Method],
    settings: Settings,
    *,
    seed: int,
    shots: Sequence[Example] = (),
    done: Container[tuple[str, int]] = (),
) -> Iterator[Answer]:
    """Answer every example with every method.

    Args:
        pair: its chat template makes the prompts.
        task: judges the answers.
        examples: what is asked.
        methods: by name; the order in which they take turns changes from example to example.
        settings: shared by all of them.
        seed: of the first example; the next ones count up.
        shots: worked examples before each question. Default none.
        done: names and example numbers of answers that are left out. Default none.

    Yields:
        The answers, example by example. Before the first, each method gives a short one that is not measured.
    """
    names, warm = list(methods), False
    for number, example in enumerate(examples):
        prompt = chat_prompt(pair, conversation_of(example, shots))
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if (name, number) in done:
                continue
            if not warm:
                _warm_up(methods, prompt, settings)
                warm = True
            mx.reset_peak_memory()
            began = time.perf_counter()
            reply = methods[name](prompt, settings, seed + number)
            seconds = time.perf_counter() - began
            yield Answer(
                method=name,
                number=number,
                question=example.question,
                reply=reply,
                quality=task.reward(reply.text, example),
                seconds=seconds,
                peak_memory_gb=mx.get_peak_memory() / 1e9,
            )


def _warm_up(methods: Mapping[str, Method], prompt: Sequence[int], settings: Settings) -> None:
    """Compile and allocate before anything is measured."""
    short = dataclasses.replace(settings, max_tokens=min(WARM_UP_TOKENS, settings.max_tokens))
    for method in methods.values():
        method(prompt, short, 0)
