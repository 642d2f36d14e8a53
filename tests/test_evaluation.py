"""Methods beside each other: names, turns, sums and intervals, against values worked out by hand or in closed form."""

import json
import math
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from diversed_mlx import Cascade, DiversedError, Dynamic, EnsembleHead, Lenient, Lossless, Pair, Sampling, Static
from diversed_mlx.answer import Response, stream_generate
from diversed_mlx.block import Block
from diversed_mlx.cli.main import app
from diversed_mlx.cli.marks import lines_with_weights
from diversed_mlx.conversation import chat_prompt
from diversed_mlx.evaluation.methods import make_method, make_verifier
from diversed_mlx.evaluation.runner import Answer, bootstrap, run, summarise
from diversed_mlx.stats import Stats
from diversed_mlx.tasks.task import Example

NAMES = ["none", "lossless", "static:0.5"]


class Vowels:
    """A task that any text answers: the share of vowels."""

    name, metric, max_tokens = "vowels", "share", 12

    def examples(self, split, n, seed=0):
        return [Example(question=f"question {seed + i}", answer="") for i in range(n)]

    def reward(self, text, example):
        return sum(c in "aeiou" for c in text) / max(len(text), 1)


@pytest.mark.parametrize(
    ("name", "verifier"),
    [
        ("none", None),
        ("lossless", Lossless()),
        ("static:0.25", Static(target_weight=0.25)),
        ("lenient:0.1", Lenient(lenience=0.1)),
        ("cascade-opt:0.2", Cascade(alpha=0.2, rule="opt")),
        ("cascade-token:0.3", Cascade(alpha=0.3, rule="token")),
    ],
)
def test_a_name_means_a_verifier(name, verifier):
    assert make_verifier(name) == verifier


def test_dynamic_takes_the_head_and_a_strictness():
    head = EnsembleHead(2, 3)
    verifiers = [make_verifier(name, head) for name in ("dynamic", "dynamic:-1.5")]
    assert [(v.head is head, v.strictness) for v in verifiers if isinstance(v, Dynamic)] == [(True, 0.0), (True, -1.5)]


@pytest.mark.parametrize(
    "name",
    ["", "best", "none:1", "lossless:1", "static", "static:x", "static:2", "lenient:0", "cascade:0.2", "dynamic"],
)
def test_no_other_name_means_anything(name):
    with pytest.raises(DiversedError):
        make_verifier(name)


def answers_of(pair, n):
    task = Vowels()
    methods = {name: make_method(name, pair) for name in NAMES}
    return list(run(pair, task, task.examples("test", n), methods, sampling=Sampling(), num_draft_tokens=3, seed=5))


def test_methods_take_turns_and_answer_as_the_library_does(pair):
    answers = answers_of(pair, 3)
    assert [a.method for a in answers] == NAMES + NAMES[1:] + NAMES[:1] + NAMES[2:] + NAMES[:2]
    for index, a in enumerate(answers):
        prompt = chat_prompt(pair, [{"role": "user", "content": f"question {index // 3}"}])
        alone = stream_generate(
            pair, prompt, verifier=make_verifier(a.method), num_draft_tokens=3, max_tokens=12, seed=5 + index // 3
        )
        assert [r.token for r in a.responses] == [r.token for r in alone]
        assert a.quality == Vowels().reward(a.text, a.example)


def test_the_draft_alone_is_the_draft_alone(pair):
    task = Vowels()
    examples = task.examples("test", 2)
    methods = {"draft": make_method("draft", pair)}
    for i, a in enumerate(run(pair, task, examples, methods, sampling=Sampling(), num_draft_tokens=3, seed=5)):
        prompt = chat_prompt(pair, [{"role": "user", "content": f"question {i}"}])
        alone = stream_generate(Pair(pair.draft), prompt, verifier=None, max_tokens=12, seed=5 + i)
        assert [r.token for r in a.responses] == [r.token for r in alone]
    with pytest.raises(DiversedError, match="needs a pair with a draft"):
        make_method("draft", Pair(pair.target))


def response(origin="plain", weight=None, stats=None, text="x"):
    block = Block(
        tokens=[1],
        origins=[origin],
        target_weights=[weight],
        proposed=0,
        accepted=0,
        draft_tokens=[],
        accept_probabilities=[],
        target_probabilities=[None],
        draft_probabilities=[None],
    )
    return Response(
        text=text,
        token=1,
        origin=origin,
        target_weight=weight,
        target_probability=None,
        draft_probability=None,
        finish_reason=None,
        stats=stats,
        block=block,
    )


def made(method, quality, seconds, generated, rounds, proposed, accepted, weights=()):
    stats = Stats(
        prompt_tokens=1, cached_tokens=0, generated_tokens=generated, rounds=rounds, proposed=proposed,
        accepted=accepted, mean_target_weight=None, prompt_tps=1, generation_tps=1, peak_memory_gb=1,
    )  # fmt: skip
    responses = [response("accepted", weight, stats) for weight in weights] + [response("bonus", 1.0, stats)]
    return Answer(
        method=method, example=Example(question="q", answer="a"), responses=responses, quality=quality,
        seconds=seconds, peak_memory_gb=seconds,
    )  # fmt: skip


def test_sums_by_hand():
    answers = [
        made("static:0.5", 1.0, 1.0, 8, 2, 6, 3, [0.25, 0.5]),
        made("none", 1.0, 2.0, 8, 8, 0, 0),
        made("static:0.5", 0.0, 3.0, 12, 3, 10, 9, [0.75]),
        made("none", 1.0, 6.0, 24, 24, 0, 0),
    ]
    alone, static = summarise(answers)
    assert (alone.method, static.method) == ("none", "static:0.5")
    assert (alone.quality, static.quality) == (1.0, 0.5)
    assert (alone.acceptance_rate, alone.acceptance_ci, alone.mean_target_weight) == (None, None, None)
    assert static.acceptance_rate == pytest.approx(12 / 16)
    assert static.tokens_per_round == 20 / 5
    assert (alone.generation_tps, static.generation_tps) == (4.0, 5.0)
    assert (alone.speedup, static.speedup) == (1.0, 1.25)
    assert static.mean_target_weight == 0.5  # the bonus was not verified
    assert static.peak_memory_gb == 3.0
    # Two examples, each drawn twice with probability 1/4: the extremes are in the interval.
    assert static.quality_ci == (0.0, 1.0)
    assert static.acceptance_ci == (3 / 6, 9 / 10)
    assert json.loads(json.dumps(static.to_json()))["acceptance_ci"] == [0.5, 0.9]


def test_without_the_target_alone_there_is_no_speedup():
    (row,) = summarise([made("lossless", 1.0, 1.0, 4, 2, 4, 2)])
    assert (row.speedup, row.speedup_ci) == (None, None)


def test_the_interval_of_a_share_is_the_binomial_one():
    n, share = 400, 0.3
    quality = np.array([1.0] * round(n * share) + [0.0] * round(n * (1 - share)))
    low, high = bootstrap([quality], [np.ones(n)])
    half = 1.96 * math.sqrt(share * (1 - share) / n)
    # 2,000 resamples know a quantile to about 5 % of a standard deviation, and shares come in steps of 1/400.
    assert (low, high) == pytest.approx((share - half, share + half), abs=0.1 * half + 1 / n)


def test_lines_carry_a_strip_of_weights():
    responses = [
        response("accepted", 0.0, text="ab"),
        response("corrected", 0.55, text="c\nd"),
        response("plain", None, text="e"),
        response("accepted", 1.0, text="f"),
        response("bonus", 1.0, text="\n"),
        response("plain", None, text="\x1b[2J\x07"),
    ]
    assert list(lines_with_weights(responses, colour=False)) == [
        "ab[c]",
        "00555",
        "[d]ef",
        "555 9",
        "\ufffd[2J\ufffd",
    ]


@pytest.fixture
def embedded(checkpoints, tmp_path, monkeypatch):
    """A folder in which tiny-draft and tiny-target are local models, which win over the embedded ones."""
    for name in ("draft", "target"):
        (tmp_path / f"tiny-{name}").symlink_to(checkpoints[name])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def demo(*arguments):
    return CliRunner().invoke(app, ["demo", "--n-examples", "2", *arguments])


def test_demo_tells_measures_and_writes(embedded):
    done = demo(
        "--methods",
        "none,lossless,static:0.95",
        "--json",
        "out.json",
        "--temp",
        "0.5",
        "--num-draft-tokens",
        "3",
        "--seed",
        "7",
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.count("target passes)") == 2 * 3
    assert "\x1b" not in done.stdout
    written = json.loads((embedded / "out.json").read_text())
    assert {key: written[key] for key in ("task", "n", "temp", "num_draft_tokens", "seed")} == {
        "task": "arithmetic", "n": 2, "temp": 0.5, "num_draft_tokens": 3, "seed": 7,
    }  # fmt: skip
    none, lossless, static = written["rows"]
    assert (none["method"], lossless["method"], static["method"]) == ("none", "lossless", "static:0.95")
    assert (none["acceptance_rate"], none["speedup"]) == (None, 1.0)
    assert static["mean_target_weight"] == pytest.approx(0.95)
    assert lossless["acceptance_ci"][0] <= lossless["acceptance_rate"] <= lossless["acceptance_ci"][1]
    assert re.search(rf"lossless .*{lossless['acceptance_rate']:.1%}", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "none,best"], "best is no method"),
        (["--methods", "dynamic"], "needs a trained head"),
        (["--methods", "none", "--head", "nowhere"], "no head nowhere"),
        (["--json", "nowhere/out.json"], "its folder does not exist"),
    ],
)
def test_demo_refuses_with_one_line(embedded, arguments, message):
    done = demo(*arguments)
    assert done.exit_code == 1
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_demo_takes_no_infinite_temperature(embedded):
    assert demo("--temp", "inf").exit_code == 2
