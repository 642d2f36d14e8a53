"""Turns: every answer is the one a cold start on the same history gives, and what was read is not read again."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from tiny import CHAT_TEMPLATE, END, SPECIALS, write_model

from diversed_mlx import Conversation, DiversedError, Options, Pair, Response, Sampling, Static, load_pair
from diversed_mlx.answer import answer
from diversed_mlx.conversation import chat_prompt
from diversed_mlx.lm import LM
from diversed_mlx.text import encode

OPTIONS = Options(sampling=Sampling(temp=0), num_draft_tokens=3, max_tokens=12)
SYSTEM = "You are a very helpful assistant. " * 3

NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<|{{ message['role'] }}|>{{ message['content'] | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THINKING = (
    "{% for message in messages %}{% set content = message.content %}"
    "{% if message.role == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "<|{{ message.role }}|>\n{{ content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
SPACED = (
    "{{ bos_token }}{% for message in messages %}{{ '\\n \\t' + message['content'] | trim + '  ' }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}{{ ' : ' }}{% endif %}"
)
TEMPLATES = {"plain": CHAT_TEMPLATE, "no system": NO_SYSTEM, "thinking": THINKING, "spaced": SPACED, "none": None}
BOS = "<|system|>"  # what the template with a BOS has for one


def give_bos(folder: Path) -> None:
    """Let a tokenizer have a BOS token and write it before every text, as Llama's does."""
    config, file = folder / "tokenizer_config.json", folder / "tokenizer.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"bos_token": BOS}))
    tokenizer = json.loads(file.read_text())
    token = {"SpecialToken": {"id": BOS, "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [token, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [token, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {BOS: {"id": BOS, "ids": [256 + SPECIALS.index(BOS)], "tokens": [BOS]}},
    }
    file.write_text(json.dumps(tokenizer))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> dict[str, Pair]:
    """A pair for each template."""
    root, made = tmp_path_factory.mktemp("templates"), {}
    for name, template in TEMPLATES.items():
        target = write_model(root / name / "target", seed=1, template=template)
        draft = write_model(root / name / "draft", seed=1, noise=0.15, template=template)
        if name == "spaced":
            give_bos(target)
            give_bos(draft)
        made[name] = load_pair(target=str(target), draft=str(draft))
    return made


@pytest.fixture(params=["plain", "spaced", "gemma"])
def any_pair(request, pairs, gemma_pair) -> Pair:
    return gemma_pair if request.param == "gemma" else pairs[request.param]


def saying(pair: Pair, reply: str) -> Callable[[mx.array, mx.array], mx.array]:
    """A logits processor that lets the next answer be this, whatever the prompt is."""
    script, start = [*pair.tokenizer.encode(reply, add_special_tokens=False), END], None

    def processor(history: mx.array, logits: mx.array) -> mx.array:
        nonlocal start
        if start is None:
            start = history.shape[0]
        at = history.shape[0] - start
        if at >= len(script):
            return logits
        return mx.where(mx.arange(logits.shape[-1])[None] == script[at], 0.0, -mx.inf)

    return processor


def ask(conversation: Conversation, text: str) -> list[Response]:
    return list(conversation.ask(text))


def text_of(responses: Sequence[Response]) -> str:
    return "".join(r.text for r in responses)


def cold(conversation: Conversation, text: str, seed: int = 0) -> list[int]:
    """Tokens of the answer that a cold start on the same history gives, computed without the conversation."""
    messages = [*conversation.messages, {"role": "user", "content": text}]
    if conversation.system is not None:
        messages = [{"role": "system", "content": conversation.system}, *messages]
    pair = conversation.pair
    prompt = pair.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, **(conversation.template_options or {})
    )
    options = replace(conversation.options, seed=seed)
    return [r.token for r in answer(pair, pair.make_context(), prompt, options)]


@pytest.mark.parametrize(
    "options",
    [OPTIONS, replace(OPTIONS, verifier=None), replace(OPTIONS, sampling=Sampling(), verifier=Static())],
    ids=["greedy", "plain", "sampled"],
)
def test_warm_answers_equal_cold_ones_over_three_turns(any_pair, options):
    conversation = Conversation(any_pair, options)
    for turn, question in enumerate(("Hello!", "  And a second, longer question?\n", "día 🙂")):
        expected = cold(conversation, question, seed=turn)
        history = list(conversation.messages)
        responses = ask(conversation, question)
        assert [r.token for r in responses] == expected
        assert conversation.messages == [
            *history,
            {"role": "user", "content": question},
            {"role": "assistant", "content": text_of(responses)},
        ]


def test_an_answer_whose_text_has_other_tokens_than_it_was_made_of_is_read_again(pairs):
    conversation = Conversation(pairs["plain"], OPTIONS)
    responses = ask(conversation, "Hello!")
    tokens = [r.token for r in responses]
    again = conversation.pair.tokenizer.encode(text_of(responses), add_special_tokens=False)
    assert again != tokens, "this answer is valid UTF-8, so nothing is tested"
    expected = cold(conversation, "Go on")
    assert [r.token for r in ask(conversation, "Go on")] == expected


def test_each_model_reads_the_system_prompt_and_each_turn_once(pairs, monkeypatch):
    pair = pairs["plain"]
    replies = ("First answer.", "Second one.", "Third.")
    conversation = Conversation(pair, system=SYSTEM)
    reads: list[tuple[LM, int, int]] = []
    call = LM.__call__

    def counted(lm: LM, tokens: mx.array, cache) -> tuple[mx.array, mx.array]:
        reads.append((lm, cache.offset, tokens.shape[0]))
        return call(lm, tokens, cache)

    monkeypatch.setattr(LM, "__call__", counted)
    length = 0
    for turn, reply in enumerate(replies):
        reads.clear()
        conversation.options = replace(OPTIONS, max_tokens=40, logits_processors=[saying(pair, reply)])
        responses = ask(conversation, f"Question {turn}")
        assert text_of(responses) == reply
        for lm in (pair.target, pair.draft):
            first = min(offset for model, offset, _ in reads if model is lm)
            # What was committed before is read already, but for what the last round left to read.
            assert length - 2 <= first <= length
            if turn:
                fed = sum(count for model, _, count in reads if model is lm)
                assert fed < len(f"Question {turn}") + len(reply) + 20 < len(SYSTEM)
        stats = responses[-1].stats
        assert stats.prompt_tokens == length + len(f"Question {turn}") + (3 if turn else 5 + len(SYSTEM))
        assert length - 2 <= stats.cached_tokens <= length
        length = stats.prompt_tokens + stats.generated_tokens
    assert length == len(conversation.context.tokens)


def test_reset_forgets_the_turns_and_keeps_the_system_prompt_read(pairs):
    conversation = Conversation(pairs["plain"], OPTIONS, system=SYSTEM)
    first = [r.token for r in ask(conversation, "Hello!")]
    ask(conversation, "More")
    conversation.reset()
    assert conversation.messages == []
    again = ask(conversation, "Hello!")
    assert [r.token for r in again] == first
    assert again[-1].stats.cached_tokens >= len(SYSTEM)
    assert [m["content"] for m in conversation.messages] == ["Hello!", text_of(again)]


def test_a_changed_system_prompt_counts_from_the_next_turn(pairs):
    conversation = Conversation(pairs["plain"], OPTIONS, system=SYSTEM)
    ask(conversation, "Hello!")
    conversation.system = "Be brief."
    expected = cold(conversation, "More")
    assert [r.token for r in ask(conversation, "More")] == expected


# Interrupted turns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [1, 2, 3, 4, 5, 9])
def test_an_answer_that_the_reader_leaves_stays_as_far_as_it_went(any_pair, taken):
    processor = saying(any_pair, "Some longer reply")
    conversation = Conversation(any_pair, replace(OPTIONS, logits_processors=[processor]))
    turn = conversation.ask("Hello!")
    for _ in range(taken):
        next(turn)
    turn.close()
    assert conversation.messages == [
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Some longer reply"[:taken]},
    ]
    conversation.options = OPTIONS
    expected = cold(conversation, "Go on")
    assert [r.token for r in ask(conversation, "Go on")] == expected


def bomb(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Let the n-th pass of a model be interrupted."""
    call, calls = LM.__call__, iter(range(1, 1000))

    def interrupted(*args) -> tuple[mx.array, mx.array]:
        if next(calls) == n:
            raise KeyboardInterrupt
        return call(*args)

    monkeypatch.setattr(LM, "__call__", interrupted)


@pytest.mark.parametrize("n", [1, 2, 4, 5, 9, 14])
def test_ctrl_c_in_the_second_turn_leaves_the_first_and_what_was_said(any_pair, n, monkeypatch):
    conversation = Conversation(any_pair, OPTIONS)
    ask(conversation, "Hello!")
    before, said = list(conversation.messages), ""
    with monkeypatch.context() as patch:
        bomb(patch, n)
        try:
            for response in conversation.ask("Now count"):
                said += response.text
        except KeyboardInterrupt:
            pass
        else:
            pytest.fail("not interrupted")
    turn = [{"role": "user", "content": "Now count"}, {"role": "assistant", "content": said}]
    assert conversation.messages == before + (turn if said else [])
    expected = cold(conversation, "Go on")
    assert [r.token for r in ask(conversation, "Go on")] == expected


@pytest.mark.parametrize("name", ["plain", "no system"])
def test_a_question_without_any_answer_is_dropped_so_that_roles_alternate(pairs, name, monkeypatch):
    conversation = Conversation(pairs[name], OPTIONS)
    for _ in range(2):
        with monkeypatch.context() as patch:
            bomb(patch, 1)
            with pytest.raises(KeyboardInterrupt):
                ask(conversation, "Hello!")
        assert conversation.messages == []
    expected = cold(conversation, "Again")
    assert [r.token for r in ask(conversation, "Again")] == expected


def test_an_answer_of_which_only_half_a_character_came_counts_as_none(pairs):
    pair = pairs["plain"]
    conversation = Conversation(pair, replace(OPTIONS, logits_processors=[saying(pair, "🙂🙂")]))
    turn = conversation.ask("Hello!")
    assert [next(turn).text for _ in range(3)] == ["", "", ""]
    turn.close()
    assert conversation.messages == []


def test_a_turn_that_is_never_begun_changes_nothing(pairs):
    conversation = Conversation(pairs["plain"], OPTIONS)
    conversation.ask("Hello!").close()
    assert conversation.messages == []
    assert conversation.context.tokens == []


def test_an_answer_that_is_only_a_stop_token_is_no_answer(pairs):
    pair = pairs["no system"]
    conversation = Conversation(pair, replace(OPTIONS, logits_processors=[saying(pair, "")]))
    responses = ask(conversation, "Hello!")
    assert [(r.token, r.finish_reason) for r in responses] == [(END, "stop")]
    assert conversation.messages == []


# Templates ----------------------------------------------------------------------------------------------------------


def test_a_system_prompt_that_the_template_refuses_is_an_error_with_its_reason(pairs):
    conversation = Conversation(pairs["no system"], OPTIONS, system=SYSTEM)
    with pytest.raises(DiversedError, match=r"chat template of .* refuses .*System role not supported"):
        ask(conversation, "Hello!")
    assert conversation.messages == []
    conversation.system = None
    assert len(ask(conversation, "Hello!")) > 0


def test_thoughts_leave_the_history_and_the_answer_is_still_a_cold_one(pairs):
    pair, thoughts = pairs["thinking"], "<think>hm, two?</think>\nIt is two."
    conversation = Conversation(pair, replace(OPTIONS, max_tokens=60, logits_processors=[saying(pair, thoughts)]))
    assert text_of(ask(conversation, "1 + 1?")) == thoughts
    assert conversation.messages[-1]["content"] == thoughts
    prompt = chat_prompt(pair, [*conversation.messages, {"role": "user", "content": "Sure?"}])
    text = pair.tokenizer.decode(prompt)
    assert "hm, two?" not in text
    assert "It is two.<|end|>" in text
    conversation.options = OPTIONS
    expected = cold(conversation, "Sure?")
    assert [r.token for r in ask(conversation, "Sure?")] == expected


@pytest.mark.parametrize("thinking", [True, False])
def test_template_options_reach_the_template(pairs, thinking):
    pair, options = pairs["thinking"], {"enable_thinking": thinking}
    text = pair.tokenizer.decode(chat_prompt(pair, [{"role": "user", "content": "Hi"}], None, options))
    assert text == "<|user|>\nHi<|end|>\n<|assistant|>\n" + ("" if thinking else "<think>\n\n</think>\n\n")
    conversation = Conversation(pair, OPTIONS, template_options=options)
    responses = ask(conversation, "Hi")
    assert pair.tokenizer.decode(conversation.context.tokens).startswith(text)
    assert responses[-1].stats.prompt_tokens == len(pair.tokenizer.encode(text, add_special_tokens=False))


def test_a_bos_token_comes_once_whoever_writes_it(pairs):
    pair = pairs["spaced"]
    bos, text = pair.tokenizer.bos_token_id, pair.tokenizer.encode("Hi", add_special_tokens=False)
    assert pair.tokenizer.encode("Hi") == [bos, *text]
    assert encode(pair.tokenizer, "Hi") == [bos, *text]
    assert encode(pair.tokenizer, BOS + "Hi") == [bos, *text]
    prompt = chat_prompt(pair, [{"role": "user", "content": " Hi  "}])
    assert pair.tokenizer.decode(prompt) == BOS + "\n \tHi  <|end|> : "
    assert prompt.count(bos) == 1


def test_a_template_that_trims_answers_is_followed(pairs):
    pair = pairs["spaced"]
    conversation = Conversation(pair, replace(OPTIONS, max_tokens=30, logits_processors=[saying(pair, "  well \n")]))
    assert text_of(ask(conversation, "Hello!")) == "  well \n"
    conversation.options = OPTIONS
    expected = cold(conversation, "Go on")
    assert [r.token for r in ask(conversation, "Go on")] == expected


def test_a_tokenizer_without_a_template_cannot_chat(pairs):
    with pytest.raises(DiversedError, match="has no chat template, so it cannot chat: use generate"):
        Conversation(pairs["none"], OPTIONS)


def test_text_that_is_not_unicode_is_refused_before_anything_is_read(pairs):
    conversation = Conversation(pairs["plain"], OPTIONS)
    with pytest.raises(DiversedError, match="not valid UTF-8"):
        ask(conversation, "broken \udce9")
    assert conversation.messages == []
    assert len(ask(conversation, "whole")) > 0


# Errors and changes of the history -----------------------------------------------------------------------------------


def test_a_message_that_does_not_fit_is_an_error_and_the_next_one_is_answered(any_pair, monkeypatch):
    conversation = Conversation(any_pair, OPTIONS)
    ask(conversation, "Hello!")
    before = list(conversation.messages)
    monkeypatch.setattr(any_pair, "context_length", 300)
    with pytest.raises(DiversedError, match="the context of this pair holds 300: shorten it"):
        ask(conversation, "x" * 300)
    assert conversation.messages == before
    expected = cold(conversation, "Shorter")
    assert [r.token for r in ask(conversation, "Shorter")] == expected


def edit_answer(messages: list[dict[str, str]]) -> None:
    messages[1] = {"role": "assistant", "content": "Something else"}


def drop_first_turn(messages: list[dict[str, str]]) -> None:
    del messages[:2]


def add_turn(messages: list[dict[str, str]]) -> None:
    messages += [{"role": "user", "content": "And?"}, {"role": "assistant", "content": "Nothing."}]


def change_letter(messages: list[dict[str, str]]) -> None:
    messages[2]["content"] = messages[2]["content"].replace("S", "s")


@pytest.mark.parametrize("edit", [edit_answer, drop_first_turn, add_turn, change_letter, list.clear])
def test_a_history_that_the_caller_changed_is_the_one_that_is_answered(any_pair, edit):
    conversation = Conversation(any_pair, OPTIONS)
    ask(conversation, "Hello!")
    ask(conversation, "Second")
    edit(conversation.messages)
    expected = cold(conversation, "Go on")
    assert [r.token for r in ask(conversation, "Go on")] == expected


def test_an_error_of_a_processor_leaves_a_conversation_that_goes_on(any_pair):
    def failing(history: mx.array, logits: mx.array) -> mx.array:
        raise ZeroDivisionError

    conversation = Conversation(any_pair, OPTIONS)
    ask(conversation, "Hello!")
    before = list(conversation.messages)
    conversation.options = replace(OPTIONS, logits_processors=[failing])
    with pytest.raises(ZeroDivisionError):
        ask(conversation, "Second")
    assert conversation.messages == before
    conversation.options = OPTIONS
    expected = cold(conversation, "Third")
    assert [r.token for r in ask(conversation, "Third")] == expected


def test_two_conversations_on_one_pair_do_not_mix(pairs):
    def turns(questions: Sequence[str]) -> Iterator[list[int]]:
        conversation = Conversation(pairs["plain"], OPTIONS)
        for question in questions:
            yield [r.token for r in ask(conversation, question)]

    first, second = ("a", "b", "c"), ("Hello!", "More", "And more")
    alone = list(turns(first)), list(turns(second))
    together = list(zip(turns(first), turns(second), strict=True))
    assert [[a for a, _ in together], [b for _, b in together]] == list(alone)


@pytest.mark.parametrize("max_kv_size", [32, 64])
def test_a_bounded_cache_goes_on_as_a_cold_one(pairs, max_kv_size):
    pair = pairs["plain"]
    conversation = Conversation(pair, OPTIONS, max_kv_size=max_kv_size)
    for question in ("Hello!", "A second question that is longer than that", "Third"):
        prompt = chat_prompt(pair, [*conversation.messages, {"role": "user", "content": question}])
        expected = [r.token for r in answer(pair, pair.make_context(max_kv_size), prompt, OPTIONS)]
        assert [r.token for r in ask(conversation, question)] == expected
