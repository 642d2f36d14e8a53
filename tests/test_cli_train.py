"""`diversed train` as it is typed: settings and their order, resuming, interruptions, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import pytest
from typer.testing import CliRunner

from diversed_mlx import load_head, load_pair
from diversed_mlx.cli.main import app

TASK = """
from diversed_mlx.tasks.task import Example


class Vowels:
    name, metric, max_tokens = "vowels", "share", 8

    def examples(self, split, n, seed=0):
        return [Example(question=f"{split} {i}", answer="") for i in range(n)]

    def reward(self, text, example):
        return sum(c in "aeiou" for c in text) / 8


task = Vowels()
"""
SMALL = ("--iters", "4", "--batch-size", "2", "--samples-per-prompt", "2", "--prompts", "6", "--val-examples", "3",
         "--steps-per-eval", "2", "--save-every", "2")  # fmt: skip


@pytest.fixture
def models(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setenv("DIVERSED_HOME", str(tmp_path / "home"))
    (tmp_path / "task.py").write_text(TASK)
    return ("--draft", str(checkpoints["draft"]), "--target", str(checkpoints["target"]),
            "--task-file", str(tmp_path / "task.py"))  # fmt: skip


def train(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def test_a_run_leaves_a_head_that_its_pair_finds(models, tmp_path):
    done = train(*models, *SMALL)
    assert done.exit_code == 0, done.output
    folder = tmp_path / "home" / "heads" / "vowels-draft-target"
    assert {path.name for path in folder.iterdir()} >= {
        "head.safetensors", "head.json", "checkpoint.safetensors", "metrics.jsonl",
    }  # fmt: skip
    pair = load_pair(target=models[3], draft=models[1])
    assert load_head("vowels", pair).metadata["recipe"]["iters"] == 4
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4
    assert "kept the head of update" in done.stderr
    again = train(*models, *SMALL)
    assert again.exit_code == 1
    assert "holds a run already" in again.stderr


def test_flags_win_over_the_config_file(models, tmp_path):
    (tmp_path / "run.yaml").write_text("iters: 9\nlearning-rate: 1\nbaseline: ema\n")
    done = train(*models, *SMALL, "-c", tmp_path / "run.yaml", "--output", tmp_path / "run")
    assert done.exit_code == 0, done.output
    recipe = json.loads((tmp_path / "run" / "head.json").read_text())["recipe"]
    assert (recipe["iters"], recipe["learning_rate"], recipe["baseline"]) == (4, 1.0, "ema")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iterations: 9", "iterations is no setting"),
        ("iters: many", "iters must be a whole number, not 'many'"),
        ("iters: true", "iters must be a whole number, not True"),
        ("temp: hot", "temp must be a number"),
        ("draft: 3", "draft must be a text"),
        ("- iters", "is not a list of settings"),
        ("a: [", "cannot read"),
    ],
)
def test_a_config_file_that_makes_no_sense_is_one_line(models, tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(text)
    done = train(*models, "-c", tmp_path / "run.yaml")
    assert done.exit_code == 1
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "name one task"),
        (("gsm9k", "--draft", "x", "--target", "y"), 1, "is no task"),
        (("mbpp",), 1, "--allow-code-execution"),
        (("arithmetic", "--target", "x"), 1, "needs a draft"),
        (("arithmetic", "--temp", "0"), 1, "temp must be above 0"),
        (("arithmetic", "--iters", "0"), 2, "iters"),
    ],
)
def test_what_cannot_be_trained_is_one_line(arguments, status, message):
    done = train(*arguments)
    assert done.exit_code == status
    assert message in done.stderr.replace("\n", " ")


def test_resume_needs_a_run(models, tmp_path):
    done = train(*models, "--output", tmp_path / "none", "--resume")
    assert done.exit_code == 1
    assert "holds no run to go on with" in done.stderr


def process(*arguments, stderr=subprocess.DEVNULL):
    return subprocess.Popen(
        [sys.executable, "-m", "diversed_mlx.cli.main", "train", *map(str, arguments)],
        stdout=subprocess.DEVNULL, stderr=stderr, text=True, env=os.environ | {"DIVERSED_HOME": "/nonexistent"},
    )  # fmt: skip


def finished(run):
    return run.wait(timeout=120)


LONG = ("--iters", "40", "--batch-size", "2", "--samples-per-prompt", "2", "--prompts", "6", "--val-examples", "2",
        "--steps-per-eval", "10", "--save-every", "1")  # fmt: skip


def wait_for_updates(folder: Path, n: int):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (folder / "metrics.jsonl").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) >= n:
            return
        time.sleep(0.01)
    raise AssertionError("the run makes no progress")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_says_how_to_go_on(models, tmp_path, number):
    run = process(*models, *LONG, "--output", tmp_path / "run", stderr=subprocess.PIPE)
    wait_for_updates(tmp_path / "run", 3)
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "--resume goes on" in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_a_run_killed_again_and_again_ends_as_one_that_was_left_alone(models, tmp_path):
    assert finished(process(*models, *LONG, "--output", tmp_path / "whole")) == 0
    for kill, updates in enumerate((1, 15)):
        run = process(*models, *LONG, "--output", tmp_path / "cut", *(["--resume"] if kill else []))
        wait_for_updates(tmp_path / "cut", updates)
        run.kill()
        run.wait()
        mx.load(str(tmp_path / "cut" / "checkpoint.safetensors"))  # whole, at any moment
    assert finished(process(*models, *LONG, "--output", tmp_path / "cut", "--resume")) == 0
    for name in ("checkpoint.safetensors", "head.safetensors"):
        first, second = (mx.load(str(tmp_path / folder / name)) for folder in ("whole", "cut"))
        assert first.keys() == second.keys()
        assert all(mx.array_equal(first[key], second[key]).item() for key in first)
    assert not [path for path in (tmp_path / "cut").iterdir() if path.name.startswith(".")]
