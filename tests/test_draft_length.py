"""The draft length: `auto` finds what pays, on costs and acceptances that are known here and not to it."""

import random

import pytest

from diversed_mlx.draft_length import AUTO_LONGEST, Auto, Fixed, Start, make_draft_length


def expected_speed(length: int, acceptance: float, plain: float, step: float, base: float) -> float:
    """Tokens a second by hand: sum of a^i for i = 0..K over base + K step; a plain step takes `plain`."""
    if length == 0:
        return 1 / plain
    return sum(acceptance**i for i in range(length + 1)) / (base + length * step)


def simulate(
    chooser: Auto, acceptance: float, plain: float, step: float, base: float, tokens: int, noise: float
) -> list:
    """Let a chooser decode `tokens` tokens of a machine with those costs; returns the lengths it chose."""
    chance = random.Random(0)
    lengths, made = [], 0
    while made < tokens:
        length = chooser.next()
        jitter = 1 + noise * chance.uniform(-1, 1)
        if length == 0:
            for _ in range(8):
                chooser.record(0, 0, 1, plain * jitter)
            made += 8
        else:
            accepted = 0
            while accepted < length and chance.random() < acceptance:
                accepted += 1
            chooser.record(length, accepted, accepted + 1, (base + length * step) * jitter)
            made += accepted + 1
        lengths.append(length)
    return lengths


COSTS = [
    # acceptance, plain step, draft step, target pass: a cheap good draft, a fair one, a dear one, a bad one
    (0.9, 1.0, 0.05, 1.05),
    (0.6, 1.0, 0.15, 1.1),
    (0.5, 1.0, 0.6, 1.0),
    (0.1, 1.0, 0.2, 1.1),
]


@pytest.mark.parametrize(("acceptance", "plain", "step", "base"), COSTS)
def test_auto_comes_within_a_tenth_of_the_best_length(acceptance, plain, step, base):
    speeds = {k: expected_speed(k, acceptance, plain, step, base) for k in range(AUTO_LONGEST + 1)}
    lengths = simulate(Auto(), acceptance, plain, step, base, 600, noise=0.1)
    settled = lengths[len(lengths) // 2 :]
    chosen = sorted(settled)[len(settled) // 2]
    assert speeds[chosen] >= 0.9 * max(speeds.values())


def test_auto_stops_drafting_when_it_does_not_pay_and_tries_again_later():
    lengths = simulate(Auto(), 0.1, 1.0, 0.2, 1.1, 600, noise=0.0)
    settled = lengths[len(lengths) // 2 :]
    assert settled.count(0) >= 0.6 * len(settled)
    assert any(length > 0 for length in settled)


def test_auto_follows_a_text_that_becomes_easy():
    chooser = Auto()
    simulate(chooser, 0.05, 1.0, 0.1, 1.05, 300, noise=0.05)
    later = simulate(chooser, 0.95, 1.0, 0.1, 1.05, 600, noise=0.05)
    assert later[-1] >= 5


def test_expected_tokens_use_the_running_acceptance():
    chooser = Auto()
    for _ in range(400):
        chooser.record(4, 2, 3, 1.0)  # two accepted, one tested and rejected: 2/3
    assert chooser.acceptance == pytest.approx(2 / 3, abs=0.01)
    assert chooser.tokens_per_second(4) == pytest.approx(sum((2 / 3) ** i for i in range(5)), rel=0.02)


SECONDS = tuple([1.0] + [1.0 + 0.1 * k for k in range(1, 9)])  # a plain step 1 s, a round 1 + 0.1 K


def test_a_measured_start_chooses_the_best_length_at_once():
    # At a = 0.5: K = 2 gives 1.75 / 1.2 = 1.458 tokens/s, K = 3 1.875 / 1.3 = 1.442, K = 1 1.5 / 1.1 = 1.364.
    assert Auto(Start(seconds=SECONDS, acceptance=0.5)).next() == 2
    # At a = 0 each round gives one token, so the plain step is the cheapest; pseudo-counts make it 1 / 18.
    assert Auto(Start(seconds=SECONDS, acceptance=0.0)).next() == 0
    assert Auto(Start(seconds=SECONDS, acceptance=1.0)).next() == 8


def test_a_start_without_acceptance_tries_a_length_first():
    chooser = Auto(Start(seconds=SECONDS, acceptance=None))
    for _ in range(2):
        assert chooser.next() == 4
        chooser.record(4, 0, 1, 1.4)
    assert chooser.next() == 1  # a = 1 / 4: 1.25 / 1.1 = 1.136 tokens/s, K = 2 1.3125 / 1.2 = 1.094, plain 1


def test_times_of_a_start_are_scaled_by_what_rounds_take_now():
    chooser = Auto(Start(seconds=SECONDS, acceptance=0.5))
    chooser.record(2, 1, 2, 2.4)  # twice the 1.2 s that were measured
    a = (0.5 * 16 * 63 / 64 + 1 + 1) / (16 * 63 / 64 + 2 + 2)
    assert chooser.acceptance == pytest.approx(a)
    assert chooser.tokens_per_second(1) == pytest.approx((1 + a) / (2 * 1.1))
    assert chooser.tokens_per_second(0) == pytest.approx(1 / 2)


def test_what_was_tried_often_enough_replaces_the_start():
    chooser = Auto(Start(seconds=SECONDS, acceptance=0.5))
    for _ in range(4):
        chooser.record(0, 0, 1, 0.5)  # plain steps are twice as fast as they were, so rounds shall be too
        chooser.record(2, 1, 2, 1.2)  # but are not
    assert chooser.tokens_per_second(0) == pytest.approx(1 / 0.5)
    assert chooser.tokens_per_second(2) == pytest.approx((1 + chooser.acceptance + chooser.acceptance**2) / 1.2)
    assert chooser.next() == 0


@pytest.mark.parametrize(("acceptance", "plain", "step", "base"), COSTS)
def test_a_wrong_acceptance_is_soon_corrected(acceptance, plain, step, base):
    seconds = tuple([plain] + [base + k * step for k in range(1, AUTO_LONGEST + 1)])
    speeds = {k: expected_speed(k, acceptance, plain, step, base) for k in range(AUTO_LONGEST + 1)}
    chooser = Auto(Start(seconds=seconds, acceptance=1 - acceptance))
    lengths = simulate(chooser, acceptance, plain, step, base, 600, noise=0.1)
    settled = lengths[len(lengths) // 2 :]
    assert speeds[sorted(settled)[len(settled) // 2]] >= 0.9 * max(speeds.values())


def test_fixed_is_fixed():
    chooser = make_draft_length(3)
    assert isinstance(chooser, Fixed)
    chooser.record(3, 0, 1, 100.0)
    assert chooser.next() == 3
    assert isinstance(make_draft_length("auto"), Auto)
