"""What the planner steers by: the clock that sets the cost curve right, the referee, and drafters at rest."""

import pytest

from stridelm.decode.rates import Clock, DepthRates, Referee, Use


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


def held(referee: Referee) -> int:
    """How many steps are taken plainly from now on."""
    steps = 0
    while referee.takes_one():
        steps += 1
    return steps


def lose(referee: Referee) -> int:
    """Planned steps that bring one token in the time of two, until the referee stops them."""
    steps = 0
    while not (steps and referee.takes_one()):
        referee.stepped(tokens=1, plain=2.0)
        steps += 1
    return steps


def test_a_text_that_loses_is_written_plainly_longer_each_time() -> None:
    referee = Referee()
    first_trial, first_hold = lose(referee), held(referee)
    second_trial, second_hold = lose(referee), held(referee)
    assert second_trial < first_trial <= 8, "the first trial has more credit, and none has much"
    assert second_hold > 1.5 * first_hold > 0


def test_a_text_that_gains_goes_on() -> None:
    referee = Referee()
    for step in range(1000):
        assert not referee.takes_one()
        referee.stepped(tokens=1 + 2 * (step % 2), plain=1.8)


def test_gains_of_long_ago_do_not_hide_that_a_text_has_become_hard() -> None:
    referee = Referee()
    for _ in range(1000):
        referee.stepped(tokens=4, plain=2.0)
    assert lose(referee) <= 10


def test_at_rest_only_quick_drafters_are_asked() -> None:
    quick, slow = Use(), Use()
    quick.asked(1e-5)
    slow.asked(1e-3)
    rate = 200.0
    assert quick.is_due(rate, is_resting=True)
    assert not slow.is_due(rate, is_resting=True)
    assert slow.is_due(rate, is_resting=False)


def test_a_quick_drafter_that_brought_nothing_is_still_asked_and_a_slow_one_is_not() -> None:
    def times_asked(seconds: float) -> int:
        use, count = Use(), 0
        for _ in range(50):
            if use.is_due(200.0, is_resting=False):
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
