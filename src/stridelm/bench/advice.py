"""What to set on this machine, in one sentence, from a report's answers."""

import statistics
from collections import defaultdict

from stridelm.bench.measures import speed, spread
from stridelm.bench.records import Report

_DEFAULT = "auto"
_Speeds = dict[tuple[str, str, int], dict[str, float]]
"""Suite, question and round -> subject -> tokens per second."""


def advice(report: Report) -> str:
    """Names the decoder to set: another one than the default only if it was clearly faster, question for question. Only
    exact decoders of ours are considered, and no answers that end in a loop, which any decoder drafts well."""
    speeds = _speeds(report)
    names = {name for of in speeds.values() for name in of}
    if report.baseline not in names or len(names) == 1:
        return "Nothing to advise: no question has answers of two exact decoders that do not end in a loop."
    default = _DEFAULT if _DEFAULT in names else report.baseline
    best = max(sorted(names), key=lambda name: _gain(speeds, name, report.baseline))
    if best != default and _is_clearly_faster(speeds, best, default):
        gains = [f"{name} {_gain(speeds, name, report.baseline):.2f}x" for name in (best, default)]
        return f"On this machine set --decoder {best}: over one token at a time, {' and '.join(gains)} as fast."
    by_suite = {
        suite: _gain({place: of for place, of in speeds.items() if place[0] == suite}, default, report.baseline)
        for suite in dict.fromkeys(suite for suite, _, _ in speeds)
    }
    least, most = (choose(by_suite, key=lambda suite: by_suite[suite]) for choose in (min, max))
    return (
        f"On this machine leave --decoder at {default}: {_gain(speeds, default, report.baseline):.2f}x as fast as one "
        f"token at a time ({least} {by_suite[least]:.2f}x, {most} {by_suite[most]:.2f}x), and no other exact decoder "
        "was clearly faster."
    )


def _speeds(report: Report) -> _Speeds:
    exact = {report.baseline} | {
        name for name, about in report.subjects.items() if about.get("library") == "stridelm" and about.get("exact")
    }
    speeds: _Speeds = defaultdict(dict)
    for record in report.records:
        found = speed(record.answer)
        if record.subject in exact and found is not None and not record.quality.loops:
            speeds[record.suite, record.question, record.round][record.subject] = found
    return {place: of for place, of in speeds.items() if of.keys() == exact}


def _gain(speeds: _Speeds, name: str, over: str) -> float:
    return statistics.median(of[name] / of[over] for of in speeds.values())


def _is_clearly_faster(speeds: _Speeds, name: str, than: str) -> bool:
    """Whether the whole interval of its gain is above 1."""
    found = spread(of[name] / of[than] for of in speeds.values())
    return found is not None and found.low > 1
