"""Methods beside each other: names, turns, sums and intervals, against values worked out by hand or in closed form."""

import json
import math
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from diversed_mlx import Cascade, DiversedError, Dynamic, EnsembleHead, Lenient, Lossless, Pair, Sampling, Static
from diversed_mlx.answer import stream_generate
from diversed_mlx.cli.main import app
from diversed_mlx.cli.marks import lines_with_weights
from diversed_mlx.conversation import chat_prompt
from diversed_mlx.evaluation.engine import Settings
from diversed_mlx.evaluation.intervals import bootstrap, difference_interval, wilson
from diversed_mlx.evaluation.methods import expand, make_method, make_verifier
from diversed_mlx.evaluation.record import Answer, Reply, Round, Token
from diversed_mlx.evaluation.rows import summarise
from diversed_mlx.evaluation.runner import run
from diversed_mlx.tasks.task import Example

NAMES = ["none", "lossless", "static:0.5"]
SETTINGS = Settings(sampling=Sampling(), num_draft_tokens=3, max_tokens=12)


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
    return list(run(pair, task, task.examples("test", n), methods, SETTINGS, seed=5))


def test_methods_take_turns_and_answer_as_the_library_does(pair):
    answers = answers_of(pair, 3)
    assert [a.method for a in answers] == NAMES + NAMES[1:] + NAMES[:1] + NAMES[2:] + NAMES[:2]
    for index, a in enumerate(answers):
        prompt = chat_prompt(pair, [{"role": "user", "content": f"question {index // 3}"}])
        alone = stream_generate(
            pair, prompt, verifier=make_verifier(a.method), num_draft_tokens=3, max_tokens=12, seed=5 + index // 3
        )
        responses = list(alone)
        assert [(t.text, t.origin) for t in a.reply.tokens] == [(r.text, r.origin) for r in responses]
        stats = responses[-1].stats
        assert (len(a.reply.rounds), a.proposed, a.accepted) == (stats.rounds, stats.proposed, stats.accepted)
        assert a.quality == Vowels().reward(a.text, Example(question=a.question, answer=""))
        assert 0 < a.reply.first_token_seconds <= a.seconds


def test_the_draft_alone_is_the_draft_alone(pair):
    task = Vowels()
    examples = task.examples("test", 2)
    methods = {"draft": make_method("draft", pair)}
    for i, a in enumerate(run(pair, task, examples, methods, SETTINGS, seed=5)):
        prompt = chat_prompt(pair, [{"role": "user", "content": f"question {i}"}])
        alone = stream_generate(Pair(pair.draft), prompt, verifier=None, max_tokens=12, seed=5 + i)
        assert a.text == "".join(r.text for r in alone)
    with pytest.raises(DiversedError, match="needs a pair with a draft"):
        make_method("draft", Pair(pair.target))


def token(origin="plain", weight=None, text="x"):
    return Token(text=text, origin=origin, target_weight=weight)


def turn(proposed, accepted, tokens, chances=None, ends=False):
    return Round(proposed=proposed, accepted=accepted, tokens=tokens, chances=chances, ends=ends)


def made(method, number, quality, seconds, rounds, weights=()):
    """An answer whose tokens are plain but for a bonus and one drafted token for each weight."""
    count = sum(r.tokens for r in rounds)
    tokens = [token("accepted", weight) for weight in weights] + [token("bonus", 1.0)]
    tokens += [token()] * (count - len(tokens))
    return Answer(
        method=method, number=number, question=f"q{number}", quality=quality, seconds=seconds, peak_memory_gb=seconds,
        reply=Reply(tokens=tokens, rounds=rounds, first_token_seconds=seconds / 4),
    )  # fmt: skip


PLAIN = turn(0, 0, 1, [])


def test_sums_by_hand():
    answers = [
        made("static:0.5", 0, 1.0, 1.0, [turn(3, 3, 4, [1.0, 0.5, 1.0]), turn(3, 0, 4, [0.5, 0.5, 0.5])], [0.25, 0.5]),
        made("none", 0, 1.0, 2.0, [PLAIN] * 8),
        made("none", 1, 1.0, 6.0, [PLAIN] * 24),
        made(
            "static:0.5", 1, 0.0, 3.0, [turn(5, 4, 5, [1.0] * 5), turn(5, 5, 6, [1.0] * 5), turn(0, 0, 1, [])], [0.75]
        ),
    ]
    alone, static = summarise(answers)
    assert (alone.method, static.method) == ("none", "static:0.5")
    assert (alone.n, alone.unjudged) == (2, 0)
    assert (alone.quality, static.quality) == (1.0, 0.5)
    assert (static.quality_difference, static.quality_difference_ci) == (-0.5, (-1.0, 0.0))
    assert (alone.acceptance_rate, alone.acceptance_ci, alone.mean_target_weight) == (None, None, None)
    assert static.acceptance_rate == pytest.approx(12 / 16)
    assert static.tokens_per_round == 20 / 5
    # Round by round: 1 + 1 + 1/2 + 1/2, 1 + 1/2 + 1/4 + 1/8, 6, 6 and 1; 20 tokens were measured.
    expected = (3.0 + 1.875 + 6 + 6 + 1) / 5
    assert static.predicted_tokens_per_round == pytest.approx(expected)
    assert static.prediction_error == pytest.approx(4 - expected)
    # Variances: 4 or 2 tokens, 1/2 each: 1. Of 1 to 4 with 1/2, 1/4, 1/8, 1/8: 4.625 - 1.875^2. The others are certain.
    half = 1.959964 * math.sqrt(1 + 4.625 - 1.875**2) / 5
    assert static.prediction_error_ci == pytest.approx((4 - expected - half, 4 - expected + half))
    assert (alone.predicted_tokens_per_round, alone.prediction_error) == (1.0, 0.0)
    assert (alone.generation_tps, static.generation_tps) == (4.0, 5.0)
    # Two examples, each drawn twice with probability 1/4: the extremes are in the interval.
    assert static.generation_tps_ci == (4.0, 8.0)
    assert (alone.speedup, static.speedup) == (1.0, 1.25)
    assert static.speedup_ci == (1.0, 2.0)
    assert (static.seconds, static.first_token_seconds) == (2.0, 0.5)
    assert static.first_token_seconds_ci == (0.25, 0.75)
    assert static.mean_target_weight == 0.5  # the bonus was not verified
    assert static.mean_target_weight_ci == (0.375, 0.75)
    assert static.peak_memory_gb == 3.0
    assert static.quality_ci == (0.0, 1.0)
    assert static.acceptance_ci == (3 / 6, 9 / 10)
    assert json.loads(json.dumps(static.to_json()))["acceptance_ci"] == [0.5, 0.9]


def test_an_answer_that_ends_in_its_draft_is_expected_to_have_no_bonus():
    (row,) = summarise([made("lossless", 0, 1.0, 1.0, [turn(2, 2, 2, [0.5, 0.5], ends=True)])])
    assert row.predicted_tokens_per_round == pytest.approx(1 + 0.5 + 0.25 - 0.25)


def test_what_could_not_be_judged_is_counted_and_not_taken_for_a_failure():
    answers = [
        made("none", 0, 1.0, 1.0, [PLAIN]), made("none", 1, None, 1.0, [PLAIN]), made("none", 2, 0.5, 1.0, [PLAIN]),
        made("lossless", 0, None, 1.0, [PLAIN]), made("lossless", 1, 1.0, 1.0, [PLAIN]),
        made("lossless", 2, 0.25, 1.0, [PLAIN]), made("mlx-lm", 0, None, 1.0, [turn(1, 1, 2)]),
        made("mlx-lm", 1, None, 1.0, [turn(1, 1, 2)]), made("mlx-lm", 2, None, 1.0, [turn(1, 1, 2)]),
    ]  # fmt: skip
    alone, lossless, other = summarise(answers)
    assert (alone.unjudged, alone.quality) == (1, 0.75)
    assert (lossless.unjudged, lossless.quality) == (1, 0.625)
    assert lossless.quality_difference == -0.25  # the third example alone has both
    assert (other.unjudged, other.quality, other.quality_ci, other.quality_difference) == (3, None, None, None)
    assert (other.predicted_tokens_per_round, other.prediction_error_ci) == (None, None)  # it tells no chances


def test_a_share_of_all_or_nothing_has_an_interval():
    low, high = wilson(10, 10)
    assert high == pytest.approx(1)
    assert low == pytest.approx(10 / (10 + 1.96**2), abs=1e-4)  # n / (n + z^2)
    assert wilson(0, 10) == pytest.approx((0, 1 - low))
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)  # Brown, Cai and DasGupta's example
    (row,) = summarise([made("none", i, 1.0, 1.0, [PLAIN]) for i in range(10)])
    assert row.quality_ci == (low, high)
    assert row.quality_difference_ci == pytest.approx((low - 1, 1 - low))  # no pair of ten differs: neither is proven
    assert difference_interval(np.array([0.0, 0.0, -1.0, -1.0])) == (-1.0, 0.0)


def test_an_answer_survives_the_line_it_is_written_as(pair):
    for a in answers_of(pair, 2):
        assert Answer.from_json(json.loads(json.dumps(a.to_json()))) == a


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("none,static:0.5..1.0:0.1", ["none", *(f"static:{w}" for w in ("0.5", "0.6", "0.7", "0.8", "0.9", "1.0"))]),
        ("dynamic:-2..2:2", ["dynamic:-2", "dynamic:0", "dynamic:2"]),
        ("static:0.85..1:0.05", ["static:0.85", "static:0.90", "static:0.95", "static:1.00"]),
        ("lossless, none ,lossless", ["lossless", "none"]),
        ("static:0..0.5:0.2", ["static:0.0", "static:0.2", "static:0.4"]),
    ],
)
def test_ranges_of_methods(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["static:1..0:0.1", "static:0..1", "static:0..1:0", "static:a..b:1", "static:0..1:0.001"]
)
def test_no_other_range_means_anything(text):
    with pytest.raises(DiversedError, match="a range"):
        expand(text)


def test_without_the_target_alone_there_is_no_speedup():
    (row,) = summarise([made("lossless", 0, 1.0, 1.0, [turn(4, 2, 3, [0.5])])])
    assert (row.speedup, row.speedup_ci) == (None, None)


def test_the_interval_of_a_share_is_the_binomial_one():
    n, share = 400, 0.3
    quality = np.array([1.0] * round(n * share) + [0.0] * round(n * (1 - share)))
    low, high = bootstrap([quality], [np.ones(n)])
    half = 1.96 * math.sqrt(share * (1 - share) / n)
    # 2,000 resamples know a quantile to about 5 % of a standard deviation, and shares come in steps of 1/400.
    assert (low, high) == pytest.approx((share - half, share + half), abs=0.1 * half + 1 / n)


def test_lines_carry_a_strip_of_weights():
    tokens = [
        token("accepted", 0.0, text="ab"),
        token("corrected", 0.55, text="c\nd"),
        token("plain", None, text="e"),
        token("accepted", 1.0, text="f"),
        token("bonus", 1.0, text="\n"),
        token("plain", None, text="\x1b[2J\x07"),
    ]
    assert list(lines_with_weights(tokens, colour=False)) == [
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
