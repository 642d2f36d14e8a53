"""The script of the paper's figure, at toy size on the embedded pair: what it writes, and going on where it was."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
pytest.importorskip("matplotlib")
import reproduce_pareto as script
from test_pareto import ROWS

from diversed_mlx.evaluation.log import AnswerLog


def reproduce(monkeypatch, folder, *arguments):
    monkeypatch.setattr(script, "CELLS", (script.MAIN,))
    monkeypatch.setattr(script, "SEEDS", (0, 1))
    monkeypatch.setattr(script, "BASELINES", ["none", "lossless", "static:0.5"])
    monkeypatch.setattr(script, "DYNAMIC", ["none", "dynamic:0"])
    monkeypatch.setattr(sys, "argv", ["reproduce_pareto.py", "--n-main", "2", "--work", str(folder / "work"),
                                      "--output", str(folder), *arguments])  # fmt: skip
    script.main()
    (cell,) = json.loads((folder / "pareto.json").read_text())["cells"]
    return cell


def test_a_stopped_run_goes_on_and_a_later_one_takes_more_problems(tmp_path, monkeypatch, capsys):
    append, count = AnswerLog.append, iter(range(7))

    def stop(log, answer):
        append(log, answer)
        if next(count) == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AnswerLog, "append", stop)
        with pytest.raises(KeyboardInterrupt):
            reproduce(monkeypatch, tmp_path)
    cell = reproduce(monkeypatch, tmp_path)
    assert {row["method"]: row["n"] for row in cell["rows"]} == {
        "none": 4, "lossless": 4, "static:0.5": 4, "dynamic:0": 4,
    }  # fmt: skip
    assert (cell["temp"], cell["num_draft_tokens"], cell["answers"]) == (1.0, 5, 2 * 2 * 5)
    assert (tmp_path / "pareto.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "### temperature 1, K = 5, 4 problems" in printed
    assert "\n- dynamic:0: " in printed
    logs = {path: path.read_text() for path in (tmp_path / "work").rglob("*.jsonl")}
    assert len(logs) == 4
    more = reproduce(monkeypatch, tmp_path, "--n-main", "3")
    assert more["answers"] == 2 * 3 * 5
    assert all(path.read_text().startswith(text) for path, text in logs.items())


def test_the_claims_say_who_wins():
    (line,) = script.claims(ROWS)
    assert line == (
        "- dynamic: no other method has both more right and more acceptance; of those at most a point less right "
        "lossless accepts most, 50.0 % (50.0-50.0): 30.0 points less"
    )
    (line,) = script.claims([*ROWS[:4], ROWS[5], script.dataclasses.replace(ROWS[2], method="dynamic")])
    assert "beaten by the means of both by cascade-opt:0.1;" in line
    assert "cascade-opt:0.1 accepts most, 80.0 % (80.0-80.0): 10.0 points MORE" in line
