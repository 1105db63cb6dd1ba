"""From records to figures: hand-made records, and answers that can be worked out by hand."""

import json
import random
import statistics
from dataclasses import asdict, replace
from typing import Any

import pytest

from stridelm.bench.figures import Figures, SpeedUp
from stridelm.bench.measures import decode_speed, gaps, measure, percentile, speed, spread, theory
from stridelm.bench.records import PHASES, Answer, Quality, Record, Report
from stridelm.decode.cost import Cost

SAME = Quality(identical=True, agreement=1.0, log_likelihood=-1.0)


def answer(seconds: float, strides: tuple[int, ...] = (1, 1, 1, 1), first: float = 1.0, **more: Any) -> Answer:
    """Strides at equal distances, the last one when the answer is whole."""
    apart = (seconds - first) / max(1, len(strides) - 1)
    moments = tuple(first + apart * number for number in range(len(strides)))
    return Answer(tuple(range(sum(strides))), "text", strides, moments, seconds, forwards=len(strides), **more)


def record(
    subject: str,
    given: Answer,
    quality: Quality = SAME,
    *,
    question: str = "one",
    number: int = 1,
    suite: str = "suite",
) -> Record:
    return Record(suite, question, subject, number, given, quality)


def figures(*records: Record) -> dict[str, Figures]:
    report = Report({}, {}, "plain", {}, list(records))
    return {f"{each.suite} {each.subject}": each for each in measure(report)}


def one(*records: Record) -> Figures:
    """Of the subject that is not the baseline."""
    return figures(*records)["suite auto"]


# Spread


def test_median_quartiles_interval() -> None:
    found = spread([5, 1, 4, 2, 3])
    assert found is not None
    assert (found.median, found.quartiles, found.count) == (3, (2, 4), 5)
    assert (found.low, found.high, found.coverage) == (1, 5, 1 - 2 / 2**5), "not sure enough, and it says so"
    alone = spread([7.0])
    assert alone is not None
    assert (alone.median, alone.low, alone.high, alone.quartiles, alone.coverage) == (7, 7, 7, (7, 7), 0)
    assert spread([]) is None


@pytest.mark.parametrize(("count", "rank"), [(6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (25, 8), (100, 40)])
def test_the_interval_is_that_of_the_tables(count: int, rank: int) -> None:
    """The ranks that tables of the sign test give for 95 %."""
    found = spread(range(1, count + 1))
    assert found is not None
    assert (found.low, found.high) == (rank, count + 1 - rank)
    assert 0.95 <= found.coverage < 1


def test_the_interval_holds_what_it_promises() -> None:
    dice, held = random.Random(0), 0
    for _ in range(2000):
        found = spread(dice.expovariate(1.0) for _ in range(15))
        assert found is not None
        held += found.low <= 0.6931471805599453 <= found.high
    assert held / 2000 > 0.95


def test_percentiles() -> None:
    values = [float(value) for value in range(1, 102)]
    assert [percentile(values, share) for share in (0, 0.5, 0.95, 0.99, 1)] == [1, 51, 96, 100, 101]
    assert percentile([1, 2], 0.5) == 1.5 and percentile([3], 0.99) == 3 and percentile([], 0.5) == 0
    drawn = [random.Random(1).random() for _ in range(77)]
    assert percentile(drawn, 0.25) == pytest.approx(statistics.quantiles(drawn, n=4, method="inclusive")[0])


# One answer


def test_gaps_within_a_stride_are_none() -> None:
    found = gaps(Answer((), "", (2, 3, 1), (1.0, 3.0, 3.5), 3.5))
    assert found == [0, 2.0, 0, 0, 0.5]
    assert len(found) == 5, "one less than there are tokens"
    assert gaps(Answer((), "", (1, 0, 1), (1.0, 2.0, 4.0), 4.0)) == [3.0], "a chunk without tokens ends no gap"
    assert gaps(Answer((), "", (), (), 1.0)) == []


def test_speeds() -> None:
    given = answer(5.0, (1, 2, 2), first=1.0)
    assert (speed(given), decode_speed(given)) == (1.0, 1.0)
    given = answer(4.0, (4, 2), first=3.0)
    assert (speed(given), decode_speed(given)) == (1.5, 2.0)
    assert decode_speed(answer(3.0, (4,))) is None, "there is nothing behind the first stride"
    assert speed(Answer((), "", (), (), 1.0)) is None


# Speed-ups


def test_a_speed_up_is_of_the_same_question_and_round() -> None:
    found = one(
        *(
            record("plain", answer(seconds), question=question, number=number)
            for question, number, seconds in (("one", 1, 4), ("one", 2, 8), ("two", 1, 12))
        ),
        *(
            record("auto", answer(seconds), question=question, number=number)
            for question, number, seconds in (("two", 1, 4), ("one", 2, 4), ("one", 1, 4), ("three", 1, 1))
        ),
    )
    assert found.speed_up is not None
    assert (found.speed_up.low, found.speed_up.median, found.speed_up.high) == (1, 2, 3)
    assert found.speed_up.count == 3, "the fourth has nothing beside it"
    assert found.answers == 4


def test_a_speed_up_is_by_time_per_token() -> None:
    found = one(record("plain", answer(4.0, (1,) * 4)), record("auto", answer(4.0, (4, 4)), Quality(identical=False)))
    assert found.speed_up is not None and found.speed_up.median == 2


def test_reading_the_prompt_is_left_out_of_decode_speed() -> None:
    found = one(
        record("plain", answer(14.0, (1,) * 5, first=10.0)), record("auto", answer(12.0, (1, 2, 2), first=10.0))
    )
    assert found.speed_up is not None and found.decode_speed_up is not None and found.decode_speed is not None
    assert found.speed_up.median == pytest.approx(14 / 12)
    assert found.decode_speed_up.median == found.decode_speed.median == 2


def test_the_baseline_is_one_by_itself() -> None:
    found = figures(record("plain", answer(4.0)))["suite plain"]
    assert found.speed_up is not None
    assert (found.speed_up.median, found.speed_up.differs, found.differs) == (1, False, False)


def test_no_speed_up_without_a_baseline() -> None:
    found = one(record("auto", answer(4.0)))
    assert found.speed_up is None and found.decode_speed_up is None
    empty = one(record("plain", Answer((), "", (), (), 1.0)), record("auto", answer(4.0)))
    assert empty.speed_up is None


@pytest.mark.parametrize(
    ("quality", "differs", "loops"),
    [
        (SAME, False, False),
        (replace(SAME, loops=True), False, True),
        (Quality(identical=False, departs_at=2), True, False),
        (Quality(identical=False, loops=True), True, True),
        (Quality(), True, False),
    ],
)
def test_a_speed_up_never_hides_what_became_of_the_text(quality: Quality, differs: bool, loops: bool) -> None:
    found = one(
        *(record("plain", answer(4.0), number=number) for number in (1, 2)),
        record("auto", answer(2.0)),
        record("auto", answer(2.0), quality, number=2),
    )
    for figure in (found.speed_up, found.decode_speed_up):
        assert isinstance(figure, SpeedUp)
        assert (figure.differs, figure.loops) == (differs, loops)
        told = json.loads(json.dumps(asdict(figure)))
        assert (told["differs"], told["loops"]) == (differs, loops), "and in JSON"
    assert (found.differs, found.loops) == (differs, int(loops))


# All figures


def test_every_suite_and_subject() -> None:
    found = figures(
        record("plain", answer(4.0)),
        record("auto", answer(2.0)),
        record("plain", answer(4.0), suite="maths"),
        record("auto", answer(1.0, first=0.5), suite="maths"),
    )
    assert list(found) == ["suite plain", "suite auto", "maths plain", "maths auto"]
    speed_ups = [each.speed_up.median for each in found.values() if each.speed_up]
    assert speed_ups == [1, 2, 1, 4]


def test_what_is_summed_and_what_is_averaged() -> None:
    first = answer(
        4.0, (2, 2), rows=9, drafted_by_depth=(2, 1), accepted_by_depth=(2, 0), memory_peak=100,
        phases=dict.fromkeys(PHASES, 0.5) | {"forward": 1.5},
    )  # fmt: skip
    second = answer(
        1.0, (1, 1, 1, 1), first=0.25, rows=3, drafted_by_depth=(2,), accepted_by_depth=(0,), memory_peak=300,
        phases={"forward": 1.0},
    )  # fmt: skip
    found = one(
        record("auto", first, Quality(True, None, 1.0, -1.0, 0.1, right=True)),
        record("auto", second, Quality(False, 2, 0.5, -2.0, 0.3, right=False), question="two"),
        record("auto", second, Quality(False, 7, 0.75, repetition=0.2, loops=True), question="three"),
    )
    assert found.tokens_per_forward == 12 / 10
    assert found.rows_per_forward == (10 + 4 + 4) / 10, "plain decoding has one row a forward"
    assert found.acceptance == (2 / 6, 0.0)
    assert found.memory_peak == 300
    assert found.phases == pytest.approx(dict.fromkeys(PHASES, 0.5 / 6) | {"forward": 3.5 / 6})
    assert (found.identical, found.departs_at, found.agreement) == (1 / 3, 4.5, 0.75)
    assert (found.log_likelihood, found.right, found.loops) == (-1.5, 0.5, 1)
    assert found.repetition == pytest.approx(0.2)
    assert (found.first.median, found.latency.median, found.speed.median) == (0.25, 1.0, 4.0)
    assert (found.gap_p50, found.gap_p99) == (0.25, pytest.approx(percentile([0, 3, 0, *[0.25] * 6], 0.99)))


def test_a_subject_that_tells_little() -> None:
    given = Answer((), "Hi there", (1, 1), (0.5, 1.0), 1.0)
    found = one(record("plain", answer(4.0)), record("auto", given, Quality()))
    assert found.speed_up is not None and found.speed_up.median == 2
    assert found.tokens_per_forward is found.rows_per_forward is found.memory_peak is None
    assert (found.phases, found.acceptance, found.identical, found.right) == ({}, (), None, None)
    assert theory(found, COST) is None


# Theory

COST = Cost((1, 2, 4), (1.0, 1.2, 2.0))


def test_theory() -> None:
    found = one(
        record("plain", answer(7.0, (1,) * 7)),
        record("auto", answer(4.0, (1, 2, 2, 2), rows=9)),
    )
    expected = theory(found, COST)
    assert expected is not None
    assert (expected.tokens_per_forward, expected.rows_per_forward) == (7 / 4, 2.5)
    assert expected.forward_cost == pytest.approx((1.2 + 1.6) / 2)
    assert expected.expected == pytest.approx(7 / 4 / 1.4)
    assert expected.measured.median == 2
    assert expected.reached == pytest.approx(2 / 1.25)


def test_theory_of_plain_decoding() -> None:
    found = theory(figures(record("plain", answer(4.0, rows=3)))["suite plain"], COST)
    assert found is not None and (found.expected, found.reached) == (1, 1)
