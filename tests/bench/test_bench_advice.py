"""The sentence at the end of a bench: what to set on this machine."""

from stridelm.bench.advice import advice
from stridelm.bench.records import Answer, Quality, Record, Report

LOOPS = Quality(identical=True, loops=True)
SAME = Quality(identical=True)


def report(speeds: dict[str, list[float]], **changed: dict[str, object]) -> Report:
    """A question for each place of the lists, by turns in the suites `a` and `b`; `changed`: what a subject is."""
    known = {name: {"library": "stridelm", "exact": True} | changed.get(name, {}) for name in speeds}
    records = [
        Record("ab"[place % 2], str(place), name, 1, answer(speed), SAME)
        for name, of in speeds.items()
        for place, speed in enumerate(of)
    ]
    return Report({}, {}, "autoregressive", known, records)


def answer(speed: float) -> Answer:
    return Answer((1,) * 12, "text", (12,), (12 / speed,), 12 / speed)


PLAIN = [100.0] * 8


def test_auto_stays_unless_another_is_clearly_faster() -> None:
    auto = [150.0, 120.0] * 4
    said = advice(report({"autoregressive": PLAIN, "auto": auto, "ngram": [160.0, 100.0] * 4}))
    assert said == (
        "On this machine leave --decoder at auto: it was 1.35x as fast as one token at a time (b 1.20x, a 1.50x), and "
        "no other exact decoder was clearly faster."
    )
    said = advice(report({"autoregressive": PLAIN, "auto": auto, "ngram": [160.0, 140.0] * 4}))
    assert said == (
        "On this machine set --decoder ngram: it was 1.50x as fast as one token at a time (b 1.40x, a 1.60x), "
        "auto 1.35x."
    )


def test_where_nothing_pays_it_says_so() -> None:
    said = advice(report({"autoregressive": PLAIN, "auto": [90.0, 80.0] * 4}))
    assert said == (
        "On this machine set --decoder autoregressive: nothing was clearly faster than one token at a time "
        "(auto 0.85x)."
    )
    assert advice(report({"autoregressive": PLAIN, "ngram": [101.0, 99.0] * 4})).endswith("time (ngram 1.00x).")


def test_a_gain_that_may_be_chance_is_called_so() -> None:
    said = advice(report({"autoregressive": PLAIN, "auto": [110.0, 95.0] * 4}))
    assert "1.02x as fast as one token at a time, which is no clear difference (b 0.95x, a 1.10x)" in said


def test_what_is_not_exact_not_ours_or_failed_is_not_advised() -> None:
    fast = [300.0] * 8
    subjects = {"autoregressive": PLAIN, "auto": [120.0] * 8, "static": fast, "transformers": fast, "self": []}
    said = advice(report(subjects, static={"exact": False}, transformers={"library": "transformers"}))
    assert said.startswith("On this machine leave --decoder at auto: it was 1.20x")


def test_loops_count_for_nothing() -> None:
    made = report({"autoregressive": PLAIN, "auto": [120.0] * 8, "ngram": [300.0] * 6 + [110.0] * 2})
    for place, each in enumerate(made.records):
        if int(each.question) < 6:
            made.records[place] = Record(each.suite, each.question, each.subject, 1, each.answer, LOOPS)
    assert advice(made).startswith("On this machine leave --decoder at auto: it was 1.20x")
    made.records = [Record(each.suite, each.question, each.subject, 1, each.answer, LOOPS) for each in made.records]
    assert advice(made).startswith("Nothing to advise")
