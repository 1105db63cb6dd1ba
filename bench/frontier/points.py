"""Quality against speed: how accurately a task is done, and with how many tokens per forward, by each decoder.

The task is one that the model masters (`task.py`), so that what a decoder loses shows. A gated conversion's plain
answers are those of the model that was converted; a whole model that was tuned has its own.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.frontier.answering import Answered, Answering, EngineAnswering
from bench.frontier.task import MAX_TOKENS, Problem
from stridelm.api import LanguageModel
from stridelm.params import InputError
from stridelm.profile import changed_fields
from stridelm.settings import PLAIN, DecodeSettings

PUBLISHED = (
    {"name": "8B, ConfAdapt", "accuracy_change": -0.019, "tokens_per_forward": 3.3},
    {"name": "4B, ConfAdapt", "accuracy_change": -0.055, "tokens_per_forward": 3.1},
)
"""Points of arXiv 2602.06019, on GSM8K: changes as shares, against the same model one token at a time."""
_Z = 1.959963984540054
"""Of a 95 % interval."""

Progress = Callable[[dict[str, Any]], None]
"""Told of every point."""


@dataclass(frozen=True, slots=True)
class FrontierSettings:
    """Which points are measured, and how."""

    tolerances: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    """Of verified decoding."""
    thresholds: tuple[float, ...] = (0.99, 0.95, 0.9, 0.8, 0.7, 0.5)
    """Of ConfAdapt."""
    static: tuple[int, ...] = (2, 3, 4, 5, 6)
    """Tokens a pass."""
    max_tokens: int = MAX_TOKENS
    """Of an answer."""
    batch: int = 32
    """Answers at once, where the serving engine writes them."""

    def decoders(self, k: int) -> list[DecodeSettings]:
        """All points of a conversion whose masks were trained for `k` tokens a pass, plain and exact decoding first."""
        return [
            DecodeSettings(PLAIN),
            DecodeSettings("self"),
            *(DecodeSettings("adaptive", k_max=k, threshold=threshold) for threshold in self.thresholds),
            *(DecodeSettings("self", tolerance=tolerance) for tolerance in self.tolerances),
            *(DecodeSettings("static", k=each) for each in self.static if each <= k),
        ]


def frontier(
    conversions: Mapping[str, LanguageModel | Answering],
    problems: list[Problem],
    settings: FrontierSettings | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """All points of all conversions. The first is the one whose plain answers are the baseline."""
    if not conversions or not problems:
        raise InputError("a frontier needs at least one conversion and one problem")
    settings = settings or FrontierSettings()
    found: list[dict[str, Any]] = []
    for name, conversion in conversions.items():
        answering = EngineAnswering(conversion, settings.batch) if isinstance(conversion, LanguageModel) else conversion
        for point in points(name, answering, problems, settings):
            found.append(point)
            if progress is not None:
                progress(point)
    return joined(found, len(problems))


def joined(found: list[dict[str, Any]], problems: int) -> dict[str, Any]:
    """Points, perhaps measured apart, as the report holds them."""
    plain = next((point for point in found if point["decoder"] == PLAIN), None)
    fields = ("conversion", "accuracy", "low", "high")
    return {
        "points": found,
        "published": [dict(each) for each in PUBLISHED],
        "baseline": {"problems": problems} | ({} if plain is None else {name: plain[name] for name in fields}),
    }


def points(
    conversion: str,
    answering: Answering,
    problems: list[Problem],
    settings: FrontierSettings,
    done: Collection[str] = (),
) -> Iterator[dict[str, Any]]:
    """Point by point, plain decoding first: others are held against it. `done`: the keys of points to leave out."""
    if not answering.k:
        raise InputError(f"{conversion} has no masks: give its adapter, or a model that was converted in full")
    prompts = [problem.prompt for problem in problems]
    plain: list[Answered] = []
    for decoder in settings.decoders(answering.k):
        if plain and key(conversion, decoder) in done:
            continue
        started = time.perf_counter()
        answers = answering(prompts, decoder, settings.max_tokens)
        seconds = time.perf_counter() - started
        plain = plain or answers
        if key(conversion, decoder) not in done:
            yield _point(conversion, answering, decoder, problems, plain, answers, seconds)


def key(conversion: str, decoder: DecodeSettings) -> str:
    """Names a point."""
    return f"{conversion}: {decoder.decoder} {_setting(decoder)}".rstrip()


def _setting(decoder: DecodeSettings) -> str:
    """As in `threshold 0.9`."""
    changed = changed_fields(decoder)
    return " ".join(f"{name} {changed[name]}" for name in ("tolerance", "threshold", "k") if name in changed)


def _point(
    conversion: str,
    answering: Answering,
    decoder: DecodeSettings,
    problems: list[Problem],
    plain: list[Answered],
    answers: list[Answered],
    seconds: float,
) -> dict[str, Any]:
    rights = [problem.is_right(answer.text) for problem, answer in zip(problems, answers, strict=True)]
    plain_rights = [problem.is_right(answer.text) for problem, answer in zip(problems, plain, strict=True)]
    low, high = wilson(sum(rights), len(rights))
    change, change_low, change_high = paired_change(plain_rights, rights)
    tokens = sum(len(answer.tokens) for answer in answers)
    by_steps = {
        steps: [right for problem, right in zip(problems, rights, strict=True) if problem.steps == steps]
        for steps in sorted({problem.steps for problem in problems})
    }
    same = sum(one.tokens == other.tokens for one, other in zip(plain, answers, strict=True))
    return {
        "key": key(conversion, decoder),
        "conversion": conversion,
        "decoder": decoder.decoder,
        "setting": _setting(decoder),
        "exact": decoder.decoder in (PLAIN, "self") and not decoder.tolerance and answering.is_exact,
        "accuracy": round(sum(rights) / len(rights), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "change": round(100 * change, 2),
        "change_low": round(100 * change_low, 2),
        "change_high": round(100 * change_high, 2),
        "tokens_per_forward": round(tokens / sum(answer.forwards for answer in answers), 4),
        "tokens_per_second": round(tokens / seconds, 1),
        "identical": round(same / len(answers), 4),
        "tokens": tokens,
        "by_steps": {str(steps): [sum(each), len(each)] for steps, each in by_steps.items()},
    }


def wilson(right: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share, Wilson's."""
    share, spread = right / of, _Z**2 / of
    middle = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def paired_change(before: list[bool], after: list[bool]) -> tuple[float, float, float]:
    """The change of a share on the same problems, and its 95 % interval: only those that came out otherwise count."""
    of = len(before)
    won = sum(new and not old for old, new in zip(before, after, strict=True))
    lost = sum(old and not new for old, new in zip(before, after, strict=True))
    change = (won - lost) / of
    half = _Z * math.sqrt(max(0.0, won + lost - (won - lost) ** 2 / of)) / of
    return change, change - half, change + half
