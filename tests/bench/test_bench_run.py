"""The run of a bench: who is asked what and when, who drops out, and what is judged against what."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from stridelm.bench.page_figures import page_figures
from stridelm.bench.records import Answer, Quality, Question, Record, Report, read_report
from stridelm.bench.report import write_json
from stridelm.bench.run import circumstances, run
from stridelm.bench.subjects import Absent, Subject
from stridelm.params import InputError

LOG = list[tuple[str, str]]


@dataclass
class Fake:
    """Says its name and what it was asked, and notes everything."""

    name: str
    log: LOG
    fails: dict[str, Exception] = field(default_factory=dict)
    """What it was to do -> what it raises then: `start`, `warm up`, or a question's name."""
    says: Callable[[str], str] = lambda asked: f"answer to {asked}"
    about: dict[str, Any] = field(default_factory=lambda: {"exact": True})

    def _do(self, what: str) -> None:
        self.log.append((self.name, what))
        if what in self.fails:
            raise self.fails[what]

    def start(self) -> None:
        self._do("start")

    def warm_up(self) -> None:
        self._do("warm up")

    def ask(self, question: Question) -> Answer:
        self._do(question.name)
        return Answer((1, 2), self.says(question.messages[-1]["content"]), (1, 1), (0.5, 1.0), 1.0)

    def close(self) -> None:
        self._do("close")


@dataclass
class Chain:
    """Asks for as many links as it has words, and repeats what was said."""

    words: list[str]
    asked: int = 0

    def next(self, previous: str | None) -> Question | None:
        if previous is not None and "enough" in previous:
            return None
        if self.asked == len(self.words):
            return None
        content = f"{previous} {self.words[self.asked]}" if previous else self.words[self.asked]
        self.asked += 1
        return Question("agent", f"link {self.asked}", ({"role": "user", "content": content},), 8)


def ask(name: str, suite: str = "suite") -> Question:
    return Question(suite, name, ({"role": "user", "content": name},), 8)


def judge(_: Question, answer: Answer, plain: Answer | None) -> Quality:
    return Quality(identical=None if plain is None else plain.text == answer.text)


def bench(subjects: list[Fake], questions: list[Question], tasks: list[Chain] | None = None, rounds: int = 1) -> Report:
    given: list[Subject] = [*subjects]
    return run(given, questions, tasks or [], judge=judge, rounds=rounds, settings={"tokens": 8}, circumstances={})


def fakes(*names: str, **fails: dict[str, Exception]) -> tuple[LOG, list[Fake]]:
    log: LOG = []
    return log, [Fake(name, log, fails.get(name, {})) for name in names]


def asked(log: LOG) -> LOG:
    return [entry for entry in log if entry[1] not in ("start", "warm up", "close")]


def places(records: list[Record]) -> list[tuple[str, str, int]]:
    return [(record.question, record.subject, record.round) for record in records]


def test_everyone_in_turn_and_another_one_first() -> None:
    log, subjects = fakes("plain", "auto", "peer")
    report = bench(subjects, [ask("one"), ask("two", "other")], rounds=2)
    assert log[:6] == [(name, what) for name in ("plain", "auto", "peer") for what in ("start", "warm up")]
    assert asked(log) == [
        *[("plain", "one"), ("auto", "one"), ("peer", "one")],
        *[("auto", "two"), ("peer", "two"), ("plain", "two")],
        *[("peer", "one"), ("plain", "one"), ("auto", "one")],
        *[("plain", "two"), ("auto", "two"), ("peer", "two")],
    ]
    assert log[-3:] == [("plain", "close"), ("auto", "close"), ("peer", "close")]
    assert sorted(places(report.records)) == sorted(
        (question, name, number)
        for number in (1, 2)
        for question in ("one", "two")
        for name in ("plain", "auto", "peer")
    )
    assert all(record.quality.identical for record in report.records), "also where the baseline came later"
    assert (report.baseline, list(report.subjects), report.absent) == ("plain", ["plain", "auto", "peer"], {})
    assert report.settings == {
        "subjects": ["plain", "auto", "peer"], "rounds": 2, "tokens": 8, "suites": ["suite", "other"],
    }  # fmt: skip


def test_who_cannot_start_takes_no_part() -> None:
    log, subjects = fakes(
        "plain", "gone", "cold", "auto",
        gone={"start": Absent("nobody listens there")}, cold={"warm up": RuntimeError("too cold\nfor this")},
    )  # fmt: skip
    report = bench(subjects, [ask("one")])
    assert report.absent == {"gone": "nobody listens there", "cold": "RuntimeError: too cold"}
    assert list(report.subjects) == ["plain", "auto"]
    assert {name for name, _ in asked(log)} == {"plain", "auto"}
    assert ("gone", "warm up") not in log and ("gone", "close") in log


def test_who_fails_takes_no_further_part() -> None:
    log, subjects = fakes("plain", "peer", "auto", peer={"two": InputError("the connection broke")})
    report = bench(subjects, [ask("one"), ask("two"), ask("three")], rounds=2)
    assert report.absent == {"peer": "suite, two, round 1: the connection broke"}
    assert places([record for record in report.records if record.subject == "peer"]) == [("one", "peer", 1)]
    assert asked(log).count(("auto", "three")) == asked(log).count(("plain", "two")) == 2
    assert "peer" in report.subjects, "what it said before stays, and so does what it is"


@pytest.mark.parametrize("when", ["start", "one"])
def test_without_the_baseline_there_is_no_bench(when: str) -> None:
    log, subjects = fakes("plain", "auto", plain={when: InputError("no room")})
    with pytest.raises(InputError, match=r"plain, which all others are compared with, failed: .*no room"):
        bench(subjects, [ask("one")])
    assert log[-2:] == [("plain", "close"), ("auto", "close")]


def test_an_interrupt_closes_everyone() -> None:
    log, subjects = fakes("plain", "auto")

    def interrupt(_: str) -> str:
        raise KeyboardInterrupt

    subjects[1].says = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench(subjects, [ask("one")])
    assert log[-2:] == [("plain", "close"), ("auto", "close")]


def test_everyone_has_a_chain_of_its_own() -> None:
    log, subjects = fakes("plain", "same", "other", "brief")
    heard: dict[str, list[str]] = {subject.name: [] for subject in subjects}

    def speaker(name: str, word: str) -> Callable[[str], str]:
        def say(content: str) -> str:
            heard[name].append(content)
            return word

        return say

    for subject, word in zip(subjects, ("yes", "yes", "no", "enough"), strict=True):
        subject.says = speaker(subject.name, word)
    task = Chain(["a", "b", "c"])
    report = bench(subjects, [], [task], rounds=2)
    assert heard["plain"] == heard["same"] == ["a", "yes b", "yes c"] * 2
    assert heard["other"] == ["a", "no b", "no c"] * 2
    assert heard["brief"] == ["a", "a"]
    assert task.asked == 0, "the one that was given has not begun"
    first = asked(log)[: 4 + 3 + 3]
    assert [what for _, what in first] == ["link 1"] * 4 + ["link 2"] * 3 + ["link 3"] * 3, "a link of each at a time"
    identical = {
        (record.subject, record.question): record.quality.identical for record in report.records if record.round == 1
    }
    assert [identical["same", f"link {number}"] for number in (1, 2, 3)] == [True, True, True]
    # The first question was the same and the answer was not; from then on the questions are others.
    assert [identical["other", f"link {number}"] for number in (1, 2, 3)] == [False, None, None]


def test_a_chain_goes_on_without_who_fails() -> None:
    log, subjects = fakes("plain", "peer", peer={"link 2": OSError("gone")})
    report = bench(subjects, [ask("one")], [Chain(["a", "b", "c"]), Chain(["d"])])
    assert report.absent == {"peer": "agent, link 2, round 1: OSError: gone"}
    assert [what for name, what in asked(log) if name == "plain"] == ["one", "link 1", "link 2", "link 3", "link 1"]
    assert [what for name, what in asked(log) if name == "peer"] == ["one", "link 1", "link 2"]


def test_what_cannot_be_run() -> None:
    _, subjects = fakes("plain", "auto", "auto")
    with pytest.raises(InputError, match="named twice"):
        bench(subjects, [ask("one")])
    with pytest.raises(InputError, match="nothing to ask"):
        bench(subjects[:2], [])
    with pytest.raises(InputError, match="--rounds"):
        bench(subjects[:2], [ask("one")], rounds=0)


def test_circumstances_and_the_file(tmp_path: Any) -> None:
    found = circumstances("CPU", 2)
    assert found["command"].startswith("stridelm") and found["versions"]["torch"]
    assert found["machine"].keys() >= {"system", "device", "processor", "cores", "threads"}
    assert (found["machine"]["device"], found["machine"]["threads"]) == ("CPU", 2)
    _, subjects = fakes("plain", "auto")
    report = bench(subjects, [ask("one")])
    report.circumstances = found
    write_json(report, page_figures(report), tmp_path / "report.json")
    assert read_report(tmp_path / "report.json") == report
