"""What `head.json` records of the dial: written, read, the nearest found, and nonsense passed over."""

import dataclasses
import json
import math

import mlx.core as mx
import pytest

from diversed_mlx import DiversedError, EnsembleHead
from diversed_mlx.dial import Setting, nearest_setting, record_settings, settings
from diversed_mlx.heads import EMBEDDED_HEAD

AT_0 = Setting(
    strictness=0.0, acceptance_rate=0.9, quality=0.8, target_quality=0.85, task="gsm8k", n=50, temp=1.0,
    num_draft_tokens=4,
)  # fmt: skip
AT_2 = dataclasses.replace(AT_0, strictness=2.0, acceptance_rate=0.7, quality=0.84)
TRAINED = {
    "task": "xsum",
    "recipe": {"temp": 0.7},
    "metrics": {
        "held_out": {"quality": 0.3, "acceptance_rate": 0.6},
        "target_alone": {"quality": 0.4},
        "held_out_examples": 32,
    },
}


@pytest.fixture
def folder(tmp_path):
    EnsembleHead(3, 5, {"task": "gsm8k", "seed": 7}).save(tmp_path)
    return tmp_path


def test_what_is_recorded_is_read_again_and_nothing_else_changes(folder):
    before = EnsembleHead.load(folder)
    record_settings(folder, [AT_2, AT_0])
    head = EnsembleHead.load(folder)
    assert settings(head) == [AT_0, AT_2]
    assert mx.array_equal(head.summary.weight, before.summary.weight)
    assert {field: value for field, value in head.metadata.items() if field != "bench"} == before.metadata
    written = json.loads((folder / "head.json").read_text())["bench"]
    assert written[1] == {
        "strictness": 2.0, "acceptance_rate": 0.7, "quality": 0.84, "target_quality": 0.85, "task": "gsm8k", "n": 50,
        "temp": 1.0, "num_draft_tokens": 4,
    }  # fmt: skip


def test_a_setting_that_is_measured_again_replaces_the_old_one(folder):
    record_settings(folder, [AT_0, AT_2])
    again = dataclasses.replace(AT_2, quality=0.5)
    elsewhere = dataclasses.replace(AT_2, task="xsum")
    record_settings(folder, [again, elsewhere])
    assert settings(EnsembleHead.load(folder)) == [AT_0, again, elsewhere]


@pytest.mark.parametrize(
    ("strictness", "found"),
    [(0.0, AT_0), (0.9, AT_0), (1.0, AT_2), (2.0, AT_2), (math.inf, AT_2), (-math.inf, AT_0), (-3.0, AT_0)],
)
def test_the_nearest_setting(strictness, found):
    head = EnsembleHead(3, 5, {"bench": [dataclasses.asdict(AT_2), dataclasses.asdict(AT_0)]})
    assert nearest_setting(head, strictness) == found


def test_the_figures_of_training_are_another_kind_of_acceptance_and_no_setting():
    assert settings(EnsembleHead(3, 5, TRAINED)) == []


def test_the_head_that_ships_was_measured():
    found = nearest_setting(EnsembleHead.load(EMBEDDED_HEAD), 0.0)
    assert found is not None
    assert (found.strictness, found.task) == (0.0, "arithmetic")
    assert found.acceptance_rate > 0.8
    assert found.quality > 0.9


@pytest.mark.parametrize(
    "bench",
    [None, 3, "text", {}, [None, 1, "x", [], {}], [{**dataclasses.asdict(AT_0), "quality": "good"}],
     [{**dataclasses.asdict(AT_0), "acceptance_rate": 1.5}], [{**dataclasses.asdict(AT_0), "n": None}],
     [{**dataclasses.asdict(AT_0), "task": 4}], [{**dataclasses.asdict(AT_0), "num_draft_tokens": "4"}],
     [{**dataclasses.asdict(AT_0), "strictness": math.inf}]],
)  # fmt: skip
def test_nonsense_is_passed_over(bench):
    head = EnsembleHead(3, 5, {"bench": bench, "metrics": bench, "recipe": bench, "task": bench})
    assert settings(head) == []
    assert nearest_setting(head, 0.0) is None


@pytest.mark.parametrize("wrong", [{"quality": math.nan}, {"acceptance_rate": 2.0}, {"n": True}])
def test_a_setting_of_impossible_figures_is_refused(wrong):
    with pytest.raises(DiversedError):
        dataclasses.replace(AT_0, **wrong)


def test_nothing_is_recorded_where_there_is_no_head(tmp_path):
    with pytest.raises(DiversedError, match="holds no head"):
        record_settings(tmp_path, [AT_0])
