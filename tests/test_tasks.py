"""Tasks over data sets: rows from files and from the Hub, what becomes of them, and errors that say what to do."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from diversed_mlx.errors import DiversedError
from diversed_mlx.tasks import hub_rows
from diversed_mlx.tasks.find import RUN_CODE, TASK_NAMES, load_task
from diversed_mlx.tasks.mbpp import Mbpp
from diversed_mlx.tasks.programs import find_code
from diversed_mlx.tasks.rows import draw, is_for_testing
from diversed_mlx.tasks.summaries import MOST_CHARACTERS, shorten

# Some rows of each data set in its own form.
HUMANEVAL_TEST = """

METADATA = {
    'author': 'test'
}


def check(candidate):
    assert candidate([1.0, 2.0, 2.5], 0.6) == True
    assert candidate([1.0, 2.0], 0.6) == False
    for size in range(3):
        assert mean([size]) == size and abs(candidate([1.0] * size, 0.5) - (size > 1)) < 1e-6

"""
ROWS = {
    "gsm8k": [
        {"question": f"What is {i} + 1?", "answer": f"{i} + 1 = <<{i}+1={i + 1}>>{i + 1}\n#### {i + 1}"}
        for i in range(40)
    ],
    "cnndm": [
        {
            "article": f"(CNN) Story {i}. " + "word " * 900,
            "highlights": f"Story {i} .\nIt is a long one .",
            "id": str(i),
        }
        for i in range(40)
    ],
    "xsum": [{"document": f"Story {i}.\nIt is long.", "summary": f"A story {i} is long.", "id": i} for i in range(40)],
    "wmt": [{"translation": {"de": f"Guten Tag, {i} Freunde!", "en": f"Hello, {i} friends!"}} for i in range(40)],
    "mbpp": [
        {
            "task_id": i,
            "text": f"Write a function to add {i}.",
            "code": f"from math import floor\r\ndef add_{i}(x):\r\n\treturn x + {i}",
            "test_setup_code": "",
            "test_list": [f"assert add_{i}(1) == {i + 1}", f"assert add_{i}(floor(2.5)) == {i + 2}"],
            "challenge_test_list": [],
        }
        for i in range(40)
    ],
    "humaneval": [
        {
            "task_id": f"HumanEval/{i}",
            "prompt": "from typing import List\n\n\n"
            "def mean(xs: List[float]) -> float:\n    return sum(xs) / len(xs)\n\n\n"
            f"def close_{i}(numbers: List[float], threshold: float) -> bool:\n"
            '    """ Are two of them closer than the threshold?\n    >>> close([1.0, 2.0], 0.5)\n    False\n    """\n',
            "canonical_solution": "    numbers = sorted(numbers)\n"
            "    return any(b - a < threshold for a, b in zip(numbers, numbers[1:]))\n",
            "test": HUMANEVAL_TEST,
            "entry_point": f"close_{i}",
        }
        for i in range(40)
    ],
}
each_task = pytest.mark.parametrize("name", ROWS)


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def task_of(name, data):
    return load_task(name, data=data, allow_code_execution=name in RUN_CODE)


def tree(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


@each_task
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_a_task_of_a_folder(name, suffix, tmp_path):
    rows = ROWS[name]
    write(tmp_path / f"train{suffix}", rows[:30])
    write(tmp_path / f"test{suffix}", rows[30:])
    tmp_path.chmod(0o555)
    before = tree(tmp_path)
    task = task_of(name, tmp_path)
    train, test = task.examples("train", 30, seed=3), task.examples("test", 10, seed=3)
    assert task.name == name
    assert task.metric
    assert 0 < task.max_tokens <= 512
    assert len({example.question for example in [*train, *test]}) == 40
    assert train == task_of(name, tmp_path).examples("train", 30, seed=3)
    assert train != task.examples("train", 30, seed=4)
    assert train[:7] == task.examples("train", 7, seed=3)
    with pytest.raises(DiversedError, match=rf"train{suffix} has 30 train examples: 31 are too many"):
        task.examples("train", 31)
    for example in test[:2]:
        assert len(example.question) < 3600
        assert task.reward(example.answer, example) == pytest.approx(1)
        assert task.reward("no idea", example) == 0
    assert tree(tmp_path) == before, "reading left something beside the data"


@each_task
def test_a_single_file_is_divided_by_its_questions(name, tmp_path):
    rows = ROWS[name]
    task = task_of(name, write(tmp_path / "rows.jsonl", rows))
    with pytest.raises(DiversedError, match=r"fixed fifth is for testing\): 41 are too many") as error:
        task.examples("test", 41)
    n = int(str(error.value).split(" has ")[1].split()[0])
    test = task.examples("test", n)
    train = task.examples("train", 40 - n)
    assert 2 <= n <= 16  # of 40, a fifth each by chance: 8 within 3 standard deviations of 2.5
    assert all(is_for_testing(example.question) for example in test)
    assert len({example.question for example in [*train, *test]}) == 40
    # The same ones in another order of rows, and in a folder with this file alone.
    again = task_of(name, write(tmp_path / "rows.jsonl", rows[::-1]).parent)
    assert {e.question for e in again.examples("test", n, seed=5)} == {e.question for e in test}


def test_parts_and_validation_files_are_found(tmp_path):
    write(tmp_path / "train-00000-of-00002.parquet", ROWS["gsm8k"][:10])
    write(tmp_path / "train-00001-of-00002.parquet", ROWS["gsm8k"][10:20])
    write(tmp_path / "validation.jsonl", ROWS["gsm8k"][20:])
    task = load_task("gsm8k", data=tmp_path)
    assert len(task.examples("train", 20)) == len(task.examples("test", 20)) == 20
    write(tmp_path / "test.jsonl", ROWS["gsm8k"][:3])
    assert len(load_task("gsm8k", data=tmp_path).examples("test", 3)) == 3


def test_draws_are_even_and_begin_alike():
    assert draw(100, 100, 1) == draw(100, 100, 1) != draw(100, 100, 2)
    assert sorted(draw(100, 100, 1)) == list(range(100))
    assert draw(10**9, 5, 1) == draw(10**9, 50, 1)[:5]
    counts = Counter(number for seed in range(2000) for number in draw(10, 3, seed))
    # 600 each; six standard deviations are 6 * sqrt(2000 * .3 * .7) = 123.
    assert all(477 < counts[number] < 723 for number in range(10))


# What goes wrong, and what is said about it.


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"has no train.jsonl and test.jsonl \(or .json, .parquet\)$"),
        ({"a.jsonl": "{}", "b.jsonl": "{}"}, "to use one of a.jsonl, b.jsonl, give that file"),
        ({"train.jsonl": "{}", "train.json": "[]"}, "several files of train: train.json, train.jsonl; keep one"),
        ({"test.jsonl": "{}"}, "has no train.jsonl$"),
        ({"train.jsonl": ""}, "train.jsonl has no rows"),
        ({"train.jsonl": "\n \n"}, "train.jsonl has no rows"),
        ({"train.json": "[]"}, "train.json has no rows"),
        ({"train.jsonl": '{"question": "q", "answer": "a"}\n\n{"question": }\n'}, r"train.jsonl, line 3: not JSON \("),
        ({"train.json": '[\n{"question": "q"},\n]'}, r"train.json, line [23]: not JSON"),
        ({"train.json": '{"question": "q"}'}, "not a list of objects; one object a line belongs in a .jsonl file"),
        ({"train.json": '{"question": "q"}\n{"question": "q"}'}, "train.json, line 2: not JSON"),
        ({"train.jsonl": '["q", "a"]'}, 'line 1: not an object such as {"question": ...}'),
        ({"train.jsonl": "[" * 10**5}, "line 1: n"),
        ({"train.jsonl": b"\xff\xfe"}, "is not UTF-8 text"),
        ({"train.parquet": b"no"}, "train.parquet is not a parquet file"),
        ({"train.jsonl": '{"question": "q", "reply": "a"}'}, "row 1: no column 'answer'; there are question, reply$"),
        ({"train.jsonl": '{"question": "q", "answer": 3}'}, "row 1: column 'answer' holds int, not text"),
        ({"train.jsonl": '{"category": "writing", "turns": ["q"], "reference": ["a"]}'}, "there are writing$"),
    ],
)
def test_bad_data_is_one_line_that_says_what_to_do(files, message, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DiversedError, match=message) as error:
        load_task("gsm8k", data=tmp_path).examples("train", 1)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("wmt", {"de": "a", "en": "b"}, "no column 'translation' with an object that holds `de` and `en`"),
        ("wmt", {"translation": {"de": "a"}}, "no column 'en'; there are de"),
        ("cnndm", {"category": "summarization", "turns": [], "reference": ["a"]}, "'turns' must be a list of texts"),
        ("xsum", {"document": "a"}, "no column 'summary'"),
        ("mbpp", {"text": "a", "code": "def f(", "test_list": ["assert f()"]}, "'code' is not Python"),
        ("mbpp", {"text": "a", "code": "def f(): 1", "test_list": []}, "'test_list' must be a list of tests"),
        ("mbpp", {"code": "def f(): 1", "test_list": ["assert f()"]}, "no column 'prompt'"),
        ("humaneval", {"prompt": "def f(): 1", "test": "a", "entry_point": "f"}, "no column 'canonical_solution'"),
    ],
)
def test_a_row_that_lacks_something_is_named(name, row, message, tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps(row))
    with pytest.raises(DiversedError, match=message) as error:
        task_of(name, tmp_path).examples("train", 1)
    assert str(error.value).startswith(f"{tmp_path / 'train.jsonl'}, row 1: ")


def test_missing_data_is_said_at_once(tmp_path):
    with pytest.raises(DiversedError, match="no such file or folder"):
        load_task("gsm8k", data=tmp_path / "nowhere")
    (tmp_path / "rows.csv").touch()
    with pytest.raises(DiversedError, match=r"must be in a file that ends in .jsonl, .json, .parquet"):
        load_task("gsm8k", data=tmp_path / "rows.csv")
    with pytest.raises(DiversedError, match="arithmetic makes its own problems"):
        load_task("arithmetic", data=tmp_path)


def test_names():
    assert TASK_NAMES == ("arithmetic", "gsm8k", "cnndm", "xsum", "mbpp", "humaneval", "wmt")
    with pytest.raises(DiversedError, match="'gsm' is no task; there are arithmetic, gsm8k, cnndm"):
        load_task("gsm")
    for name in TASK_NAMES:
        if name in RUN_CODE:
            message = f"{name} runs model-written code: allow it with --allow-code-execution"
            with pytest.raises(DiversedError, match=message):
                load_task(name)
        assert load_task(name, allow_code_execution=True).name == name


# The Hub, which no test reaches.


@pytest.fixture
def hub(monkeypatch):
    """A Hub with a few rows of each data set, and what was asked of it."""
    import datasets

    asked = []
    columns = {"openai/gsm8k": "gsm8k", "abisee/cnn_dailymail": "cnndm", "EdinburghNLP/xsum": "xsum",
               "google-research-datasets/mbpp": "mbpp", "openai/openai_humaneval": "humaneval",
               "wmt/wmt16": "wmt"}  # fmt: skip

    def load_dataset(repo, config, split):
        asked.append((repo, config, split))
        return datasets.Dataset.from_list(ROWS[columns[repo]])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub_rows, "_answers", lambda repo: True)
    return asked


@each_task
def test_a_task_of_the_hub(name, hub):
    task = task_of(name, None)
    assert hub == [], "nothing is loaded before it is needed"
    example = task.examples("train", 1)[0]
    task.examples("train", 2)
    assert len(hub) == 1, "a split is loaded once"
    task.examples("test", 1)
    assert (
        hub
        == {
            "gsm8k": [("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")],
            "cnndm": [("abisee/cnn_dailymail", "3.0.0", "train"), ("abisee/cnn_dailymail", "3.0.0", "test")],
            "xsum": [("EdinburghNLP/xsum", None, "train"), ("EdinburghNLP/xsum", None, "test")],
            "mbpp": [("google-research-datasets/mbpp", "full", s) for s in ("train", "test")],
            "humaneval": [("openai/openai_humaneval", None, "test")],
            "wmt": [("wmt/wmt16", "de-en", "train"), ("wmt/wmt16", "de-en", "test")],
        }[name]
    )
    assert task.reward(example.answer, example) == pytest.approx(1)


def test_no_network_is_one_line(monkeypatch, tmp_path):
    from datasets import config

    monkeypatch.setattr(hub_rows, "_answers", lambda repo: False)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(DiversedError, match="check the network, or give the rows with --data FOLDER") as error:
        load_task("gsm8k").examples("train", 1)
    assert str(error.value).startswith("cannot get openai/gsm8k from the Hub or its local cache (")
    assert "\n" not in str(error.value)
    assert not config.HF_HUB_OFFLINE, "offline only for that call"


def test_offline_says_nothing_but_the_error(tmp_path):
    script = (
        "from diversed_mlx.tasks.find import load_task\n"
        "try: load_task('xsum').examples('train', 1)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.startswith("DiversedError cannot get EdinburghNLP/xsum")
    assert done.stderr == ""


# What becomes of rows.


def test_gsm8k_references_lose_their_calculator_notes(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "Q?", "answer": "48/2 = <<48/2=24>>24\n#### 24"}))
    (example,) = load_task("gsm8k", data=tmp_path).examples("train", 1)
    assert example.answer == "48/2 = 24\n#### 24"
    assert example.question.startswith("Q?\n\n")
    assert "####" in example.question


def test_articles_are_cut_between_words():
    assert shorten(" short ") == "short"
    assert shorten("word " * 1000) == ("word " * 600).strip()
    assert len(shorten("x" * 5000)) == MOST_CHARACTERS


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```python\ndef f(): 1\n```", "def f(): 1\n"),
        ("Here:\r\n```python\r\ndef f(): 1\r\n```\r\nDone.", "def f(): 1\n"),
        ("```py\ndef f(): 1\n", "def f(): 1\n"),
        ("```\ndef f(): 1\n```", "def f(): 1\n"),
        ("def f(): 1", "def f(): 1"),
        ("```python\ndef f(): 1\n```\nand so\n```python\ndef f(): 2\n```", "def f(): 2\n"),
        ("```python\ndef f(): 1\n```\nUse it:\n```python\nprint(f())\n```", "def f(): 1\n"),
        ("```bash\npip\n```\nthen\n```python\nclass f: 1\n```\n", "class f: 1\n"),
        ("```python\nf = 1\n```\n```python\nf = 2\n```", "f = 2\n"),
        ("```python\ndef fun(): 1\n```\n```\nx\n```", "x\n"),
        ("", ""),
    ],
)
def test_the_program_in_an_answer(answer, code):
    assert find_code(answer, ("f", "g")) == code


def test_programs_are_judged_by_all_tests_of_which_one_is_shown(tmp_path):
    task = Mbpp(write(tmp_path / "train.jsonl", ROWS["mbpp"]).parent, allow_code_execution=True)
    example = next(e for e in task.examples("train", 40) if "add_3(" in e.question)
    assert "assert add_3(1) == 4" in example.question
    assert "floor" not in example.question
    assert task.reward("```python\nadd_3 = lambda x: x + 3\n```", example) == 1
    assert task.reward("```python\nadd_3 = lambda x: 4\n```", example) == 0
    # The tests import floor themselves: a program that has its own does not change them.
    assert (
        task.reward("```python\nadd_3 = lambda x: 4 if x == 1 else 5 if x == 2 else 0\nfloor = str\n```", example) == 1
    )
    assert task.reward("```python\nadd_3 = lambda x: x + 3\nimport sys; sys.exit(0)\n```", example) == 0


def test_no_code_is_run_without_leave(tmp_path):
    task = Mbpp(write(tmp_path / "train.jsonl", ROWS["mbpp"]).parent)
    (example,) = task.examples("train", 1)
    assert task.reward(example.answer, example) is None


def test_a_program_cannot_change_what_humaneval_gives_it(tmp_path):
    task = task_of("humaneval", write(tmp_path / "train.jsonl", ROWS["humaneval"]).parent)
    (example,) = task.examples("train", 1)
    broken = example.answer.replace("return sum(xs) / len(xs)", "return 'anything'")
    assert broken != example.answer
    assert task.reward(broken, example) == 1  # the solution does not use it, and the tests have their own
    name = example.names[0]
    alone = f"```python\ndef {name}(numbers: List[float], t):\n    return len(numbers) > 1 and {{}}\n```"
    assert task.reward(alone.format("mean(numbers) != 1.5"), example) == 1
    assert task.reward(alone.format("True"), example) == 0


# A task of the user's own.

OWN = """
from dataclasses import dataclass
from diversed_mlx.tasks.task import Example

@dataclass
class Mine:
    name: 'str' = "mine"
    metric: str = "length"
    max_tokens: int = 5
    def examples(self, split, n, seed=0):
        return [Example(question=f"{split} {i}", answer="a") for i in range(n)]
    def reward(self, text, example):
        return float(text == example.answer)

task = Mine()
"""


def test_a_task_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    task = load_task("", task_file=path)
    assert task.name == "mine"
    assert task.reward("a", task.examples("test", 1)[0]) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["mine.py"]
    for wrong in ({"name": "gsm8k"}, {"name": "", "data": tmp_path}):
        with pytest.raises(DiversedError, match="a task file stands alone"):
            load_task(**wrong, task_file=path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "import nothing_of_that_name",
            r"mine.py, line 1: ModuleNotFoundError: No module named 'nothing_of_that_name'",
        ),
        ("x = 1\ndef f():\n    return 1 / 0\n\nf()", r"mine.py, line 3: ZeroDivisionError: division by zero"),
        ("x = 1\ny = (", r"mine.py, line 2: SyntaxError"),
        ("import json\njson.loads('{')", r"mine.py, line 2: JSONDecodeError"),
        ("\nraise SystemExit(3)", r"mine.py, line 2: SystemExit: 3"),
        ("x = '\xff'".encode("latin-1"), r"mine.py, line 1: SyntaxError|mine.py: SyntaxError"),
        ("x = 1", "mine.py must define `task`, an object with name, metric, max_tokens, examples and reward"),
        (OWN.replace("task = Mine()", "task = Mine"), "must define `task`, an object"),
        (OWN.replace('metric: str = "length"', "pass"), "mine.py: `task.metric` must be a text"),
        (OWN.replace("max_tokens: int = 5", "max_tokens: int = 0"), "`task.max_tokens` must be a whole number above 0"),
        (OWN.replace("def reward", "def rewards"), r"`task.reward` must be a method reward\(text, example\)"),
    ],
)
def test_a_bad_task_file_is_one_line(source, message, tmp_path):
    path = tmp_path / "mine.py"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    with pytest.raises(DiversedError, match=message) as error:
        load_task("", task_file=path)
    assert "\n" not in str(error.value)


def test_a_missing_task_file(tmp_path):
    with pytest.raises(DiversedError, match=r"cannot read .*nowhere.py: No such file or directory"):
        load_task("", task_file=tmp_path / "nowhere.py")


# Real data, from a folder that cannot be written to.


def test_real_gsm8k(shared):
    task = load_task("gsm8k", data=shared / "data" / "gsm8k")
    train, test = task.examples("train", 7473), task.examples("test", 400)
    assert all(task.reward(example.answer, example) == 1 for example in [*train, *test])
    assert not any("<<" in example.answer for example in train)
    assert not {example.question for example in train} & {example.question for example in test}


def test_real_mbpp(shared):
    task = task_of("mbpp", shared / "data" / "mbpp")
    for example in task.examples("test", 20) + task.examples("train", 20):
        assert task.reward(example.answer, example) == 1


@pytest.mark.parametrize("name", ["wmt", "cnndm"])
def test_real_spec_bench(name, shared):
    task = load_task(name, data=shared / "data" / "spec_bench" / "question.jsonl")
    examples = task.examples("train", 20)
    for example in examples:
        assert not example.question.split("\n\n", 1)[1].startswith(("Translate", "Summarize"))
        assert task.reward(example.answer, example) == pytest.approx(1)
    assert task.reward(examples[0].answer, examples[1]) < 0.5


@pytest.mark.slow
def test_every_reference_of_mbpp_has_its_reward(shared):
    task = task_of("mbpp", shared / "data" / "mbpp")
    with pytest.raises(DiversedError, match="of 300") as error:
        task.examples("test", 301)
    n = int(str(error.value).split(" has ")[1].split()[0])
    examples = task.examples("test", n) + task.examples("train", 300 - n)
    assert [e.question for e in examples if task.reward(e.answer, e) != 1] == []
