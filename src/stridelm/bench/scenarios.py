"""Figures of the suites `agent` and `voice`, by subject: pure functions of a report's records."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from stridelm.bench.records import Answer, Record
from stridelm.bench.suites.agent import chain_of, parse_call

BUDGET = 3.0
"""Seconds that a user is assumed to wait for a call."""
FIRST_TOKENS = 3
"""About two words: enough for a voice assistant to start speaking."""
PROMPT, PATIENT = 0.5, 0.8
"""Seconds after which a pause is noticed, and after which it disturbs."""


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """Medians over chains and rounds, unless stated otherwise."""

    calls: int
    """Number of calls over all chains and rounds."""
    parsed: int
    """Number of replies that could be parsed as a call."""
    right: int
    """Number of replies that were the expected call."""
    seconds: float
    """Time of a whole chain."""
    speed_up: float | None
    """Speed-up of a whole chain over the baseline's in the same round; None without the baseline."""
    reasoning_tokens: float
    """Number of tokens that could be written before a call within the budget: the median over calls."""


@dataclass(frozen=True, slots=True)
class VoiceFigures:
    replies: int
    first_words: float
    """Seconds until `FIRST_TOKENS` tokens were there: the median over replies."""
    prompt: float
    """The share of replies whose first words came within `PROMPT` seconds."""
    patient: float
    """The same within `PATIENT` seconds."""


def agent_figures(records: Iterable[Record], baseline: str) -> dict[str, AgentFigures]:
    by_subject = _by_subject(records, "agent")
    seconds = {subject: _chain_seconds(own) for subject, own in by_subject.items()}
    plain = seconds.get(baseline, {})
    figures: dict[str, AgentFigures] = {}
    for subject, own in by_subject.items():
        ratios = [plain[key] / chain for key, chain in seconds[subject].items() if key in plain]
        figures[subject] = AgentFigures(
            calls=len(own),
            parsed=sum(parse_call(record.answer.text) is not None for record in own),
            right=sum(record.quality.right is True for record in own),
            seconds=statistics.median(seconds[subject].values()),
            speed_up=statistics.median(ratios) if ratios else None,
            reasoning_tokens=statistics.median(reasoning_tokens(record.answer) for record in own),
        )
    return figures


def voice_figures(records: Iterable[Record]) -> dict[str, VoiceFigures]:
    figures: dict[str, VoiceFigures] = {}
    for subject, own in _by_subject(records, "voice").items():
        waits = [first_words(record.answer) for record in own]
        figures[subject] = VoiceFigures(
            replies=len(own),
            first_words=statistics.median(waits),
            prompt=sum(wait <= PROMPT for wait in waits) / len(waits),
            patient=sum(wait <= PATIENT for wait in waits) / len(waits),
        )
    return figures


def reasoning_tokens(answer: Answer, budget: float = BUDGET) -> float:
    """How many reasoning tokens would fit into the budget besides this answer, at the speed of this answer."""
    return max(0.0, budget - answer.seconds) * _tokens_per_second(answer)


def first_words(answer: Answer) -> float:
    """Seconds until the first words could be spoken; for a shorter answer, until it was complete."""
    count = 0
    for tokens, seconds in zip(answer.stride_tokens, answer.stride_seconds, strict=True):
        count += tokens
        if count >= FIRST_TOKENS:
            return seconds
    return answer.seconds


def _tokens_per_second(answer: Answer) -> float:
    """Decoding speed, without the time to the first stride, which is that of reading the prompt. For an answer of one
    stride only the whole time is known."""
    if len(answer.stride_seconds) > 1 and answer.stride_seconds[-1] > answer.first:
        return sum(answer.stride_tokens[1:]) / (answer.stride_seconds[-1] - answer.first)
    return answer.count / answer.seconds if answer.seconds else 0.0


def _by_subject(records: Iterable[Record], suite: str) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.suite == suite:
            found[record.subject].append(record)
    return found


def _chain_seconds(records: Iterable[Record]) -> dict[tuple[str, int], float]:
    """Seconds of each chain, by chain and round."""
    seconds: dict[tuple[str, int], float] = defaultdict(float)
    for record in records:
        seconds[chain_of(record.question), record.round] += record.answer.seconds
    return seconds
