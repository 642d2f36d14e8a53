"""`diversed chat` with scripted sessions on stdin: the whole transcript, and that it is what the library answers."""

import re
from unittest import mock

import pytest
from test_cli_generate import LOSSLESS_NOTE, figures, marked, run, save_head
from tiny import write_model, write_tokenizer

from diversed_mlx import Conversation, Lossless, Options, Sampling, Static
from diversed_mlx.cli.printer import PlainScreen
from diversed_mlx.cli.slash import HELP
from diversed_mlx.lm import LM

GREEDY = Sampling(temp=0.0)


def chat(checkpoints, lines: str | bytes, *args: object, draft: str = "draft", target: str = "target", **settings):
    """Run a session; `lines` is what the person types."""
    models = ("--draft", checkpoints[draft], "--target", checkpoints[target])
    return run("chat", *models, *args, input=lines, **settings)


def ask(conversation: Conversation, *messages: str) -> list[list]:
    """The responses to each message."""
    return [list(conversation.ask(message)) for message in messages]


def text(responses) -> str:
    return "".join(response.text for response in responses)


def transcript(turns) -> str:
    return "".join(text(responses) + "\n" for responses in turns)


def said(outcome) -> str:
    return outcome.stdout_bytes.decode()


# Turns


def test_two_turns_are_those_of_the_library(checkpoints, pair):
    outcome = chat(checkpoints, "hi\nand you?\n", "-m", 30)
    first, second = turns = ask(Conversation(pair, Options(sampling=GREEDY, max_tokens=30)), "hi", "and you?")
    assert said(outcome) == transcript(turns)
    cut = r" \| cut at --max-tokens 30"
    expected = [LOSSLESS_NOTE, figures(first[-1].stats) + cut, figures(second[-1].stats) + cut]
    lines = outcome.stderr.splitlines()
    assert lines[0] == expected[0]
    assert len(lines) == 3
    assert re.fullmatch(expected[1], lines[1])
    assert re.fullmatch(expected[2], lines[2])


def test_all_options_reach_the_conversation(checkpoints, pair):
    flags = "--verifier static --target-weight 0.4 --temp 0.9 --top-k 50 --seed 7 -m 25 --num-draft-tokens 2 --stop Z"
    outcome = chat(checkpoints, "hi\nho\n", *flags.split(), "--system-prompt", "be kind", "--max-kv-size", 32)
    options = Options(
        verifier=Static(target_weight=0.4),
        sampling=Sampling(temp=0.9, top_k=50),
        seed=7,
        max_tokens=25,
        num_draft_tokens=2,
        stop=["Z"],
    )
    assert said(outcome) == transcript(ask(Conversation(pair, options, system="be kind", max_kv_size=32), "hi", "ho"))


@pytest.mark.slow
def test_without_flags_an_answer_has_up_to_1024_tokens(checkpoints):
    outcome = chat(checkpoints, "hi\n")
    assert "1024 tokens" in outcome.stderr
    assert outcome.stderr.endswith("| cut at --max-tokens 1024\n")


def test_an_answer_that_ended_by_itself_is_not_called_cut(checkpoints, tmp_path):
    outcome = chat(checkpoints, "hi\n", "--head", save_head(tmp_path, -1e4), "-m", 400)
    assert "cut" not in outcome.stderr
    assert outcome.stderr.endswith(" GB\n")


def test_an_answer_that_fills_the_context_says_so(checkpoints):
    for limit in (-1, 100):
        assert chat(checkpoints, "x" * 2030 + "\n", "-m", limit).stderr.endswith(" GB | context is full\n")


def test_the_target_alone_chats_too_and_loads_no_draft(checkpoints, pair):
    outcome = chat({**checkpoints, "draft": "/no/such/folder"}, "hi\nho\n", "--verifier", "none", "-m", 20)
    assert said(outcome) == transcript(
        ask(Conversation(pair, Options(verifier=None, sampling=GREEDY, max_tokens=20)), "hi", "ho")
    )
    assert "acceptance" not in outcome.stderr
    assert "weight" not in outcome.stderr


def test_the_head_for_this_pair_is_used_in_every_turn_and_named_once(checkpoints, tmp_path):
    names = str(checkpoints["draft"]), str(checkpoints["target"])
    head = save_head(tmp_path / "heads" / "gsm8k", -1e4, names)
    note, *turns = chat(checkpoints, "hi\nho\n", "-m", 20, home=tmp_path).stderr.splitlines()
    assert note == f"verifying with the head {head}"
    assert len(turns) == 2
    assert all("acceptance 100.0%" in turn and "weight on the target 0.00" in turn for turn in turns)


# Commands


def test_r_forgets_the_turns_and_keeps_the_system_prompt(checkpoints, pair):
    outcome = chat(checkpoints, "hi\nr\nhi\n", "-m", 20, "--system-prompt", "be kind")
    options = Options(sampling=GREEDY, max_tokens=20)
    first = ask(Conversation(pair, options, system="be kind"), "hi")
    assert said(outcome) == transcript(first) * 2
    assert outcome.stderr.splitlines()[2] == "the conversation is forgotten"


def test_h_shows_the_commands_and_is_no_message(checkpoints, pair):
    outcome = chat(checkpoints, "h\nhi\n", "-m", 20)
    assert said(outcome) == transcript(ask(Conversation(pair, Options(sampling=GREEDY, max_tokens=20)), "hi"))
    assert outcome.stderr.splitlines()[:2] == [LOSSLESS_NOTE, HELP]
    for word in ("q", "r", "h", "Ctrl-C", "Ctrl-D"):
        assert word in HELP.replace(",", "").replace(";", "").split()


@pytest.mark.parametrize("end", ["q\nhi\nho\n", "", "\n", "   \n\t\n"])
def test_q_and_the_end_of_input_leave_and_empty_lines_do_nothing(checkpoints, pair, end):
    outcome = chat(checkpoints, "\n\nhi\n" + end, "-m", 20)
    assert said(outcome) == transcript(ask(Conversation(pair, Options(sampling=GREEDY, max_tokens=20)), "hi"))
    assert len(outcome.stderr.splitlines()) == 2


def test_a_last_line_without_a_newline_is_answered(checkpoints, pair):
    outcome = chat(checkpoints, "hi", "-m", 20)
    assert said(outcome) == transcript(ask(Conversation(pair, Options(sampling=GREEDY, max_tokens=20)), "hi"))


def test_nothing_on_stdin_prints_nothing(checkpoints):
    outcome = chat(checkpoints, "")
    assert (said(outcome), outcome.stderr) == ("", LOSSLESS_NOTE + "\n")


def test_no_prompt_is_shown_where_nobody_types(checkpoints):
    outcome = chat(checkpoints, "hi\n", "-m", 5)
    assert ">>" not in outcome.stdout + outcome.stderr
    assert HELP not in outcome.stderr


# Where tokens come from


def test_show_tokens_marks_every_turn_where_there_is_no_colour(checkpoints, pair):
    outcome = chat(checkpoints, "hi\nho\n", "-m", 30, "--show-tokens", NO_COLOR="1")
    turns = ask(Conversation(pair, Options(verifier=Lossless(), sampling=GREEDY, max_tokens=30)), "hi", "ho")
    assert said(outcome) == "".join(marked(responses) + "\n" for responses in turns)
    assert outcome.stderr.count("tokens: accepted, [corrected], (bonus)") == 1
    assert "\x1b" not in said(outcome) + outcome.stderr


# A turn that fails


def test_a_message_that_does_not_fit_is_refused_and_forgotten_and_the_session_goes_on(checkpoints, pair):
    outcome = chat(checkpoints, "hi\n" + "x" * 2100 + "\nho\n", "-m", 20)
    assert said(outcome) == transcript(ask(Conversation(pair, Options(sampling=GREEDY, max_tokens=20)), "hi", "ho"))
    error = outcome.stderr.splitlines()[2]
    assert re.fullmatch(r"error: the prompt has \d+ tokens and the context of this pair holds 2048: shorten it", error)


def test_a_template_that_refuses_a_message_costs_that_turn_only(checkpoints, tmp_path):
    strict = write_model(tmp_path / "strict")
    write_tokenizer(strict, template="{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}hey")
    outcome = chat({**checkpoints, "strict": strict}, "hi\nho\nr\nhi\n", "-m", 20, target="strict")
    first, third = said(outcome).splitlines()[0], said(outcome).splitlines()[-1]
    assert first == third
    assert f"error: the chat template of {strict} refuses this conversation: one only\n" in outcome.stderr


def test_no_chat_without_a_template(checkpoints, tmp_path):
    plain = write_model(tmp_path / "plain", template=None)
    outcome = chat({**checkpoints, "plain": plain}, "hi\n", target="plain", code=1)
    assert outcome.stderr.endswith("plain has no chat template, so it cannot chat: use generate\n")
    assert said(outcome) == ""


def test_input_that_is_not_utf_8_is_one_clear_line(checkpoints):
    outcome = chat(checkpoints, b"\xff\n", "-m", 5, code=1)
    note, error = outcome.stderr.splitlines()
    assert note == LOSSLESS_NOTE
    assert error.startswith("error: stdin is not valid UTF-8: ")


# An answer that is interrupted


def cold_start(pair, question: str, reply: str, max_tokens: int) -> Conversation:
    """A conversation that has read nothing yet, with one turn behind it."""
    conversation = Conversation(pair, Options(sampling=GREEDY, max_tokens=max_tokens))
    if reply:
        conversation.messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
    return conversation


@pytest.mark.parametrize("shown", [1, 2, 9])
def test_an_interrupt_while_printing_keeps_what_was_said(checkpoints, pair, monkeypatch, shown):
    printed = []

    add = PlainScreen.add

    def interrupted(self, response):
        add(self, response)
        printed.append(response.text)
        if len(printed) == shown:
            raise KeyboardInterrupt

    monkeypatch.setattr(PlainScreen, "add", interrupted)
    outcome = chat(checkpoints, "hi\nho\n", "-m", 20)
    reply = "".join(printed[:shown])
    (second,) = ask(cold_start(pair, "hi", reply, 20), "ho")
    assert said(outcome) == f"{reply}\n{text(second)}\n"
    lines = outcome.stderr.splitlines()
    assert lines[1] == "stopped"
    assert lines[2].startswith(f"{shown} token")
    assert "cut" not in lines[2]


@pytest.mark.parametrize("passes", [0, 1, 2, 3, 7, 20])
@pytest.mark.parametrize("moment", ["before", "inside", "after"])
def test_an_interrupt_in_any_forward_pass_leaves_a_session_like_a_cold_start(
    checkpoints, pair, monkeypatch, passes, moment
):
    forward = LM.__call__
    left = None  # counts from the first message on

    def interrupted(self, tokens, cache):
        nonlocal left
        if left is None and cache.offset == 0 and tokens.shape[0] > 1:
            left = passes
        if left is not None:
            left -= 1
        if left != -1:
            return forward(self, tokens, cache)
        if moment == "inside":  # when the first layer has written to its cache and the others have not
            with mock.patch("mlx_lm.models.llama.MLP.__call__", side_effect=KeyboardInterrupt):
                forward(self, tokens, cache)
        if moment == "after":
            forward(self, tokens, cache)
        raise KeyboardInterrupt

    monkeypatch.setattr(LM, "__call__", interrupted)
    outcome = chat(checkpoints, "hello, who is there?\nho\n", "-m", 30)
    monkeypatch.undo()
    first, rest = said(outcome).split("\n", 1)
    (whole,) = ask(Conversation(pair, Options(sampling=GREEDY, max_tokens=30)), "hello, who is there?")
    assert text(whole).startswith(first)
    (second,) = ask(cold_start(pair, "hello, who is there?", first, 30), "ho")
    assert rest == text(second) + "\n"
    assert outcome.stderr.splitlines()[1] == "stopped"
