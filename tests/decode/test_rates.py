"""What the planner steers by: the clock that sets the cost curve right, and whether drafters pay."""

import pytest

from stridelm.decode.rates import Clock, DepthRates, Use


def set_clock(clock: Clock, seconds: float = 1.0) -> None:
    while clock.wants_plain:
        clock.took_plain(seconds)


def test_a_clock_learns_what_rows_cost_beyond_the_curve() -> None:
    clock = Clock(plain=1.0)
    set_clock(clock, 1.2)
    for _ in range(200):
        clock.took(beyond=0.5, seconds=1.2 + 1.5 * 0.5)
    assert clock.plain == pytest.approx(1.2)
    assert clock.scale == pytest.approx(1.5, rel=0.02)
    assert clock.seconds(1.0) == pytest.approx(2.7, rel=0.02)


def test_a_held_up_step_hardly_moves_the_clock() -> None:
    clock = Clock(plain=1.0)
    set_clock(clock)
    clock.took_plain(100.0)
    clock.took(beyond=0.5, seconds=100.0)
    assert clock.plain == 1.0
    assert clock.scale < 1.5


def test_a_clock_is_never_far_off_the_curve() -> None:
    clock = Clock(plain=1.0)
    set_clock(clock, 50.0)
    for _ in range(500):
        clock.took(beyond=0.5, seconds=50.0)
    assert clock.plain <= 2 and clock.scale <= 2


def test_a_clock_wants_to_be_set_again() -> None:
    clock = Clock(plain=1.0)
    assert clock.wants_plain
    set_clock(clock)
    steps = 0
    while not clock.wants_plain:
        clock.took(beyond=0.5, seconds=1.5)
        steps += 1
    assert 10 < steps < 1000


def test_a_quick_drafter_that_brought_nothing_is_still_asked_and_a_slow_one_is_not() -> None:
    def times_asked(seconds: float) -> int:
        use, count = Use(), 0
        for _ in range(50):
            if use.is_due(200.0):
                count += 1
                use.asked(seconds)
                use.brought(0)
        return count

    assert times_asked(1e-5) == 50
    assert times_asked(1e-3) < 30


def test_a_new_text_has_the_benefit_of_the_doubt() -> None:
    rates = DepthRates(2)
    for _ in range(200):
        rates.observe(0, stood=False)
    assert rates.values()[0] < 0.2
    assert rates.for_new_text().values()[0] >= 0.6
    for _ in range(200):
        rates.observe(0, stood=True)
    assert rates.for_new_text().values()[0] > 0.72
