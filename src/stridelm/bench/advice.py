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
    gains = {name: _gain(speeds, name, report.baseline) for name in sorted(names)}
    best = max(gains, key=lambda name: gains[name])
    if best == default or not _is_clearly_faster(speeds, best, default):
        best = default
    others = ", ".join(f"{name} {gain:.2f}x" for name, gain in gains.items() if name not in (best, report.baseline))
    if best == report.baseline:
        return f"On this machine set --decoder {best}: nothing was clearly faster than one token at a time ({others})."
    doubt = "" if _is_clearly_faster(speeds, best, report.baseline) else ", which is no clear difference"
    fact = f"{gains[best]:.2f}x as fast as one token at a time{doubt} ({_by_suite(speeds, best, report.baseline)})"
    if best != default:
        return f"On this machine set --decoder {best}: it was {fact}, {default} {gains[default]:.2f}x."
    return f"On this machine leave --decoder at {best}: it was {fact}, and no other exact decoder was clearly faster."


def _by_suite(speeds: _Speeds, name: str, over: str) -> str:
    """On which suite it gained least, and on which most."""
    gains = {
        suite: _gain({place: of for place, of in speeds.items() if place[0] == suite}, name, over)
        for suite in dict.fromkeys(suite for suite, _, _ in speeds)
    }
    extremes = dict.fromkeys(choose(gains, key=lambda suite: gains[suite]) for choose in (min, max))
    return ", ".join(f"{suite} {gains[suite]:.2f}x" for suite in extremes)


def _speeds(report: Report) -> _Speeds:
    asked = {record.subject for record in report.records}
    exact = {report.baseline} | {
        name
        for name, about in report.subjects.items()
        if about.get("library") == "stridelm" and about.get("exact") and name in asked
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
