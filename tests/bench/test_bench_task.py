"""The task: its sums are right, its splits apart, and training reads what it writes."""

import re
from pathlib import Path

import pytest

from bench.frontier.task import Problem, problems, write_jsonl
from bench.frontier.tickets import ticket_prompts, write_prompts
from stridelm.params import InputError
from stridelm.prompts import read_prompts

_SUM = re.compile(r"(\d+) ([-+x]) (\d+) = (\d+)")
_MEANING = {"+": int.__add__, "-": int.__sub__, "x": int.__mul__}


def numbers(problem: Problem) -> tuple[str, ...]:
    """What a problem is about, whatever its words: its numbers, then what is done with them."""
    return (*re.findall(r"\d+", problem.prompt), *re.findall(r"(?m)^\d+ ([-+x])", problem.answer))


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_equation_holds_and_leads_to_the_result(split: str) -> None:
    for problem in problems(0, 300, split):
        equations = _SUM.findall(problem.answer)
        assert equations
        for left, operation, right, outcome in equations:
            assert _MEANING[operation](int(left), int(right)) == int(outcome), problem.answer
        assert int(equations[-1][-1]) == problem.result
        start = re.search(r"\d+", problem.prompt)
        lines = problem.answer.splitlines()
        assert start is not None
        assert lines[0] == f"Start: {start[0]}."
        assert lines[-1] == f"Answer: {problem.result}"
        assert len(lines) == problem.steps + 2
        # Every number of the story is worked with, in its order.
        for told, line in zip(re.findall(r"\d+", problem.prompt)[1:], lines[1:-1], strict=True):
            assert re.match(rf"\d+ [-+x] {told}\b", line), (told, line)


def test_splits_share_no_sums_and_nothing_is_told_twice() -> None:
    train = [numbers(each) for seed in (0, 1) for each in problems(seed, 4000, "train")[:2000]]
    test = [numbers(each) for each in problems(0, 1000, "test")]
    assert not set(train) & set(test)
    assert len(set(test)) == len(test)


def test_same_seed_same_problems() -> None:
    assert problems(3, 20, "test") == problems(3, 20, "test")
    assert problems(3, 20, "test") == problems(3, 40, "test")[:20]
    assert problems(3, 20, "test") != problems(4, 20, "test")
    with pytest.raises(InputError, match="train, test"):
        problems(0, 1, "dev")


def test_only_the_right_number_in_the_right_form_is_right() -> None:
    problem = problems(0, 1, "test")[0]
    result = problem.result
    assert problem.is_right(problem.answer)
    assert problem.is_right(f"Answer: {result + 1}\nNo.\nAnswer: {result}")
    for wrong in ("", str(result), f"Answer: {result}0", f"Answer: {result}\nAnswer: {result + 1}", "Answer: x"):
        assert not problem.is_right(wrong), wrong


def test_training_reads_what_is_written(tmp_path: Path) -> None:
    told = problems(0, 5, "train")
    write_jsonl(tmp_path / "task.jsonl", told)
    lines = read_prompts(tmp_path / "task.jsonl")
    assert [line.with_answer() for line in lines] == [(each.prompt, each.answer) for each in told]


def test_tickets_are_different_and_their_splits_apart(tmp_path: Path) -> None:
    train, test = ticket_prompts(0, 2000, "train"), ticket_prompts(0, 200, "test")
    assert len(set(train)) == 2000
    assert not set(train) & set(test)
    write_prompts(tmp_path / "tickets.jsonl", test)
    assert [line.prompt for line in read_prompts(tmp_path / "tickets.jsonl")] == test
    with pytest.raises(InputError, match="train, test"):
        ticket_prompts(0, 1, "dev")
