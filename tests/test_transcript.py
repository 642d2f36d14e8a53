"""A conversation in a file: it goes on with the very answers of the one that was never saved."""

import json

import pytest

from diversed_mlx import Conversation, DiversedError, Options, Sampling, Static
from diversed_mlx.transcript import FORMAT, Transcript

TURN = [{"role": "user", "content": "grüß 😀"}, {"role": "assistant", "content": "a\nb"}]
SAVED = Transcript(system="be kind", messages=TURN, turns=3)
JSON = {"format": FORMAT, "system": None, "turns": 1, "messages": TURN}


def tokens(conversation, *messages):
    return [[response.token for response in conversation.ask(message)] for message in messages]


@pytest.mark.parametrize("temp", [0.0, 0.9])
def test_a_restored_conversation_answers_token_for_token_like_the_unsaved_one(pair, tmp_path, temp):
    options = Options(verifier=Static(target_weight=0.6), sampling=Sampling(temp=temp), max_tokens=30, seed=5)
    whole = Conversation(pair, options, system="be kind")
    tokens(whole, "hi", "and you?")
    whole.transcript().write(tmp_path / "talk.json")
    fresh = Conversation(pair, options)
    tokens(fresh, "something else that the caches still hold")
    fresh.restore(Transcript.read(tmp_path / "talk.json"))
    assert (fresh.system, fresh.messages) == ("be kind", whole.messages)
    assert tokens(fresh, "ho", "well") == tokens(whole, "ho", "well")


def test_the_file_says_what_was_said(tmp_path):
    SAVED.write(tmp_path / "talk.json")
    assert json.loads((tmp_path / "talk.json").read_text(encoding="utf-8")) == {
        "format": "diversed conversation 1", "system": "be kind", "turns": 3, "messages": TURN,
    }  # fmt: skip
    assert Transcript.read(tmp_path / "talk.json") == SAVED
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"]


def test_a_saved_conversation_is_replaced_and_nothing_else_is(tmp_path):
    path = tmp_path / "talk.json"
    SAVED.write(path)
    again = Transcript(system=None, messages=[], turns=0)
    again.write(path)
    assert Transcript.read(path) == again
    for other in ("", "notes", "{}", json.dumps(JSON | {"format": "x"})):
        path.write_text(other)
        with pytest.raises(DiversedError, match="is there and is not a saved conversation"):
            SAVED.write(path)
        assert path.read_text() == other
    with pytest.raises(DiversedError, match="is there and is not a saved conversation"):
        SAVED.write(tmp_path)


def test_a_link_keeps_pointing_at_the_file(tmp_path):
    SAVED.write(tmp_path / "talk.json")
    (tmp_path / "link").symlink_to("talk.json")
    Transcript(system=None, messages=[], turns=0).write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Transcript.read(tmp_path / "talk.json").turns == 0


def test_a_place_that_cannot_be_written_is_one_clear_line(tmp_path):
    with pytest.raises(DiversedError, match=r"cannot write .*No such file or directory") as error:
        SAVED.write(tmp_path / "missing" / "talk.json")
    assert "\n" not in str(error.value)
    with pytest.raises(DiversedError, match="cannot write"):
        SAVED.write(tmp_path / "a\0b")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON in UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "its format is not"),
        (json.dumps({"format": FORMAT}).encode(), "damaged: 'system' is missing"),
        (json.dumps(JSON | {"system": 3}).encode(), "the system prompt is not a text"),
        (json.dumps(JSON | {"messages": TURN[:1]}).encode(), "no list of questions with an answer each"),
        (json.dumps(JSON | {"messages": "ab"}).encode(), "no list of questions"),
        (json.dumps(JSON | {"messages": [1, 2]}).encode(), "message 1 is not an object"),
        (json.dumps(JSON | {"messages": TURN[::-1]}).encode(), "message 1 is not a text of the user"),
        (json.dumps(JSON | {"messages": [TURN[0], TURN[1] | {"content": 1}]}).encode(), "message 2 is not a text"),
        (json.dumps(JSON | {"messages": [TURN[0], TURN[1] | {"content": "\ud800"}]}).encode(), "not valid UTF-8"),
        (json.dumps(JSON | {"turns": 0}).encode(), "turns is not the number"),
        (json.dumps(JSON | {"turns": True}).encode(), "turns is not the number"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, content, why):
    path = tmp_path / "talk.json"
    path.write_bytes(content)
    with pytest.raises(DiversedError, match=why) as error:
        Transcript.read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_what_is_no_file_is_said(tmp_path, name):
    with pytest.raises(DiversedError, match="there is no file"):
        Transcript.read(tmp_path / name)


def test_a_new_system_prompt_keeps_the_turns_and_acts_as_if_it_had_always_been_there(pair):
    options = Options(sampling=Sampling(temp=0.0), max_tokens=20)
    conversation = Conversation(pair, options, system="be kind")
    tokens(conversation, "hi")
    conversation.set_system("be short")
    cold = Conversation(pair, options, system="be short")
    cold.messages = list(conversation.messages)
    assert len(cold.messages) == 2
    assert tokens(conversation, "ho") == tokens(cold, "ho")
    conversation.set_system(None)
    assert conversation.system is None
    with pytest.raises(DiversedError, match="UTF-8"):
        conversation.set_system("\ud800")
    assert conversation.system is None
