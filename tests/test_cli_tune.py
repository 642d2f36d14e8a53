"""`diversed tune` in this process, and `auto` that starts from what it kept."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli_errors import refused
from test_cli_flags import OWNERS
from test_cli_generate import LOSSLESS_NOTE, run, save_head
from tiny import write_model

from diversed_mlx.draft_length import Auto

ROOT = Path(__file__).parents[1]
QUICK = ("--depths", "8,40", "--repeats", 1, "-m", 32)
STARTED = "auto starts from what diversed tune measured on this machine"


def tune(checkpoints, *args: object, **settings):
    return run("tune", "--draft", checkpoints["draft"], "--target", checkpoints["target"], *QUICK, *args, **settings)


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("hello you\n\nhow are you?\n", encoding="utf-8")
    return path


def test_json_holds_what_was_measured_and_is_what_is_kept(checkpoints, prompts, tmp_path):
    outcome = tune(checkpoints, "--prompt-file", prompts, "--json", home=tmp_path)
    found = json.loads(outcome.stdout)
    (kept,) = (tmp_path / "tuning").iterdir()
    assert json.loads(kept.read_text()) == found
    assert outcome.stderr.splitlines()[-1] == f"kept in {kept}: --num-draft-tokens auto starts from it"
    assert found["verifier"] == "lossless"
    assert [cost["depth"] for cost in found["costs"]] == [8, 40]
    assert all(len(cost["target_passes"]) == 9 for cost in found["costs"])
    cold, warm = found["temperatures"]
    assert (cold["temp"], warm["temp"]) == (0.0, 1.0)
    for each in (cold, warm):
        assert 0 < each["acceptance"] < 1
        assert each["gain_over_plain"][0] == 1.0
        speeds = [depth["tokens_per_second"] for depth in each["depths"]]
        assert all(len(row) == 9 and min(row) > 0 for row in speeds)
        assert each["recommended"] in range(9)


def test_the_table_has_a_row_for_each_length_and_ends_in_advice(checkpoints, prompts, tmp_path):
    shown = tune(checkpoints, "--prompt-file", prompts, home=tmp_path).stdout
    for word in ("draft step", "target step", "target over 9 tokens", "8 tokens deep", "0, plain", "T = 1, 40 deep"):
        assert word in shown
    for line, temp in zip(shown.splitlines()[-2:], (0, 1), strict=True):
        assert re.fullmatch(
            rf"temperature {temp}, acceptance \d+% a token: "
            r"(--num-draft-tokens \d, [\d.]+ times plain decoding"
            r"|speculation does not pay here \(at best [\d.]+ times plain decoding, with \d drafted\): "
            r"--verifier none)",
            line,
        )


def test_a_draft_that_is_never_right_does_not_pay(checkpoints, prompts, tmp_path):
    args = ("--draft", checkpoints["adversary"], "--prompt-file", prompts)
    advice = tune(checkpoints, *args, home=tmp_path).stdout.splitlines()[-2]
    assert advice.startswith("temperature 0, acceptance 0% a token: speculation does not pay here")


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_auto_starts_from_what_was_kept(checkpoints, prompts, tmp_path, monkeypatch, command):
    given = []
    monkeypatch.setattr(Auto, "__init__", watch(given))
    args = (command, "--draft", checkpoints["draft"], "--target", checkpoints["target"], "-m", 8)
    args = (*args, "--num-draft-tokens", "auto", *(("-p", "hi") if command == "generate" else ()))
    assert STARTED not in run(*args, input="hi\n", home=tmp_path).stderr
    tune(checkpoints, "--prompt-file", prompts, home=tmp_path)
    assert STARTED in run(*args, input="hi\n", home=tmp_path).stderr
    assert STARTED not in run(*args, "--num-draft-tokens", 2, input="hi\n", home=tmp_path).stderr
    before, after = given[0], given[1]
    assert before is None
    assert after is not None
    assert len(after.seconds) == 9
    assert 0 < after.acceptance < 1


def watch(given: list):
    start_of = Auto.__init__

    def init(self, start=None):
        given.append(start)
        start_of(self, start)

    return init


def test_the_found_head_is_what_is_measured(checkpoints, prompts, tmp_path):
    save_head(tmp_path / "heads" / "gsm8k", 0, (str(checkpoints["draft"]), str(checkpoints["target"])))
    outcome = tune(checkpoints, "--prompt-file", prompts, "--json", home=tmp_path)
    assert json.loads(outcome.stdout)["verifier"].startswith("dynamic ")
    assert outcome.stderr.startswith(f"verifying with the head {tmp_path / 'heads' / 'gsm8k'}")


def test_a_home_that_cannot_be_written_still_shows_the_figures(checkpoints, prompts, tmp_path):
    (tmp_path / "file").write_text("")
    outcome = tune(checkpoints, "--prompt-file", prompts, home=tmp_path / "file")
    assert "expected tokens/s" in outcome.stdout
    last = outcome.stderr.splitlines()[-1]
    assert last.startswith(f"warning: cannot write {tmp_path / 'file' / 'tuning'}")
    assert last.endswith("so --num-draft-tokens auto will not start from it")


def test_the_same_model_twice_is_measured(checkpoints, prompts, tmp_path):
    outcome = tune(checkpoints, "--draft", checkpoints["target"], "--prompt-file", prompts, "--json", home=tmp_path)
    assert json.loads(outcome.stdout)["temperatures"][0]["acceptance"] == 1.0


def test_doctor_tells_what_was_measured_and_what_is_ignored(checkpoints, prompts, tmp_path):
    look = ("doctor", "--draft", checkpoints["draft"], "--target", checkpoints["target"], "--json")

    def told() -> dict:
        findings = json.loads(run(*look, home=tmp_path).stdout)["findings"]
        return next(each for each in findings if each["subject"] == "draft length")

    assert told()["found"] == "not measured here yet"
    tune(checkpoints, "--prompt-file", prompts, home=tmp_path)
    assert (told()["level"], "for lossless, at temperature 0" in told()["found"]) == ("ok", True)
    (kept,) = (tmp_path / "tuning").iterdir()
    content = json.loads(kept.read_text())
    kept.write_text(json.dumps(content | {"versions": {"mlx": "0.1", "mlx-lm": "0.1"}, "machine": "another"}))
    found = told()
    assert found["level"] == "note"
    assert found["found"].endswith("is ignored: it was on another machine and with other versions of MLX")
    assert found["remedy"].startswith("diversed tune --draft ")


# Refused


@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("--depths", ["0", "", "x", "64,", "-1", "1.5"]),
        ("--repeats", ["0", "x"]),
        ("--max-tokens", ["15", "x"]),
        ("--seed", ["-1"]),
    ],
)
def test_a_value_out_of_range_is_bad_usage_and_names_the_flag(flag, values):
    for value in values:
        assert flag in run("tune", "--target", "/no/such", "--draft", "/no/such", f"{flag}={value}", code=2).stderr


@pytest.mark.parametrize("flag", OWNERS)
def test_a_flag_of_another_verifier_is_refused(flag):
    owner, value = OWNERS[flag]
    other = "lossless" if owner != "lossless" else "static"
    assert f"{flag} belongs to" in run("tune", "--verifier", other, flag, value, code=2).stderr


def test_what_has_no_draft_is_refused(checkpoints):
    assert "nothing to tune" in run("tune", "--verifier", "none", code=2).stderr
    assert refused("tune", "--target", checkpoints["target"]) == (
        "there is nothing to tune without a draft: add --draft"
    )


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot read"), (b"\n \n", "holds no prompt"), (b"caf\xe9", "cannot read")]
)
def test_a_prompt_file_that_cannot_be_used_is_refused_before_anything_is_loaded(tmp_path, content, said):
    path = tmp_path / "prompts"
    if content is not None:
        path.write_bytes(content)
    assert said in refused("tune", "--draft", "/no", "--target", "/no", "--prompt-file", path)


def test_models_that_cannot_be_measured_are_one_line(checkpoints, tmp_path):
    other = write_model(tmp_path / "other", swap=(65, 66))
    models = ("--draft", other, "--target", checkpoints["target"])
    assert "do not share a vocabulary" in refused("tune", *models)
    assert "no such folder" in refused("tune", "--draft", "/no/such", "--target", checkpoints["target"])
    said = run("tune", "--draft", checkpoints["draft"], "--target", checkpoints["target"], "--depths", 2045, code=1)
    assert said.stderr.splitlines()[-1] == (
        "error: a depth of 2045 tokens leaves no room in this pair's context of 2048: give at most 2039"
    )
    assert said.stderr.splitlines()[0] == LOSSLESS_NOTE


def test_a_reader_that_left_is_no_traceback(checkpoints, prompts, tmp_path):
    script = "from diversed_mlx.cli.main import main; main()"
    models = ("--draft", checkpoints["draft"], "--target", checkpoints["target"])
    process = subprocess.Popen(
        [sys.executable, "-c", script, "tune", *map(str, (*models, *QUICK, "--prompt-file", prompts))],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"DIVERSED_HOME": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 1
    assert "Traceback" not in said
    assert len(list((tmp_path / "tuning").iterdir())) == 1  # a minute's measurement is kept before it is told
