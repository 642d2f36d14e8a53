"""`diversed bench` as it is typed: what it writes, resuming after any end, and what is refused."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_cli_train import TASK
from typer.testing import CliRunner

from diversed_mlx import EnsembleHead, load_pair
from diversed_mlx.cli.main import app
from diversed_mlx.heads import identity

CONTRACT = {
    "method", "quality", "quality_ci", "acceptance_rate", "acceptance_ci", "tokens_per_round", "generation_tps",
    "speedup", "speedup_ci", "mean_target_weight", "peak_memory_gb",
}  # fmt: skip
TIMES = re.compile("seconds|tps|speedup|memory")


@pytest.fixture
def models(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setenv("DIVERSED_HOME", str(tmp_path / "home"))
    (tmp_path / "task.py").write_text(TASK)
    return ("--draft", str(checkpoints["draft"]), "--target", str(checkpoints["target"]),
            "--task-file", str(tmp_path / "task.py"))  # fmt: skip


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def untimed(path: Path) -> list[dict]:
    """Rows without what no two runs have in common."""
    rows = json.loads(path.read_text())["rows"]
    return [{key: value for key, value in row.items() if not TIMES.search(key)} for row in rows]


def save_head(models, folder: Path, task: str) -> Path:
    pair = load_pair(target=models[3], draft=models[1])
    EnsembleHead(pair.draft.hidden_size, pair.target.hidden_size, {"pair": identity(pair), "task": task}).save(folder)
    return folder


def test_a_comparison_is_told_and_written(models, tmp_path):
    head = save_head(models, tmp_path / "head", "vowels")
    done = bench(
        *models, "--methods", "none,lossless,static:0.5..1.0:0.5,dynamic,mlx-lm", "--head", head, "--n-examples", 3,
        "--num-draft-tokens", 3, "--temp", 0.7, "--seed", 5, "-m", 10, "--few-shot", 1,
        "--json", tmp_path / "out.json", "--markdown", tmp_path / "out.md",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "out.json").read_text())
    assert {key: written[key] for key in ("task", "n", "temp", "num_draft_tokens", "seed", "metric")} == {
        "task": "vowels", "n": 3, "temp": 0.7, "num_draft_tokens": 3, "seed": 5, "metric": "share",
    }  # fmt: skip
    names = ["none", "lossless", "static:0.5", "static:1.0", "dynamic", "mlx-lm"]
    rows = {row["method"]: row for row in written["rows"]}
    assert list(rows) == names
    assert all(row.keys() >= CONTRACT for row in rows.values())
    # A new head weighs both alike everywhere, and the full weight is lossless.
    for one, other in (("dynamic", "static:0.5"), ("static:1.0", "lossless")):
        for key in ("quality", "acceptance_rate", "tokens_per_round", "predicted_tokens_per_round"):
            assert rows[one][key] == pytest.approx(rows[other][key], abs=1e-6)
    assert rows["none"]["quality_difference_ci"][0] < 0 < rows["none"]["quality_difference_ci"][1]
    assert rows["mlx-lm"]["predicted_tokens_per_round"] is None
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "acceptance = accepted / proposed draft tokens" in done.stdout
    for name in names:
        assert re.search(rf"^{name} .*{100 * rows[name]['quality']:.1f}", done.stdout, re.MULTILINE)
    table = (tmp_path / "out.md").read_text()
    assert [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")] == ["method", *names]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


class Tags(HTMLParser):
    """Collects what a browser would find: tags with attributes, and text."""

    def __init__(self):
        super().__init__()
        self.tags, self.said = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.said.append(data)


def test_pictures_and_a_page_that_needs_nothing_beside_it(models, tmp_path):
    pytest.importorskip("matplotlib")
    hostile = "<script>alert('q')</script> & \"quoted\""
    (tmp_path / "task.py").write_text(TASK.replace('f"{split} {i}"', f"{hostile!r} + str(i)"))
    done = bench(
        *models, "--methods", "none,lossless,static:0.5,lenient:0.5,mlx-lm", "--n-examples", 4,
        "--plot", tmp_path / "p.png", "--html", tmp_path / "p.html",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    for name in ("p.png", "p-rounds.png", "p-weights.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    found = Tags()
    found.feed((tmp_path / "p.html").read_text())
    names = [tag for tag, _ in found.tags]
    assert "script" not in names
    assert names.count("img") == 3
    assert names.count("tr") == 1 + 5
    assert all(attrs["src"].startswith("data:image/png;base64,") for tag, attrs in found.tags if tag == "img")
    assert not [attrs for tag, attrs in found.tags if tag == "link" or "http" in str(attrs.get("src", ""))]
    assert hostile + "0" in "".join(found.said)  # word for word, as text
    # Every token of the first three examples, and three that explain the colours.
    log = (tmp_path / "home" / "bench").glob("*/answers.jsonl")
    answers = [json.loads(line) for line in next(log).read_text().splitlines()[1:]]
    tokens = sum(len(answer["reply"]["tokens"]) for answer in answers if answer["number"] < 3)
    assert sum("t" in attrs.get("class", "").split() for tag, attrs in found.tags if tag == "span") == tokens + 3
    assert "prefers-color-scheme: dark" in (tmp_path / "p.html").read_text()


def test_greedy_rounds_are_as_predicted_and_mlx_lm_says_the_same(models, tmp_path):
    done = bench(*models, "--methods", "none,lossless,mlx-lm", "--n-examples", 4, "--temp", 0, "--json", tmp_path / "o")
    assert done.exit_code == 0, done.output
    none, lossless, other = json.loads((tmp_path / "o").read_text())["rows"]
    assert lossless["prediction_error"] == 0
    assert lossless["prediction_error_ci"] == [0, 0]
    assert none["quality"] == lossless["quality"] == other["quality"]


def test_without_methods_every_rule_and_the_head_that_is_there(models, tmp_path):
    quick = ("--n-examples", 2, "-m", 2, "--json", tmp_path / "out.json")
    done = bench(*models, *quick)
    assert done.exit_code == 0, done.output
    assert "no head was trained for this pair" in done.stderr
    assert "dynamic" not in [row["method"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]]
    save_head(models, tmp_path / "home" / "heads" / "other", "poems")
    done = bench(*models, *quick)
    assert done.exit_code == 0, done.output
    assert "was trained for poems: expect less quality" in done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["rows"][-1]["method"] == "dynamic"


def test_what_cannot_be_judged_is_said(models, tmp_path):
    (tmp_path / "task.py").write_text(TASK.replace("return sum(", "return None if '1' in example.question else sum("))
    done = bench(*models, "--methods", "none,lossless", "--n-examples", 3, "--json", tmp_path / "out.json")
    assert done.exit_code == 0, done.output
    assert "NOT JUDGED, left out of the quality: none 1, lossless 1 of 3 answers" in done.stdout
    assert [row["unjudged"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]] == [1, 1]


RUN = ("--methods", "none,lossless,static:0.5,mlx-lm", "--n-examples", "12", "-m", "40", "--seed", "3")


def process(*arguments, stderr=subprocess.DEVNULL):
    return subprocess.Popen(
        [sys.executable, "-m", "diversed_mlx.cli.main", "bench", *map(str, arguments)],
        stdout=subprocess.DEVNULL, stderr=stderr, text=True, env=os.environ | {"DIVERSED_HOME": "/nonexistent"},
    )  # fmt: skip


def wait_for_answers(folder: Path, n: int):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        log = folder / "answers.jsonl"
        if log.exists() and len(log.read_bytes().splitlines()) > n:
            return
        time.sleep(0.005)
    raise AssertionError("the comparison makes no progress")


def test_a_comparison_killed_again_and_again_ends_as_one_that_was_left_alone(models, tmp_path):
    whole = ("--output", tmp_path / "whole", "--json", tmp_path / "whole.json")
    assert bench(*models, *RUN, *whole).exit_code == 0
    cut = ("--output", tmp_path / "cut", "--json", tmp_path / "cut.json")
    for kill, answers in enumerate((3, 20)):
        run = process(*models, *RUN, *cut, *(["--resume"] if kill else []))
        wait_for_answers(tmp_path / "cut", answers)
        run.kill()
        run.wait()
        assert not (tmp_path / "cut.json").exists()
    log = tmp_path / "cut" / "answers.jsonl"
    log.write_bytes(log.read_bytes() + b'{"method": "none", "numb')  # as if killed within a line
    done = bench(*models, *RUN, *cut, "--resume")
    assert done.exit_code == 0, done.output
    assert untimed(tmp_path / "cut.json") == untimed(tmp_path / "whole.json")
    lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    assert len(lines) == len({(line["method"], line["number"]) for line in lines}) == 12 * 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_says_how_to_go_on(models, tmp_path, number):
    run = process(*models, *RUN, "--n-examples", 200, "--output", tmp_path / "run", stderr=subprocess.PIPE)
    wait_for_answers(tmp_path / "run", 2)
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "the same command with --resume goes on" in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_resume_needs_no_folder_and_the_same_setting(models, tmp_path):
    quick = (*models, "--methods", "none,lossless", "--n-examples", 2, "-m", 3)
    assert bench(*quick).exit_code == 0
    again = bench(*quick)
    assert again.exit_code == 1
    assert "holds a comparison already: go on with --resume" in again.stderr
    assert bench(*quick, "--resume", "--json", tmp_path / "out.json").exit_code == 0
    assert len(json.loads((tmp_path / "out.json").read_text())["rows"]) == 2
    folder = next((tmp_path / "home" / "bench").iterdir())
    other = bench(*quick, "--temp", 0.5, "--output", folder, "--resume")
    assert other.exit_code == 1
    assert "has another temp, 1.0: go on with what it began with" in other.stderr


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: "", "has no first line"),
        (lambda text: text.replace('"setting"', '"set"', 1), "its first line is no setting"),
        (lambda text: text.replace('"number": 0', '"number": 99'), "line 2: not an answer"),
        (lambda text: text.replace('{"method"', "{", 1), "line 2: not valid JSON"),
        (lambda text: text.replace('"question": "test 0"', '"question": "test 7"'), "the data changed"),
    ],
)
def test_a_damaged_log_is_one_line(models, tmp_path, damage, message):
    quick = (*models, "--methods", "none,lossless", "--n-examples", 2, "-m", 3, "--output", tmp_path / "run")
    assert bench(*quick).exit_code == 0
    log = tmp_path / "run" / "answers.jsonl"
    log.write_text(damage(log.read_text()))
    done = bench(*quick, "--resume")
    assert done.exit_code == 1
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--methods", "none,best"), 1, "best is no method"),
        (("--methods", "static:0..1"), 1, "a range looks like"),
        (("--methods", "dynamic"), 1, "needs a trained head: train one for this pair"),
        (("--methods", "none", "--head", "x"), 2, "--head belongs to the method dynamic"),
        (("--methods", "mlx-lm", "--num-draft-tokens", "auto"), 1, "a fixed number of tokens, not auto"),
        (("--n-examples", "1"), 2, "--n-examples"),
        (("--json", "nowhere/out.json"), 1, "its folder does not exist"),
        (("--plot", "picture.gif"), 2, "must end in .png, .svg, .pdf"),
        (("--html", "nowhere/page.html"), 1, "its folder does not exist"),
        (("--resume", "--output", "nowhere"), 1, "holds no comparison to go on with"),
        (("gsm8k",), 2, "name one task"),
    ],
)
def test_what_cannot_be_compared_is_one_line(models, arguments, status, message):
    done = bench(*models, *arguments)
    assert done.exit_code == status
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.output


def test_a_comparison_needs_a_draft():
    done = bench("arithmetic", "--target", "tiny-target")
    assert done.exit_code == 1
    assert "needs a draft" in done.stderr
