"""The draft length: `auto` finds what pays, on costs and acceptances that are known here and not to it."""

import random

import pytest

from diversed_mlx.draft_length import Auto, Fixed, make_draft_length


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
    speeds = {k: expected_speed(k, acceptance, plain, step, base) for k in range(Auto.LONGEST + 1)}
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


def test_fixed_is_fixed():
    chooser = make_draft_length(3)
    assert isinstance(chooser, Fixed)
    chooser.record(3, 0, 1, 100.0)
    assert chooser.next() == 3
    assert isinstance(make_draft_length("auto"), Auto)
