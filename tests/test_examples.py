"""The examples run as their first lines say, and stay short."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORT = ("quickstart", "own_task", "compare_verifiers", "server_pytorch")


def output_of(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SHORT)
def test_an_example_has_under_forty_lines(name):
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 40


def test_quickstart_answers_in_three_ways_and_needs_fewer_target_passes_with_a_draft():
    printed = output_of(str(EXAMPLES / "quickstart.py"))
    assert re.findall(r"^(.*):$", printed, re.M) == ["the target alone", "lossless", "with the trained head"]
    assert printed.count("#### 11") == 3  # 48 - (5 + 32)
    tokens, passes = zip(*re.findall(r"(\d+) tokens in (\d+) target passes", printed), strict=True)
    assert tokens[0] == passes[0]
    assert int(passes[1]) < int(tokens[1])


def test_compare_verifiers_prints_a_line_a_method():
    lines = output_of(str(EXAMPLES / "compare_verifiers.py"), "3").splitlines()
    assert [line.split()[0] for line in lines] == [
        "none", "lossless", "static:0.7", "lenient:0.3", "cascade-opt:0.2", "dynamic"
    ]  # fmt: skip
    assert lines[0].endswith("100% right, 1.00 tokens a round")
    rounds = [float(re.search(r"([\d.]+) tokens a round", line)[1]) for line in lines]
    assert rounds[0] < rounds[1] < rounds[-1]


def own_task():
    spec = importlib.util.spec_from_file_location("own_task", EXAMPLES / "own_task.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.task


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("candle, garden, river, stone", 1.0),
        ("Garden, candle, river, stone.", 2 / 3),
        ("stone river garden candle", 0.0),
        ("candle, garden, river", 0.0),  # one is missing
        ("candle, candle, garden, river, stone", 0.0),
        ("", 0.0),
    ],
)
def test_the_own_task_counts_neighbours_in_order(text, reward):
    task = own_task()
    example = type(task.examples("train", 1)[0])(question="", answer="candle, garden, river, stone")
    assert task.reward(text, example) == pytest.approx(reward)


def test_the_own_task_keeps_its_splits_apart():
    task = own_task()
    words = {split: {w for e in task.examples(split, 50) for w in e.answer.split(", ")} for split in ("train", "test")}
    assert words["train"].isdisjoint(words["test"])


def test_the_own_task_trains(tmp_path):
    done = subprocess.run(
        [
            sys.executable, "-m", "diversed_mlx.cli.main", "train", "--task-file", str(EXAMPLES / "own_task.py"),
            "--draft", "tiny-draft", "--target", "tiny-target", "--iters", "2", "--batch-size", "1", "-m", "8",
            "--val-examples", "2", "--output", str(tmp_path / "head"),
        ],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "held out, target alone: order 0.000" in done.stdout  # this pair knows word problems only
    assert (tmp_path / "head" / "head.safetensors").is_file()
