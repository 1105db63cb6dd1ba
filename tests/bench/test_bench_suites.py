"""The suites of `stridelm bench`: their questions, checkers with right and wrong answers, and the chain of calls."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stridelm import InputError
from stridelm.bench import benchmark
from stridelm.bench.records import Answer, Quality, Question, Record
from stridelm.bench.scenarios import agent_figures, first_words, reasoning_tokens, voice_figures
from stridelm.bench.suites.agent import AgentTask, agent_tasks, is_right, parse_call
from stridelm.bench.suites.chain import Call, Chain
from stridelm.bench.suites.chains import CHAINS
from stridelm.bench.suites.checkers import contains, find_json, numbers, same
from stridelm.bench.suites.long_prompts import LONG_SIZES, long_questions
from stridelm.bench.suites.table import SUITES, own_questions, questions
from stridelm.settings import ModelChoice

FIXED = [name for name, suite in SUITES.items() if suite.is_fixed]
CHECKED = [question.checker for name in FIXED for question in questions(name) if question.checker]
TEN = "The boats come home before the sun warms the stones."
SQUARES = json.dumps([{"number": number, "square": number**2} for number in range(1, 9)])
ACCOUNT = """class BankAccount:
    def __init__(self, owner, balance):
        self.owner, self.balance = owner, balance
    def get_owner(self): return self.owner
    def set_owner(self, owner): self.owner = owner
    def get_balance(self): return self.balance
    def set_balance(self, balance): self.balance = balance
"""
FUNCTIONS = "\n".join(f"def {name}(a, b):\n    return a {sign} b" for name, sign in
                      zip(("add", "subtract", "multiply", "divide"), "+-*/", strict=True))  # fmt: skip
KETTLE = "The kettle is on and the door is open."
INVOICE = {"customer": "Petra Novak", "city": "Brno", "invoice": 7731, "amount": "249", "currency": "eur"}
MEETING = {
    "title": "Budget review",
    "day": "Tuesday",
    "start": "14:30",
    "room": "B12",
    "people": ["Ines", "Tom", "Farid"],
}
UP, DOWN = range(1, 41), range(30, 0, -1)

ANSWERS: dict[str, tuple[list[str], list[str]]] = {
    "gemma/speed-cycling": (["48 km in 2 + 1 hours: 16 km/h", "It is **16.0**."], ["18", "", "16 km/h, not 18"]),
    "gemma/speed-train": (["300 / 5 = 60 km/h."], ["62.5", "60 or 61"]),
    "gemma/speed-van": (["2 h + 1 h for 120 km: 40 km/h"], ["45", "40 km/h rather than 45"]),
    "gemma/speed-ferry": (["(36 + 30) / 3 = 22"], ["(18 + 30) / 2 = 24"]),
    "gemma/speed-coach": (["300 km / 4 h = **75.0**"], ["300 / 3.5 = 85.7"]),
    "gemma/ten-words-winter": ([" ".join([TEN] * 5)], [" ".join([TEN] * 4), f"{TEN} " * 4 + "Snow falls."]),
    "gemma/ten-words-books": (["\n".join([TEN] * 3)], [f"Books\n{TEN} {TEN} {TEN}"]),
    "gemma/ten-words-bread": ([f"{TEN} " * 4], [f"{TEN} " * 3 + TEN.replace("before the", "before")]),
    "gemma/ten-words-sea": (
        [" ".join([TEN] * 4), "\n".join(f"{number}. {TEN}" for number in range(1, 5)), f"{TEN}\n\n" * 4],
        [" ".join([TEN] * 3), " ".join([TEN] * 5), f"{TEN} {TEN} {TEN} More: {TEN}", f"{TEN} " * 3 + "The boats", ""],
    ),
    "gemma/ten-words-advice": (["“" + "” “".join([TEN] * 3) + "”"], [TEN]),
    "structured/json-invoice": (
        [json.dumps(INVOICE), f"Here it is:\n```json\n{json.dumps(INVOICE | {'twice': True}, indent=2)}\n```"],
        [json.dumps(INVOICE | {"city": "Prague"}), '{"customer": "Petra Novak"}', json.dumps(INVOICE)[:-1], "Brno"],
    ),
    "structured/json-meeting": (
        [json.dumps(MEETING)],
        [json.dumps(MEETING | {"people": ["Ines", "Tom"]}), json.dumps(MEETING | {"people": "Ines, Tom, Farid"})],
    ),
    "structured/json-squares": (
        [SQUARES, f"The list: {SQUARES}."],
        [SQUARES.replace("49", "48"), SQUARES[:-1], SQUARES.replace('{"number": 1, "square": 1}, ', ""), "[]"],
    ),
    "structured/code-account": (
        [ACCOUNT, f"Sure!\n```python\n{ACCOUNT}```\nThis is it."],
        [ACCOUNT.replace("set_owner", "put_owner"), f"Sure! {ACCOUNT}", ACCOUNT[:-9]],
    ),
    "structured/code-functions": ([FUNCTIONS, f"```\n{FUNCTIONS}"], [FUNCTIONS.replace("divide", "div"), "def add"]),
    "structured/repeat": (
        [f"{KETTLE}\n" * 10, f"1. {KETTLE}\n" * 10, f'Yes:\n"{KETTLE}"' + f"\n{KETTLE}" * 9],
        [f"{KETTLE}\n" * 9, f"{KETTLE}\n" * 11, f"{KETTLE} " * 10],
    ),
    "structured/count-up": (
        [", ".join(map(str, UP)), "From 1 to 40:\n" + ",".join(map(str, UP)) + "."],
        [", ".join(map(str, range(1, 40))), ", ".join(map(str, range(1, 60))), "1 to 40"],
    ),
    "structured/count-down": (
        ["\n".join(map(str, DOWN))],
        ["\n".join(map(str, range(30, -1, -1))), "\n".join(map(str, range(1, 31)))],
    ),
    "maths/trays": (["7 * 12 = 84, 84 - 59 = 25 rolls"], ["84-59=35", "none"]),
    "maths/tickets": (["18 + 20 = $38"], ["$38 for 7 people"]),
    "maths/ribbon": (["300 / 25 = 12"], ["0.12"]),
    "maths/savings": (["150 / 15 = 10 weeks."], ["-10"]),
    "maths/orchard": (["240 - 60 - 80 = **100**"], ["1,100", "100.5"]),
    "maths/discount": ([r"\boxed{55}"], ["60"]),
    "maths/pages": (["2 * 150 = 300 pages"], ["150"]),
    "maths/tank": (["16 * 15 = 240.0 litres"], ["240 of 500"]),
}  # fmt: skip
"""By suite and question: right answers, and wrong ones."""


def asked(suite: str, name: str) -> Question:
    return next(question for question in questions(suite) if question.name == name)


@pytest.mark.parametrize("place", ANSWERS)
def test_checkers_tell_right_answers_from_wrong_ones(place: str) -> None:
    checker = asked(*place.split("/")).checker
    assert checker is not None
    right, wrong = ANSWERS[place]
    assert [text for text in right if not checker(text)] == []
    assert [text for text in wrong if checker(text)] == []


def test_every_checker_of_the_suites_is_held_against_answers() -> None:
    checked = {f"{name}/{question.name}" for name in FIXED for question in questions(name) if question.checker}
    assert checked == set(ANSWERS)


@pytest.mark.parametrize("name", FIXED)
def test_the_questions_of_a_suite(name: str) -> None:
    found = questions(name)
    assert len({question.name for question in found}) == len(found) >= 6
    assert {question.suite for question in found} == {name}
    assert {question.max_tokens for question in found} == {SUITES[name].max_tokens}
    for question in found:
        assert question.messages[-1]["role"] == "user" and question.messages[-1]["content"].strip()
    assert [question.name for question in questions(name, 2)] == [question.name for question in found[:2]]


def test_there_are_seven_suites_and_an_unknown_one_is_refused() -> None:
    assert list(SUITES) == ["gemma", "structured", "maths", "open", "voice", "agent", "long"]
    assert all(suite.name == name and suite.description.endswith(".") for name, suite in SUITES.items())
    with pytest.raises(InputError, match="no suite 'poems': choose one of gemma, structured"):
        questions("poems")


@given(st.text() | st.text(alphabet='[]{}":,.-0123456789 \n`aé'))
def test_checkers_take_any_text(text: str) -> None:
    assert {checker(text) for checker in CHECKED} <= {True, False}
    parse_call(text)


@pytest.mark.parametrize("text", ["[" * 2000, "(" * 2000, "```python\n\0", "-" * 2000, "9" * 5000])
def test_checkers_take_texts_that_break_parsers(text: str) -> None:
    assert not any(checker(text) for checker in CHECKED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234.50 and 7", [1234.5, 7]),
        ("1,2,3", [1, 2, 3]),
        ("10-4=6, -4 or \u22124", [10, 4, 6, -4, -4]),
        ("H2O, x2 and 5km", [5]),
        ("$3.99. Then .5", [3.99, 0.5]),
        ("1.2.3", [1.2]),
        ("_42_ and **43**...", [42, 43]),
        ("so 12,3456 it is", [12, 3456]),
    ],
)
def test_numbers_of_a_text(text: str, expected: list[float]) -> None:
    assert numbers(text) == expected


@given(st.integers() | st.decimals(allow_nan=False, allow_infinity=False, places=2))
def test_a_number_is_found_as_it_is_written(number: Any) -> None:
    assert numbers(f"So it is {number:,}.") == numbers(f"{number} in all") == [float(number)]


def test_json_is_found_wherever_it_stands() -> None:
    assert find_json('[1] says {"a": {"b": 2}} {"c": 3}', dict) == {"a": {"b": 2}}
    assert find_json('{"a" 1} then [2', list) is None
    assert same({"a": 7, "b": "Yes"}, {"b": "yes ", "a": "7.0", "c": 0})
    assert not same({"a": [1]}, {"a": 1}) and not same({"a": None}, {}) and not same(7, "seven")


def test_own_prompts_are_named_by_category_and_checked_by_their_answers(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    lines = [
        {"prompt": "The capital of Norway?", "category": "facts", "answer": "Oslo"},
        {"question": "6 * 7?", "category": "facts", "answer": 42},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second, third = own_questions(file, 24)
    assert (first.suite, first.name, second.name, third.name) == ("own", "facts-1", "facts-2", "prompt-1")
    assert first.messages == ({"role": "user", "content": "The capital of Norway?"},) and first.max_tokens == 24
    assert first.checker and first.checker("It is OSLO.") and not first.checker("Oslofjord")
    assert second.checker and second.checker("42.0, or 6 times 7") and not second.checker("420")
    assert third.checker is None and third.messages == tuple(lines[2]["messages"])
    assert third.note == f"{file}, line 3"


@pytest.mark.parametrize("answer", ["  ", True, ["Oslo"]])
def test_an_own_answer_that_is_none_is_refused(tmp_path: Path, answer: object) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"prompt": "The capital of Norway?", "answer": answer}))
    with pytest.raises(InputError, match=r"own.jsonl, line 1: the answer must be text"):
        own_questions(file, 24)


def test_signs_are_contained_as_they_are() -> None:
    assert contains("++")("C++ it is") and not contains("++")("C+ + it is")


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("encode", [str.split, bytes_of], ids=["words", "bytes"])
def test_long_prompts_have_the_tokens_that_were_asked_for(encode: Callable[[str], list[Any]]) -> None:
    found = long_questions(encode)
    assert [question.name for question in found] == [f"{size}-tokens" for size in LONG_SIZES]
    for size, question in zip(LONG_SIZES, found, strict=True):
        text = question.messages[0]["content"]
        assert size - 100 < len(encode(text)) <= size
        number = text.split("Who ordered in order ")[1].split(",")[0]
        line = next(line for line in text.splitlines() if f"order {number}:" in line)
        assert question.checker and question.checker(line) and not question.checker("I do not know.")
        assert 0.3 < text.index(line) / len(text) < 0.7
    again = long_questions(encode)
    assert [question.messages for question in again] == [question.messages for question in found]


def test_a_long_prompt_has_room_for_its_question() -> None:
    with pytest.raises(InputError, match="cannot have as few as 64 tokens"):
        long_questions(bytes_of, [64])


def asked_of(chain: Chain, reply: Callable[[int], str]) -> list[Question]:
    """The questions of a task whose replies are these, by step."""
    task, found = AgentTask(chain), []
    question = task.next(None)
    while question is not None:
        found.append(question)
        question = task.next(reply(len(found) - 1))
    return found


each_chain = pytest.mark.parametrize("chain", CHAINS, ids=[chain.name for chain in CHAINS])


@each_chain
def test_the_needed_calls_are_right_and_go_through(chain: Chain) -> None:
    found = asked_of(chain, lambda step: f"```json\n{chain.steps[step].needed}\n```")
    assert [question.name for question in found] == [f"{chain.name}-{number:02}" for number in range(1, 11)]
    for question, step in zip(found, chain.steps, strict=True):
        assert "error" not in chain.execute(step.needed)
        assert question.checker and question.checker(str(step.needed)) and not question.checker("I would call it.")
        tool = step.needed.tool
        assert f"{tool}({', '.join(step.needed.arguments)})" in question.messages[0]["content"]
    assert not any("right call" in message["content"] for message in found[-1].messages)


@each_chain
def test_every_tool_is_needed_once_and_the_example_is_of_another_task(chain: Chain) -> None:
    assert sorted(step.needed.tool for step in chain.steps) == sorted(chain.tools)
    assert "error" not in chain.execute(chain.example.needed)
    assert not any(is_right(chain.example.needed, step.needed) for step in chain.steps)


@each_chain
def test_every_call_needs_what_calls_before_it_found(chain: Chain) -> None:
    known = chain.steps[0].what
    for number, step in enumerate(chain.steps):
        for value in step.needed.arguments.values():
            assert str(value) in known
        if number:
            earlier = json.dumps([chain.execute(other.needed) for other in chain.steps[:number]])
            assert any(str(value) in earlier for value in step.needed.arguments.values())
            assert not any(str(value) in step.what for value in step.needed.arguments.values())
        known += json.dumps(chain.execute(step.needed))


@each_chain
@pytest.mark.parametrize(
    "reply",
    ["", "I cannot do this.", '{"tool": "fly", "arguments": {}}', '{"tool": "get_item", "arguments": {"item_id": 9}}',
     '{"tool": "list_orders", "arguments": {}}', '{"tool": "excess", "arguments": {"temperature": "hot", "limit": 1}}'],
)  # fmt: skip
def test_the_chain_goes_on_after_wrong_calls(chain: Chain, reply: str) -> None:
    found = asked_of(chain, lambda step: reply)
    assert len(found) == len(chain.steps)
    for number, question in enumerate(found[1:]):
        said = question.messages[-1]["content"]
        needed = chain.steps[number].needed
        assert json.dumps(chain.execute(needed)) in said
        # What is no call is taken for the needed one.
        assert (str(needed) in said) == (parse_call(reply) is not None)
        assert question.messages[-2]["content"] == str(parse_call(reply) or needed)
        assert question.checker and not question.checker(reply)


def test_a_wrong_call_is_told_what_it_found() -> None:
    task = AgentTask(CHAINS[0])
    task.next(None)
    question = task.next(str(Call("find_customer", {"name": "Ivo Brandt"})))
    assert question and 'Result: {"customer_id": "C-517"}' in question.messages[-1]["content"]


ANY_STEP = st.sampled_from([(chain, step) for chain in CHAINS for step in chain.steps])


@given(ANY_STEP, st.sampled_from([str.upper, str.lower, "{} ".format]))
def test_a_right_call_finds_what_the_needed_one_does(place: Any, spell: Callable[[str], str]) -> None:
    chain, step = place
    call = Call(step.needed.tool, {name: spell(str(value)) for name, value in step.needed.arguments.items()})
    assert is_right(call, step.needed) and chain.execute(call) == chain.execute(step.needed)


def questions_of_agent(limit: int | None) -> list[str]:
    return [question.name for task in agent_tasks(limit) for question in asked_of(task.chain, lambda step: "")]


def test_a_chain_is_never_cut() -> None:
    ten = [f"order-{number:02}" for number in range(1, 11)]
    assert questions_of_agent(1) == questions_of_agent(10) == ten
    assert len(questions_of_agent(11)) == 20 and len(questions_of_agent(1000)) == len(questions_of_agent(None))


def test_suites_whose_figures_are_targets_have_questions_enough(tmp_path: Path) -> None:
    """An interval over seven questions says little. A quick run asks no more for it."""
    names = {name: [question.name for question in questions(name)] for name in ("gemma", "voice")}
    names["agent"] = questions_of_agent(None)
    for name, found in names.items():
        assert len(set(found)) == len(found) >= 24, name
    for name in FIXED:
        texts = [question.messages[-1]["content"].casefold() for question in questions(name)]
        assert len(set(texts)) == len(texts)
    quick = benchmark._with_defaults(
        benchmark.BenchOptions(tmp_path, ModelChoice(), (), None, (), (), None, None, None, quick=True)
    )
    asked_quickly = Counter(question.suite for question in benchmark._fixed_questions(quick))
    assert asked_quickly == dict.fromkeys(FIXED, 2)
    assert len(questions_of_agent(quick.limit)) == 10


@pytest.mark.parametrize(("quick", "limit", "count"), [(False, None, 3), (False, 2, 2), (True, 2, 1)])
def test_a_limit_holds_for_long_prompts(tmp_path: Path, quick: bool, limit: int | None, count: int) -> None:
    forward, tokenizer = SimpleNamespace(longest=100_000), SimpleNamespace(encode=str.split)
    model: Any = SimpleNamespace(engine=SimpleNamespace(forward=forward), target=SimpleNamespace(tokenizer=tokenizer))
    options = benchmark.BenchOptions(tmp_path, ModelChoice(), (), None, (), (), None, limit, None, quick)
    assert len(benchmark._long_questions(model, options)) == count


def test_the_first_questions_of_gemma_are_of_all_kinds() -> None:
    kinds = ["protocols", "speed", "counterexample", "tamil", "ten-words"]
    found = [next(kind for kind in kinds if question.name.startswith(kind)) for question in questions("gemma")]
    assert found == kinds * (len(found) // len(kinds))


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda parts: st.lists(parts, max_size=2) | st.dictionaries(st.text(), parts, max_size=2),
    max_leaves=4,
)


@given(ANY_STEP, st.data())
def test_tools_take_any_arguments(place: Any, data: st.DataObject) -> None:
    chain, step = place
    arguments = {name: data.draw(ANY_JSON) for name in step.needed.arguments}
    json.dumps(chain.execute(Call(step.needed.tool, arguments)))


def record(
    suite: str, subject: str, seconds: float, *, number: int = 1, right: bool | None = None, text: str = "",
    strides: tuple[tuple[int, float], ...] = (), question: str = "order-01",
) -> Record:  # fmt: skip
    tokens, times = zip(*strides, strict=True) if strides else ((), ())
    return Record(suite, question, subject, number, Answer((), text, tokens, times, seconds), Quality(right=right))


def test_the_figures_of_a_chain() -> None:
    call = str(CHAINS[0].steps[0].needed)
    records = [
        *(record("agent", "plain", 4.0, number=number, text=call, right=True) for number in (1, 1, 2)),
        record("agent", "self", 1.0, number=1, text=call, right=False),
        record("agent", "self", 3.0, number=1, text="no"),
        record("agent", "self", 1.0, number=2, text=call, right=True),
        record("voice", "self", 100.0),
    ]
    figures = agent_figures(records, "plain")
    assert figures.keys() == {"plain", "self"}
    own = figures["self"]
    assert (own.calls, own.parsed, own.right) == (3, 2, 1)
    assert own.seconds == 2.5 and own.speed_up == 3.0  # 8 / 4 and 4 / 1
    assert figures["plain"].speed_up == 1
    assert agent_figures(records, "absent")["self"].speed_up is None


def test_each_chain_is_compared_with_itself() -> None:
    records = [
        record("agent", subject, seconds, question=question)
        for subject, times in (("plain", (2.0, 2.0, 9.0)), ("self", (1.0, 1.0, 6.0)))
        for question, seconds in zip(("order-01", "order-02", "trip-01"), times, strict=True)
    ]
    figures = agent_figures(records, "plain")
    assert (figures["plain"].seconds, figures["self"].seconds) == (6.5, 4.0)
    assert figures["self"].speed_up == 1.75  # of 4 / 2 and 9 / 6


def test_reasoning_tokens_fill_what_an_answer_leaves_of_the_budget() -> None:
    strides = ((1, 0.5), (2, 0.75), (3, 1.0))
    assert reasoning_tokens(record("agent", "a", 1.0, strides=strides).answer) == 2.0 * 10
    assert reasoning_tokens(record("agent", "a", 3.5, strides=strides).answer) == 0
    assert reasoning_tokens(record("agent", "a", 2.0, strides=((4, 2.0),)).answer) == 1.0 * 2
    assert reasoning_tokens(record("agent", "a", 2.0).answer) == 0


def test_first_words_are_three_tokens() -> None:
    assert first_words(record("voice", "a", 2.0, strides=((1, 0.3), (1, 0.4), (4, 0.6), (1, 0.7))).answer) == 0.6
    assert first_words(record("voice", "a", 2.0, strides=((3, 0.3), (1, 0.4))).answer) == 0.3
    assert first_words(record("voice", "a", 2.0, strides=((2, 0.3),)).answer) == 2.0
    waits = [record("voice", "a", wait) for wait in (0.4, 0.5, 0.7, 0.9)]
    figures = voice_figures([*waits, record("agent", "a", 9.0)])["a"]
    assert (figures.replies, figures.prompt, figures.patient) == (4, 0.5, 0.75)
    assert figures.first_words == pytest.approx(0.6)
