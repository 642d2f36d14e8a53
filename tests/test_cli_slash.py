"""The commands of a chat in scripted sessions: what they say, and that the answers after them are the library's."""

import dataclasses
import json
import math
import re

import mlx.core as mx
import numpy as np
import pytest
from test_cli_chat import GREEDY, ask, chat, said, transcript
from test_cli_generate import LOSSLESS_NOTE, save_head

from diversed_mlx import Conversation, Dynamic, EnsembleHead, Options, Sampling, Static, load_head
from diversed_mlx.cli.session import Totals
from diversed_mlx.cli.slash import COMMANDS, HELP
from diversed_mlx.conversation import chat_prompt
from diversed_mlx.dial import Setting, record_settings

OPTIONS = Options(sampling=GREEDY, max_tokens=20)


def notes(outcome) -> list[str]:
    """Lines on stderr but the figures behind answers."""
    return [line for line in outcome.stderr.splitlines() if not re.match(r"\d+ tokens? \|", line)]


def with_figures(folder, bias: float = 0.0) -> str:
    head = save_head(folder, bias)
    figures = {"acceptance_rate": 0.75, "target_quality": 0.9, "task": "gsm8k", "n": 50, "temp": 1.0}
    record_settings(head, [
        Setting(strictness=0.0, quality=0.8, num_draft_tokens=4, **figures),
        Setting(strictness=2.0, quality=0.875, **figures),
    ])  # fmt: skip
    return head


# The dial


def test_strict_changes_the_dial_of_the_next_answer(checkpoints, pair, tmp_path):
    head = with_figures(tmp_path / "head")
    outcome = chat(checkpoints, "hi\n/strict 1.5\nho\n/strict\n/strict -inf\nhi\n", "-m", 20, "--head", head)
    conversation = Conversation(pair, dataclasses.replace(OPTIONS, verifier=Dynamic(load_head(head, pair))))
    turns = []
    for strictness, message in ((0.0, "hi"), (1.5, "ho"), (-math.inf, "hi")):
        verifier = Dynamic(load_head(head, pair), strictness=strictness)
        conversation.options = dataclasses.replace(OPTIONS, verifier=verifier)
        turns += ask(conversation, message)
    assert said(outcome) == transcript(turns)
    assert "weight on the target 0.00" in outcome.stderr.splitlines()[-1]
    set_to = [
        "strictness 1.5: closer to the target, fewer drafts pass: where the head says 0.50 for the target it counts "
        "as 0.82",
        "nearest measured, 2: acceptance 75.0%, quality 0.875 of the target's 0.900 (gsm8k, 50 questions, "
        "temperature 1)",
    ]
    assert notes(outcome) == [
        "strictness 0: as trained",
        "at this setting: acceptance 75.0%, quality 0.800 of the target's 0.900 (gsm8k, 50 questions, "
        "temperature 1, K = 4)",
        *set_to,
        *set_to,
        "/strict NUMBER changes it: 0 as trained; above: closer to the target; below: more of the draft",
        "strictness -inf: every draft is taken",
        "nearest measured, 0: acceptance 75.0%, quality 0.800 of the target's 0.900 (gsm8k, 50 questions, "
        "temperature 1, K = 4)",
    ]


@pytest.mark.parametrize(
    ("flags", "why"),
    [((), "verification is lossless"), (("--verifier", "static"), "verification is static"),
     (("--verifier", "none"), "the target decodes alone")],
)  # fmt: skip
def test_without_a_head_there_is_no_dial(checkpoints, flags, why):
    outcome = chat(checkpoints, "/strict 1\n", *flags)
    assert notes(outcome)[-1] == f"error: there is no dial here, for {why}: start the chat with --head"


@pytest.mark.parametrize("number", ["x", "nan", "1,5"])
def test_a_strictness_that_is_no_number_is_refused(checkpoints, pair, tmp_path, number):
    head = save_head(tmp_path, 0)
    outcome = chat(checkpoints, f"/strict {number}\nhi\n", "-m", 20, "--head", head)
    assert notes(outcome)[0].startswith("error: ")
    trained = dataclasses.replace(OPTIONS, verifier=Dynamic(load_head(head, pair)))
    assert said(outcome) == transcript(ask(Conversation(pair, trained), "hi"))


# Figures


def test_stats_sums_the_session(checkpoints, pair):
    outcome = chat(checkpoints, "/stats\nhi\nho\n/stats\n", "-m", 20)
    first, second = ask(Conversation(pair, OPTIONS), "hi", "ho")
    accepted = first[-1].stats.accepted + second[-1].stats.accepted
    proposed = first[-1].stats.proposed + second[-1].stats.proposed
    rounds = first[-1].stats.rounds + second[-1].stats.rounds
    nothing, session, last = notes(outcome)[1:]
    assert nothing == "error: there is no answer yet"
    assert re.fullmatch(
        rf"session: 2 answers, 40 tokens in \d+\.\d s \| acceptance {accepted / proposed:.1%} \({accepted}/{proposed}\)"
        rf" \| {40 / rounds:.2f} tokens per round \| mean weight on the target 1.00",
        session,
    )
    assert last.startswith(f"last answer: 20 tokens | {'':s}")
    assert f"({second[-1].stats.accepted}/{second[-1].stats.proposed})" in last


def test_totals_weigh_every_verified_draft_alike(pair):
    head = EnsembleHead(32, 32)
    head.summary.weight = mx.random.normal(head.summary.weight.shape, key=mx.random.key(1))
    options = Options(verifier=Dynamic(head), sampling=Sampling(temp=0.8), max_tokens=30)
    turns = ask(Conversation(pair, options), "hi", "what is it?")
    totals = Totals()
    for responses in turns:
        totals.add(responses, 1.5)
    checked = [r.target_weight for turn in turns for r in turn if r.origin in ("accepted", "corrected")]
    assert 0.05 < np.mean(checked) < 0.95
    assert f"mean weight on the target {np.mean(checked):.2f}" in totals.line()
    assert totals.line().startswith(f"2 answers, {len(turns[0]) + len(turns[1])} tokens in 3.0 s")


# The last answer token by token


def rows_of(outcome) -> list[list[str]]:
    pattern = r" *\d* +\S+ +(accepted|corrected|bonus|rejected|plain)"
    return [line.split() for line in outcome.stderr.splitlines() if re.match(pattern, line)]


def test_last_tells_each_token_with_the_p_and_q_of_a_forward_pass(checkpoints, pair):
    outcome = chat(checkpoints, "hi\n/last\n", "-m", 30, "--verifier", "static", "--target-weight", 0.6)
    prompt = chat_prompt(pair, [{"role": "user", "content": "hi"}])
    options = dataclasses.replace(OPTIONS, verifier=Static(target_weight=0.6), max_tokens=30)
    (responses,) = ask(Conversation(pair, options), "hi")
    tokens = mx.array([[*prompt, *(response.token for response in responses)]])
    p, q = (
        np.array(mx.softmax(lm.model(tokens)[0, len(prompt) - 1 : -1].astype(mx.float32), axis=-1))
        for lm in (pair.target, pair.draft)
    )
    rows = rows_of(outcome)
    shown = [row for row in rows if row[0].isdigit() and len(row) == 7]
    assert [int(row[0]) for row in shown] == list(range(1, len(responses) + 1))
    for index, (row, response) in enumerate(zip(shown, responses, strict=True)):
        assert row[2] == response.origin
        assert float(row[4]) == pytest.approx(p[index, response.token], abs=6e-4)
        if response.origin == "bonus":
            assert row[3:] == ["1.000", row[4], "-", "-"]
        else:
            assert float(row[3]) == pytest.approx(0.6, abs=1e-3)
            assert float(row[5]) == pytest.approx(q[index, response.token], abs=6e-4)
            assert row[6] == ("1.000" if response.origin == "accepted" else "-")
    rejected = [row for row in rows if row[-5] == "rejected"]
    assert len(rejected) == sum(response.origin == "corrected" for response in responses) > 0
    assert all(row[-4:] == ["0.600", "-", "-", "0.000"] for row in rejected)  # at temperature 0


def test_last_shows_a_page_and_where_the_next_begins(checkpoints):
    outcome = chat(checkpoints, "hi\n/last\n/last 41\n/last 61\n/last x\n/last 0\n", "-m", 60)
    numbers = [int(row[0]) for row in rows_of(outcome) if row[0].isdigit()]
    assert [number for number in numbers if number in (1, 40, 41, 60)] == [1, 40, 41, 60]
    assert outcome.stderr.count("tokens 1 to 40 of 60; /last 41 goes on") == 1
    assert [line for line in notes(outcome) if line.startswith("error")] == [
        f"error: {wrong} is not the number of a token: the answer has 1 to 60" for wrong in ("61", "x", "0")
    ]


def test_the_target_alone_has_only_p_to_tell(checkpoints):
    outcome = chat(checkpoints, "/last\nhi\n/last\n", "-m", 5, "--verifier", "none")
    assert "error: there is no answer yet" in notes(outcome)
    rows = rows_of(outcome)
    assert len(rows) == 5
    assert all(row[2] == "plain" and row[3] == "-" and 0 < float(row[4]) <= 1 and row[5:] == ["-", "-"] for row in rows)


# Files and the system prompt


@pytest.mark.parametrize("temp", [0.0, 0.9])
def test_a_loaded_conversation_goes_on_like_the_unsaved_one(checkpoints, tmp_path, temp):
    flags = ("-m", 20, "--temp", temp, "--seed", 3)
    path = tmp_path / "a talk.json"
    whole = chat(checkpoints, f"hi\nho\n/save {path}\nand now?\n", *flags, "--system-prompt", "be kind")
    rest = chat(checkpoints, f"other\n/load {path}\nand now?\n", *flags)
    assert said(whole).endswith("\n" + said(rest).split("\n")[-2] + "\n")
    first = chat(checkpoints, f"/load {path}\nand now?\n", *flags)
    assert said(whole).endswith("\n" + said(first)) or said(whole).endswith(said(first))
    assert f"saved 2 turns and the system prompt in {path}" in notes(whole)
    assert f"loaded 2 turns and the system prompt from {path}, in place of what was said here" in notes(rest)
    assert json.loads(path.read_text())["turns"] == 2


def test_files_that_are_in_the_way_or_bad_are_one_line_and_the_chat_goes_on(checkpoints, pair, tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    lines = f"/save {other}\n/load {other}\n/load {tmp_path}/none\n/save\n/load\nhi\n"
    outcome = chat(checkpoints, lines, "-m", 20)
    assert notes(outcome)[1:] == [
        f"error: {other} is there and is not a saved conversation: choose another name",
        f"error: {other} is not a saved conversation: it is not JSON in UTF-8",
        f"error: there is no file {tmp_path}/none",
        "error: name the file: /save FILE",
        "error: name the file: /load FILE",
    ]
    assert other.read_text() == "mine"
    assert said(outcome) == transcript(ask(Conversation(pair, OPTIONS), "hi"))


def test_system_shows_and_changes_the_prompt_and_keeps_what_was_said(checkpoints, pair):
    outcome = chat(
        checkpoints, "/system\n/system be kind\nhi\n/system be short\nho\n/system\n/system -\nhi\n", "-m", 20
    )
    conversation = Conversation(pair, OPTIONS, system="be kind")
    turns = ask(conversation, "hi")
    conversation.set_system("be short")
    turns += ask(conversation, "ho")
    conversation.set_system(None)
    turns += ask(conversation, "hi")
    assert said(outcome) == transcript(turns)
    assert notes(outcome)[1:] == [
        "there is no system prompt: /system TEXT sets one",
        "the system prompt is changed",
        "the system prompt is changed; what was said stays (/clear forgets it)",
        "system prompt: be short",
        "the system prompt is gone; what was said stays (/clear forgets it)",
    ]


# Names


def test_a_wrong_name_is_one_line_with_the_near_ones(checkpoints):
    outcome = chat(checkpoints, "/stric\n/st\n/laod x\n/xyzzy\n/stats now\n")
    near = "(a space before it makes it a message)"
    assert notes(outcome)[1:] == [
        f"error: there is no command /stric: did you mean /strict? {near}",
        f"error: there is no command /st: did you mean /strict or /stats? {near}",
        f"error: there is no command /laod: did you mean /load or /last? {near}",
        f"error: there is no command /xyzzy: /help lists what there is {near}",
        "error: /stats takes nothing behind it",
    ]


@pytest.mark.parametrize("message", ["/etc/hosts", " /stats", "/ what", "//", "/1", "a /stats"])
def test_what_is_no_command_is_a_message(checkpoints, pair, message):
    outcome = chat(checkpoints, message + "\n", "-m", 20)
    assert said(outcome) == transcript(ask(Conversation(pair, OPTIONS), message))


@pytest.mark.parametrize("name", ["/help", "/?", "h", "/HELP"])
def test_help_names_every_command(checkpoints, name):
    lines = notes(chat(checkpoints, name + "\n"))
    assert lines[:2] == [LOSSLESS_NOTE, HELP]
    for command in COMMANDS:
        (line,) = (line for line in lines if line.strip().startswith(", ".join(command.names) + " "))
        assert command.what in line


@pytest.mark.parametrize("leave", ["/quit", "/exit", "q"])
def test_quit_leaves_and_clear_forgets(checkpoints, pair, leave):
    outcome = chat(checkpoints, f"hi\n/clear\nhi\n{leave}\nhi\n", "-m", 20)
    assert said(outcome) == transcript(ask(Conversation(pair, OPTIONS), "hi")) * 2
    assert notes(outcome)[1:] == ["the conversation is forgotten"]


def test_an_answer_of_no_token_says_why(checkpoints):
    assert notes(chat(checkpoints, "hi\n", "-m", 0))[1:] == ["no token was asked for: --max-tokens is 0"]
    assert "1 token |" in chat(checkpoints, "hi\n", "-m", 1).stderr


def test_lines_before_one_that_is_not_utf_8_are_answered(checkpoints, pair):
    outcome = chat(checkpoints, b"hi\nho\n\xff\nhi\n", "-m", 20, code=1)
    assert said(outcome) == transcript(ask(Conversation(pair, OPTIONS), "hi", "ho"))
    assert notes(outcome)[1].startswith("error: stdin is not valid UTF-8: line 3: ")
