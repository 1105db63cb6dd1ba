"""The number of drafts settles where most tokens per second are made, and nowhere below plain decoding."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stridelm.decode.chain_length import ChainLength, TextOdds
from stridelm.decode.draft_prior import draft_priors

FREE = {0: 1.0, 2: 1.09, 4: 1.12, 8: 1.25, 12: 1.35}
"""As on a GPU with one text."""
DEAR = {0: 1.0, 2: 1.6, 4: 2.4, 8: 5.0, 12: 9.0}
"""As with many."""


@dataclass
class Writer:
    """Writes texts, whose drafts stand as often as told, in steps as long as chosen."""

    length: ChainLength
    texts: int = 1
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    tokens: int = 0
    seconds: float = 0.0
    chosen: list[int] = field(default_factory=list)
    odds: list[TextOdds] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """New texts."""
        self.odds = [TextOdds(draft_priors()[0]) for _ in range(self.texts)]
        self.length.begin_texts()

    def write(self, steps: int, rates: list[float]) -> None:
        for _ in range(steps):
            drafts = self.length.choose(self.odds)
            self.chosen.append(drafts)
            self.seconds += self.length.seconds[drafts]
            for odds in self.odds:
                emitted = 1
                while emitted <= drafts and self.dice.random() < rates[emitted - 1]:
                    emitted += 1
                self.tokens += emitted
                odds.observe(drafts, emitted)

    @property
    def gain(self) -> float:
        """Over plain decoding."""
        return self.tokens / self.texts / self.seconds


def pace(drafts: int, rates: list[float], seconds: dict[int, float]) -> float:
    tokens = path = 1.0
    for rate in rates[:drafts]:
        path *= rate
        tokens += path
    return tokens / seconds[drafts]


@pytest.mark.parametrize("seconds", [FREE, DEAR])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 0.7, 0.9, 0.98])
@pytest.mark.parametrize("fades", [1.0, 0.9])
def test_it_settles_on_the_best_length(seconds: dict[int, float], rate: float, fades: float) -> None:
    rates = [rate * fades**depth for depth in range(12)]
    best = max(pace(drafts, rates, seconds) for drafts in seconds)
    writer = Writer(ChainLength(seconds), texts=4)
    writer.write(1000, rates)
    late = writer.chosen[200:]
    average = sum(pace(drafts, rates, seconds) for drafts in late) / len(late)
    assert average > 0.94 * best
    assert writer.gain > 0.93 * best


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 0.95), min_size=12, max_size=12),
    st.tuples(*(st.floats(0, 0.4) for _ in range(4))),
    st.sampled_from([1, 4, 32]),
    st.integers(0, 100),
)
def test_it_is_never_clearly_slower_than_plain(
    rates: list[float], more: tuple[float, ...], texts: int, seed: int
) -> None:
    """Whatever the text and however dear the steps."""
    seconds = {0: 1.0}
    for drafts, beyond in zip((2, 4, 8, 12), more, strict=True):
        seconds[drafts] = max(seconds.values()) + drafts * beyond
    writer = Writer(ChainLength(seconds), texts, random.Random(seed))
    writer.write(400, rates)
    started = writer.seconds, writer.tokens
    writer.write(2000, rates)
    gain = (writer.tokens - started[1]) / texts / (writer.seconds - started[0])
    assert gain > 0.93


@pytest.mark.parametrize("seconds", [FREE, DEAR])
def test_a_text_without_acceptance_is_written_plainly(seconds: dict[int, float]) -> None:
    writer = Writer(ChainLength(seconds))
    writer.write(40, [0.0] * 12)
    assert writer.length.drafts == 0
    writer.write(2000, [0.0] * 12)
    assert writer.gain > 0.95


def test_it_takes_notice_when_a_text_becomes_hard() -> None:
    writer = Writer(ChainLength(FREE))
    writer.write(1000, [0.9] * 12)
    assert writer.length.drafts >= 8
    writer.write(150, [0.0] * 12)
    assert writer.length.drafts == 0


@pytest.mark.parametrize(("seconds", "steps"), [(FREE, 200), (DEAR, 12000)])
def test_it_gets_back_when_a_text_becomes_easy(seconds: dict[int, float], steps: int) -> None:
    writer = Writer(ChainLength(seconds), texts=8)
    writer.write(100, [0.0] * 12)
    assert writer.length.drafts == 0
    writer.write(steps, [0.97] * 12)
    assert writer.length.drafts == max(seconds, key=lambda drafts: pace(drafts, [0.97] * 12, seconds))


def test_a_new_text_has_the_benefit_of_the_doubt() -> None:
    writer = Writer(ChainLength(FREE))
    writer.write(40, [0.0] * 12)
    assert writer.length.drafts == 0
    writer.begin()
    writer.chosen.clear()
    writer.write(40, [0.9] * 12)
    assert min(writer.chosen) > 0
    writer.begin()
    writer.write(40, [0.0] * 12)
    assert writer.length.drafts == 0


def test_there_may_be_nothing_to_choose_from() -> None:
    writer = Writer(ChainLength({0: 1.0}))
    writer.write(100, [])
    assert set(writer.chosen) == {0}
