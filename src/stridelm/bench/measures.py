"""Computes figures from records. Pure functions: the same records always give the same figures."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from stridelm.bench.figures import Figures, SpeedUp, Spread
from stridelm.bench.records import PHASES, Answer, Quality, Record, Report
from stridelm.decode.cost import Cost
from stridelm.stats import path_in_words

_CONFIDENCE = 0.95
_Pair = tuple[Record, Record]
"""A baseline's answer and a subject's, to the same question in the same round."""


def measure(report: Report) -> list[Figures]:
    """The figures of every subject on every suite: suites in the order of the records, subjects in the report's."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    plain: dict[tuple[str, str, int], Record] = {}
    for record in report.records:
        groups[record.suite, record.subject].append(record)
        if record.subject == report.baseline:
            plain[_place(record)] = record
    suites = list(dict.fromkeys(suite for suite, _ in groups))
    subjects = [*report.subjects, *dict.fromkeys(subject for _, subject in groups)]
    place = {(suite, subject): (suites.index(suite), subjects.index(subject)) for suite, subject in groups}
    return [
        _figures(records, [(plain[_place(record)], record) for record in records if _place(record) in plain])
        for records in sorted(groups.values(), key=lambda records: place[records[0].suite, records[0].subject])
    ]


def spread(values: Iterable[float]) -> Spread | None:
    """The median with its quartiles and interval; None if there are no values."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return None
    # Quartiles need two values; with a single one, all three are equal to it.
    low, median, high = statistics.quantiles(ordered * (1 + (count == 1)), n=4, method="inclusive")
    first, coverage = _median_ranks(count)
    return Spread(median, ordered[first], ordered[count - 1 - first], (low, high), count, coverage)


def _median_ranks(count: int) -> tuple[int, float]:
    """How many of `count` ordered values may be left out at either end, and the probability that the true median lies
    between the others: each value is below it with probability one half."""
    left_out, outside = 0, 2 * 0.5**count
    while 2 * left_out + 2 < count:
        more = outside + 2 * math.comb(count, left_out + 1) * 0.5**count
        if more > 1 - _CONFIDENCE:
            break
        left_out, outside = left_out + 1, more
    return left_out, max(0.0, 1 - outside)


def gaps(answer: Answer) -> list[float]:
    """Seconds between one token and the next; 0 within a stride."""
    found: list[float] = []
    before: float | None = None
    for tokens, moment in zip(answer.stride_tokens, answer.stride_seconds, strict=True):
        if tokens:
            found += [] if before is None else [moment - before]
            found += [0.0] * (tokens - 1)
            before = moment
    return found


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which this share of the values lies, interpolated linearly; 0 if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    below, weight = divmod(share * (len(ordered) - 1), 1)
    upper = min(int(below) + 1, len(ordered) - 1)
    return ordered[int(below)] + weight * (ordered[upper] - ordered[int(below)])


def speed(answer: Answer) -> float | None:
    """Tokens per second."""
    return answer.count / answer.seconds if answer.count and answer.seconds > 0 else None


def decode_speed(answer: Answer) -> float | None:
    """Tokens per second after the first stride."""
    if len(answer.stride_tokens) < 2:
        return None
    seconds = answer.stride_seconds[-1] - answer.stride_seconds[0]
    return sum(answer.stride_tokens[1:]) / seconds if seconds > 0 else None


def speed_up(pairs: list[_Pair], by: Callable[[Answer], float | None]) -> SpeedUp | None:
    """How many times as fast the subject's answers are: the median of ratios, not the ratio of medians. By speed rather
    than by time: a text that differs may be longer or shorter."""
    ratios: list[float] = []
    compared: list[Quality] = []
    for plain, other in pairs:
        ours, theirs = by(plain.answer), by(other.answer)
        if ours and theirs:
            ratios.append(theirs / ours)
            compared.append(other.quality)
    found = spread(ratios)
    if found is None:
        return None
    same = {each.name: getattr(found, each.name) for each in fields(Spread)}
    return SpeedUp(**same, differs=_differs(compared), loops=any(quality.loops for quality in compared))


def _figures(records: list[Record], pairs: list[_Pair]) -> Figures:
    answers, qualities = [record.answer for record in records], [record.quality for record in records]
    reporting = [answer for answer in answers if answer.forwards]
    with_rows = [answer for answer in reporting if answer.rows is not None]
    every_gap = [gap for answer in answers for gap in gaps(answer)]
    nothing = Spread(0.0, 0.0, 0.0)
    return Figures(
        suite=records[0].suite,
        subject=records[0].subject,
        answers=len(records),
        first=spread(answer.first for answer in answers) or nothing,
        latency=spread(answer.seconds for answer in answers) or nothing,
        speed=spread(_known(map(speed, answers))) or nothing,
        speed_up=speed_up(pairs, speed),
        gap_p50=percentile(every_gap, 0.5),
        gap_p95=percentile(every_gap, 0.95),
        gap_p99=percentile(every_gap, 0.99),
        tokens_per_forward=_ratio(sum(answer.count for answer in reporting), _forwards(reporting)),
        rows_per_forward=_ratio(sum(1 + (answer.rows or 0) for answer in with_rows), _forwards(with_rows)),
        acceptance=_acceptance(answers),
        memory_peak=max((answer.memory_peak for answer in answers if answer.memory_peak is not None), default=None),
        phases=_phases(answers),
        identical=_mean(quality.identical for quality in qualities),
        departs_at=_median(quality.departs_at for quality in qualities if not quality.identical),
        agreement=_mean(quality.agreement for quality in qualities),
        log_likelihood=_mean(quality.log_likelihood for quality in qualities),
        repetition=statistics.fmean(quality.repetition for quality in qualities),
        loops=sum(quality.loops for quality in qualities),
        right=_mean(quality.right for quality in qualities),
        differs=_differs(qualities),
        path=_path(answers),
        decode_speed=spread(_known(map(decode_speed, answers))),
        decode_speed_up=speed_up(pairs, decode_speed),
    )


def _place(record: Record) -> tuple[str, str, int]:
    return record.suite, record.question, record.round


def _differs(qualities: list[Quality]) -> bool:
    """Whether any text differs. One that could not be compared counts as different."""
    return not all(quality.identical for quality in qualities)


def _acceptance(answers: list[Answer]) -> tuple[float, ...]:
    depths = max(len(answer.drafted_by_depth) for answer in answers)
    drafted = [sum(_at(answer.drafted_by_depth, depth) for answer in answers) for depth in range(depths)]
    accepted = [sum(_at(answer.accepted_by_depth, depth) for answer in answers) for depth in range(depths)]
    return tuple(_ratio(stood, of) or 0.0 for stood, of in zip(accepted, drafted, strict=True))


def _at(counts: tuple[int, ...], place: int) -> int:
    return counts[place] if place < len(counts) else 0


def _phases(answers: list[Answer]) -> dict[str, float]:
    reporting = [answer for answer in answers if answer.phases]
    seconds = sum(answer.seconds for answer in reporting)
    if not seconds:
        return {}
    return {name: sum(answer.phases.get(name, 0.0) for answer in reporting) / seconds for name in PHASES}


def _path(answers: list[Answer]) -> str | None:
    """What ran, from the forwards of all answers; a server may use several backends."""
    paths: list[str] = []
    for backend in dict.fromkeys(answer.backend for answer in answers):
        served = [answer for answer in answers if answer.backend == backend]
        if backend is not None:
            own = sum(answer.own_forwards or 0 for answer in served)
            paths.append(path_in_words(backend, _forwards(served), own, len(served)))
    return "; ".join(paths) or None


def _forwards(answers: list[Answer]) -> int:
    return sum(answer.forwards or 0 for answer in answers)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.fmean(known) if known else None


def _median(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.median(known) if known else None


@dataclass(frozen=True, slots=True)
class Theory:
    """The speed-up that several tokens per forward should give after the prompt is read, and the measured one."""

    tokens_per_forward: float
    rows_per_forward: float
    forward_cost: float
    """Cost of a forward of `rows_per_forward` rows, relative to one row."""
    expected: float
    """The speed-up if drafting cost nothing and masks no more than other rows: tokens per forward over its cost."""
    measured: SpeedUp

    @property
    def reached(self) -> float:
        """The measured speed-up as a share of the expected one."""
        return self.measured.median / self.expected


def theory(figures: Figures, cost: Cost) -> Theory | None:
    """Theory for one of our decoders, by the planner's cost of forwards on this machine; None if answers were too short
    to tell."""
    tokens, rows, measured = figures.tokens_per_forward, figures.rows_per_forward, figures.decode_speed_up
    if tokens is None or rows is None or measured is None:
        return None
    whole, part = int(rows), rows % 1
    forward_cost = ((1 - part) * cost(whole) + part * cost(whole + 1)) / cost(1)
    return Theory(tokens, rows, forward_cost, tokens / forward_cost, measured)
