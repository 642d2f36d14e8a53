"""What passes and acceptance add up to, worked out by hand; what is kept of it, and when it counts."""

import json
import math

import mlx.core as mx
import pytest

from diversed_mlx import Cascade, DiversedError, Dynamic, EnsembleHead, Lenient, Lossless, Pair, Static
from diversed_mlx.draft_length import AUTO_LONGEST
from diversed_mlx.lm import LM
from diversed_mlx.tuning import store
from diversed_mlx.tuning.costs import measure_costs
from diversed_mlx.tuning.forecast import Costs, Trial, costs_at, forecast, gain_over_plain, recommend, survival
from diversed_mlx.tuning.measure import default_depths, measure, ticks
from diversed_mlx.tuning.store import Tuning, find, find_start, save, verifier_name
from diversed_mlx.tuning.trial import LENGTHS, Turns, read_prompts, run_trials

# A draft step takes 1 s, the target 8 s over one token and 1 s more for each further one.
COSTS = Costs(depth=64, draft_step=1.0, passes=(8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0), spread=0.0)
HALVES = tuple(0.5**i for i in range(1, 9))


def trial(survived: tuple[float, ...] = HALVES, temp: float = 0.0, depth: float = 64, **seconds: float) -> Trial:
    """A trial whose rounds took exactly their passes, unless told otherwise, as k1=..., k0=...."""
    times = {length: COSTS.round(length) for length in (0, *LENGTHS)}
    return Trial(
        temp=temp, depth=depth, survival=survived, seconds=times | {int(k[1:]): value for k, value in seconds.items()}
    )


# Arithmetic


def test_survival_is_the_product_of_what_passed_over_what_was_reached():
    # First position: 1 + 0.5 + 0 of 3 rounds pass. Second: the rounds of two drafts reach it with 1 and 0.5, and
    # 0.5 * 1 + 0.5 = 0.75 of these 1.5 pass; the round of one draft says nothing of it.
    found = survival([[1.0, 0.5], [0.5, 0.5], [0.0]], longest=3)
    assert found == pytest.approx((0.5, 0.5 * 0.75 / 1.5, 0.0))
    assert survival([], longest=2) == (0.0, 0.0)


def test_acceptance_is_that_of_a_token_whose_predecessors_stood():
    assert trial(HALVES).acceptance == pytest.approx(0.5)
    assert trial((1.0,) * 8).acceptance == 1.0
    assert trial((0.0,) * 8).acceptance == 0.0


def test_a_round_is_its_draft_steps_and_one_pass():
    assert [COSTS.round(length) for length in (0, 1, 2, 8)] == [8.0, 10.0, 12.0, 24.0]


def test_expected_speeds_by_hand():
    (found,) = forecast([COSTS], trial())
    # K = 0: 1 / 8. K = 1: 1.5 / 10. K = 2: 1.75 / 12. K = 3: 1.875 / 14. K = 8: (2 - 2^-8) / 24.
    assert found.tokens[:4] == pytest.approx((1.0, 1.5, 1.75, 1.875))
    assert found.speeds[:4] == pytest.approx((0.125, 0.15, 1.75 / 12, 1.875 / 14))
    assert found.speeds[8] == pytest.approx((2 - 2**-8) / 24)
    assert recommend([found]) == 1
    assert gain_over_plain([found])[1] == pytest.approx(1.2)


def test_overhead_is_that_of_real_rounds_and_lies_on_a_line_between():
    # Rounds of two drafts took 1.5 times their passes, of four 2.5 times: three take twice. Plain steps 3 times.
    (found,) = forecast([COSTS], trial(k0=24.0, k2=18.0, k4=40.0))
    assert found.seconds[0] == pytest.approx(24.0)
    assert found.seconds[2] == pytest.approx(18.0)
    assert found.seconds[3] == pytest.approx(2.0 * 14)
    assert found.seconds[6] == pytest.approx((2.5 + 1.0) / 2 * 20)


def test_costs_between_two_depths_lie_on_a_line_and_end_at_them():
    deep = Costs(depth=164, draft_step=3.0, passes=tuple(2 * value for value in COSTS.passes), spread=0.5)
    between = costs_at([COSTS, deep], 89)
    assert between.draft_step == pytest.approx(1.5)
    assert between.passes[0] == pytest.approx(10.0)
    assert between.spread == 0.5
    assert costs_at([COSTS, deep], 3).draft_step == 1.0
    assert costs_at([COSTS, deep], 999).draft_step == 3.0
    shallow, far = forecast([COSTS, deep], trial(depth=89, k0=20.0))  # plain steps took twice their 10 s
    assert (shallow.seconds[0], far.seconds[0]) == pytest.approx((16.0, 32.0))


def test_no_gain_means_plain_decoding():
    (found,) = forecast([COSTS], trial((0.1,) + (0.0,) * 7))  # K = 1: 1.1 / 10 against 1 / 8
    assert recommend([found]) == 0
    # 1.02 times plain is within the noise: tokens 1 + s in 10 s against 1 in 8 gives s = 0.275.
    (found,) = forecast([COSTS], trial((0.275,) + (0.0,) * 7))
    assert gain_over_plain([found])[1] == pytest.approx(1.02)
    assert recommend([found]) == 0


def test_a_perfect_draft_is_used_as_far_as_it_goes():
    (found,) = forecast([COSTS], trial((1.0,) * 8))
    assert recommend([found]) == 8
    assert gain_over_plain([found])[8] == pytest.approx(9 / 24 * 8)


def test_a_recommendation_weighs_all_depths():
    dear = Costs(
        depth=1000, draft_step=6.0, passes=COSTS.passes, spread=0.0
    )  # K = 1: 1.5 / 15 against 1 / 8, a loss of 0.8
    forecasts = forecast([COSTS, dear], trial())
    assert gain_over_plain(forecasts)[1] == pytest.approx(math.sqrt(1.2 * 0.8))
    assert recommend(forecasts) == 0


# Measuring


class Clock:
    """A clock that moves when a model reads, by 1 s a token of the draft and 10 s + 1 s a token of the target."""

    def __init__(self, pair: Pair, monkeypatch):
        self.now = 0.0
        forward = LM.__call__

        def call(lm, tokens, cache):
            self.now += tokens.shape[0] + (10.0 if lm is pair.target else 0.0) + cache.offset / 100
            return forward(lm, tokens, cache)

        monkeypatch.setattr(LM, "__call__", call)

    def __call__(self) -> float:
        return self.now


def test_costs_are_those_of_the_passes_at_each_depth(pair, monkeypatch):
    turns = []
    costs = measure_costs(pair, (100, 50), 3, tick=lambda: turns.append(1), clock=Clock(pair, monkeypatch))
    assert [cost.depth for cost in costs] == [50, 100]
    assert len(turns) == 4
    for cost in costs:
        assert cost.spread == 0.0
        assert cost.draft_step == pytest.approx(1 + cost.depth / 100)
        assert cost.passes == pytest.approx(tuple(10 + n + cost.depth / 100 for n in range(1, AUTO_LONGEST + 2)))


def test_a_depth_beyond_the_context_is_refused(pair):
    with pytest.raises(DiversedError, match=r"2040 tokens leaves no room .* context of 2048: give at most 2039"):
        measure_costs(pair, (2040,), 1, tick=lambda: None)
    assert default_depths(pair) == (64, 1024)


def test_turns_keep_whole_rounds_only():
    turns = Turns((4, 2))
    assert turns.next() == 4
    turns.record(4, 1, 2, 1.0)
    assert turns.next() == 2
    turns.record(1, 1, 1, 9.0)  # cut short by a stop token
    assert turns.next() == 4
    turns.record(4, 4, 5, 3.0)
    assert turns.seconds == {4: [1.0, 3.0], 2: []}


def test_a_draft_that_is_the_target_survives_and_an_adversary_does_not(self_pair, adverse_pair):
    for pair, expected in ((self_pair, 1.0), (adverse_pair, 0.0)):
        (found,) = run_trials(
            pair, Lossless(), read_prompts(pair, ["hello"]), (0.0,), max_tokens=60, seed=0, tick=lambda: None
        )
        assert found.survival == (expected,) * 8
        assert set(found.seconds) == {0, *LENGTHS}
        assert 20 < found.depth < 80


def test_what_cannot_be_measured_is_refused(pair, checkpoints):
    with pytest.raises(DiversedError, match="too short to time a round of each length"):
        run_trials(pair, Lossless(), [[1, 2, 3]], (0.0,), max_tokens=1, seed=0, tick=lambda: None)
    with pytest.raises(DiversedError, match="a prompt has 2503 tokens and this pair's context holds 2048"):
        read_prompts(pair, ["x" * 2500])
    with pytest.raises(DiversedError, match="nothing to tune without a draft"):
        measure(Pair(pair.target), Lossless())
    with pytest.raises(DiversedError, match="no prompt"):
        measure(pair, Lossless(), prompts=())


def test_a_whole_measurement_ticks_as_often_as_it_says(pair):
    turns = []
    found = measure(
        pair, Lossless(), depths=(8,), prompts=("hi", "ho"), repeats=1, max_tokens=40, tick=lambda: turns.append(1)
    )
    assert len(turns) == ticks(("hi", "ho"), 1) == 6
    assert [(each.temp, each.depth) for each in found.forecasts] == [(0.0, 8), (1.0, 8)]


# Keeping


def tuning(pair: Pair, verifier: str = "lossless", **changes: object) -> Tuning:
    trials = [trial(temp=0.0), trial((1.0,) * 8, temp=1.0)]
    return Tuning(
        made_for=store.conditions(pair) | changes,
        verifier=verifier,
        costs=[COSTS],
        trials=trials,
        forecasts=[each for one in trials for each in forecast([COSTS], one)],
    )


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DIVERSED_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_auto_starts_from_what_was_kept(pair, home):
    assert find_start(pair, Lossless(), 0.0) is None
    path = save(tuning(pair))
    assert path.parent == home / "tuning"
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # nothing half-written stays
    cold, warm = find_start(pair, Lossless(), 0.3), find_start(pair, Lossless(), 0.8)
    assert cold is not None
    assert warm is not None
    assert cold.seconds == pytest.approx(tuple(COSTS.round(length) for length in range(9)))
    assert (cold.acceptance, warm.acceptance) == pytest.approx((0.5, 1.0))


def test_another_verifier_takes_the_times_and_not_the_acceptance(pair, home):
    save(tuning(pair))
    start = find_start(pair, Static(target_weight=0.3), 0.0)
    assert start is not None
    assert start.acceptance is None
    assert start.seconds[0] == pytest.approx(8.0)
    save(tuning(pair, "static 0.3"))
    assert len(list((home / "tuning").iterdir())) == 2
    start = find_start(pair, Static(target_weight=0.3), 0.0)
    assert start is not None
    assert start.acceptance == pytest.approx(0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": "Darwin arm64, Apple M9, metal, 16 GiB"},
        {"versions": {"mlx": "0.1", "mlx-lm": "0.1"}},
        {"target_format": "4 bits in groups of 64, float32"},
    ],
)
def test_what_was_measured_under_other_conditions_is_not_used(pair, home, changes):
    save(tuning(pair, **changes))
    assert find_start(pair, Lossless(), 0.0) is None
    holding, stale = find(store.conditions(pair))
    assert holding == []
    assert len(stale) == 1
    save(tuning(pair))
    assert find_start(pair, Lossless(), 0.0) is not None


def test_other_models_have_other_files(pair, gemma_pair, home):
    save(tuning(pair))
    assert find_start(gemma_pair, Lossless(), 0.0) is None
    assert find_start(pair, None, 0.0) is None
    assert find_start(Pair(pair.target), Lossless(), 0.0) is None


@pytest.mark.parametrize(
    "damage",
    ["", "{", "[]", "null", '{"verifier": "lossless"}', "hand"],
)
def test_a_damaged_file_is_passed_over(pair, home, damage):
    path = save(tuning(pair))
    if damage == "hand":
        content = json.loads(path.read_text())
        content["temperatures"][0]["depths"][0]["seconds"][3] = -1
        damage = json.dumps(content)
    path.write_text(damage)
    assert find_start(pair, Lossless(), 0.0) is None


def test_a_home_that_cannot_be_used_is_refused_on_writing_and_empty_on_reading(pair, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DIVERSED_HOME", str(tmp_path / "file"))
    assert find_start(pair, Lossless(), 0.0) is None
    with pytest.raises(DiversedError, match=r"cannot write .*file/tuning/.*json: "):
        save(tuning(pair))


def test_verifiers_that_accept_alike_have_one_name():
    names = [
        verifier_name(verifier)
        for verifier in (
            Lossless(), Static(target_weight=0.7), Lenient(lenience=0.5), Cascade(alpha=0.2, rule="opt"),
            Cascade(alpha=0.2, rule="token"),
        )
    ]  # fmt: skip
    assert names == ["lossless", "static 0.7", "lenient 0.5", "cascade opt 0.2", "cascade token 0.2"]
    head, other = EnsembleHead(4, 4), EnsembleHead(4, 4)
    assert verifier_name(Dynamic(head)) == verifier_name(Dynamic(other))
    other.summary.bias = mx.array([0.0, 1.0])
    different = {verifier_name(each) for each in (Dynamic(head), Dynamic(other), Dynamic(head, strictness=1.0))}
    assert len(different) == 3
