"""Calls read out of text that comes in pieces: whatever the cut, the pieces make the same."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stridelm.serve.tools.forms import FORMATS, HERMES, LLAMA, MISTRAL, Call, ToolFormat
from stridelm.serve.tools.reader import CallPart, CallReader, Found
from tool_asking import CALLS

NAMES = {"weather", "clock"}
IDS = ["hermes", "mistral", "llama"]


@dataclass
class Read:
    """All that a reader found."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Names and arguments, as they were written."""
    order: list[int | None] = field(default_factory=list, compare=False)
    """What came after what: calls by their index, and text as None."""


def read(form: ToolFormat, pieces: list[str], *, many: bool = True) -> Read:
    """Every call must begin with its name, in the order of the calls, and nothing comes of one before the last."""
    reader, whole = CallReader(form, NAMES, many=many), Read()
    for number in range(len(pieces) + 1):
        found = reader.push(pieces[number]) if number < len(pieces) else reader.flush()
        whole.text += found.text
        for piece in found.pieces:
            came = None if isinstance(piece, str) else piece.index
            whole.order += [] if whole.order[-1:] == [came] else [came]
        for part in found.calls:
            if part.name is not None:
                assert part.index == len(whole.calls)
                whole.calls.append((part.name, ""))
            name, arguments = whole.calls[-1]
            assert part.index == len(whole.calls) - 1
            whole.calls[-1] = (name, arguments + part.arguments)
        assert reader.calls == len(whole.calls)
    return whole


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def read_alike(form: ToolFormat, text: str, *, many: bool = True) -> Read:
    """What is read of a text, which is the same in pieces of any size."""
    whole = read(form, [text], many=many)
    for size in range(1, len(text)):
        again = read(form, cut(text, size), many=many)
        assert (again, again.order) == (whole, whole.order), size
    return whole


def raw(calls: list[Call]) -> list[tuple[str, str]]:
    return [(call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in calls]


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_what_a_form_writes_it_reads(form: ToolFormat) -> None:
    for calls in (CALLS, CALLS[:1], CALLS[1:], CALLS * 2):
        assert read_alike(form, form.write(calls)) == Read("", raw(calls))
        assert read_alike(form, form.write(calls), many=False).calls == raw(calls[:1])
        # The marker is a special token in many tokenizers, which is no part of the text.
        assert read_alike(form, form.write(calls).removeprefix("[TOOL_CALLS] ")) == Read("", raw(calls))


def test_a_marker_that_is_text_belongs_to_the_calls() -> None:
    assert read_alike(LLAMA, "<|python_tag|>" + LLAMA.write(CALLS)) == Read("", raw(CALLS))
    assert read_alike(MISTRAL, "\n" + MISTRAL.write(CALLS).replace("] [", "][", 1)) == Read("", raw(CALLS))
    one = '[TOOL_CALLS]{"name": "clock", "arguments": {}}'
    assert read_alike(MISTRAL, one) == Read("", [("clock", "{}")])


def test_arguments_are_given_as_they_are_written() -> None:
    """Also what is odd: who asked for the call has to look."""
    for arguments in (
        *('{"a":1}', '{\n  "a": "}\\"]{"\n}', '{"a": [1, {"b": "é"}]}', "{ }", '{"a": NaN}', '{"a": "\\ud800"}'),
        *('{"a": 99999999999999999999999}', '{"a" 1}', "{a: b}", '{"a": ' * 300 + "1" + "}" * 300),
    ):
        for form in FORMATS:
            empty = form.write([Call("clock", {})])
            text = empty.replace("{}", arguments, 1)
            sizes = (1, 2, 7, 10_000) if len(text) > 500 else range(1, len(text) + 1)
            for size in sizes:
                assert read(form, cut(text, size)) == Read("", [("clock", arguments)])


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_a_call_begins_with_the_brace_of_its_arguments(form: ToolFormat) -> None:
    """Its name is told then, and every piece behind it at once."""
    text = form.write(CALLS[:1])
    brace = text.index("{", text.index(form.arguments))
    reader = CallReader(form, NAMES, many=True)
    assert reader.push(text[:brace]).calls == []
    assert reader.push("{").calls == [CallPart(0, "weather", ""), CallPart(0, None, "{")]
    assert reader.push('"city').calls == [CallPart(0, None, '"city')]
    assert reader.push('": "Z"').calls == [CallPart(0, None, '": "Z"')]
    assert reader.push("}}").calls == [CallPart(0, None, "}")]


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_a_call_that_is_cut_off_is_given_as_far_as_it_came(form: ToolFormat) -> None:
    text = form.write(CALLS[:1])
    begins = text.index("{", text.index(form.arguments))
    arguments = json.dumps(CALLS[0].arguments, ensure_ascii=False)
    for end in range(len(text) + 1):
        found = read_alike(form, text[:end])
        if end <= begins:
            assert found == Read(text[:end], [])
        else:
            assert found == Read("", [("weather", arguments[: end - begins])])


def test_a_second_call_that_is_cut_off() -> None:
    for form in FORMATS:
        text = form.write(CALLS)
        begins = text.rindex("{}")
        assert read_alike(form, text[: begins + 1]).calls == [*raw(CALLS[:1]), ("clock", "{")]
        before = read_alike(form, text[: begins - 3])
        assert before.calls == raw(CALLS[:1]) and before.text.strip().endswith(form.arguments)


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_a_call_in_another_order_is_given_when_it_is_whole(form: ToolFormat) -> None:
    key = form.arguments
    turned = json.dumps({key: {"city": "Bern"}, "name": "weather"})
    bare = '{"name": "clock"}'
    usual = json.dumps({"name": "clock", key: {}})
    expected = {turned: ("weather", '{"city": "Bern"}'), bare: ("clock", "{}"), usual: ("clock", "{}")}
    for bodies in ([turned], [bare], [turned, usual], [bare, turned]):
        text = form.begin + form.between.join(form.before + body + form.after for body in bodies) + form.end
        assert read_alike(form, text) == Read("", [expected[body] for body in bodies])
        assert read_alike(form, text, many=False).calls == [expected[bodies[0]]]
    reader = CallReader(form, NAMES, many=True)
    assert reader.push(form.begin + form.before + turned[:-1]).calls == []


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_a_later_call_in_another_order_is_one_too(form: ToolFormat) -> None:
    key = form.arguments
    bodies = [json.dumps({"name": "clock", key: {}}), json.dumps({key: {}, "name": "weather"}), '{"name": "clock"}']
    text = form.begin + form.between.join(form.before + body + form.after for body in bodies) + form.end
    assert read_alike(form, text) == Read("", [("clock", "{}"), ("weather", "{}"), ("clock", "{}")])


def test_text_around_calls_stays() -> None:
    call = HERMES.write(CALLS[:1])
    assert read_alike(HERMES, f"Let me see.\n\n{call}\n") == Read("Let me see.", raw(CALLS[:1]))
    assert read_alike(HERMES, f"a <b> {call} then {call}") == Read("a <b> then", raw([CALLS[0], CALLS[0]]))
    assert read_alike(HERMES, "no call, a < b \n") == Read("no call, a < b \n", [])
    assert read_alike(HERMES, f"{call} and <tool_ca") == Read(" and <tool_ca", raw(CALLS[:1]))


def test_white_space_behind_calls_is_nothing() -> None:
    for form in FORMATS:
        for behind in ("\n", " ", "\n\n  "):
            assert read_alike(form, form.write(CALLS) + behind) == Read("", raw(CALLS))


def test_text_behind_a_list_of_calls_stays_without_what_closes_the_list() -> None:
    assert read_alike(MISTRAL, MISTRAL.write(CALLS) + " So.").text.strip() == "So."
    assert read_alike(LLAMA, LLAMA.write(CALLS) + " So.").text.strip() == "So."


def test_an_end_within_a_string_is_no_end() -> None:
    calls = [Call("clock", {"said": "</tool_call> and <tool_call>"}), Call("clock", {})]
    assert read_alike(HERMES, HERMES.write(calls)) == Read("", raw(calls))


def test_a_call_that_is_not_closed_takes_nothing_else_with_it() -> None:
    weather, clock = (HERMES.write([call]).removesuffix("\n</tool_call>") for call in CALLS)
    both = raw(CALLS)
    assert read_alike(HERMES, f"{weather}\n{clock}\n</tool_call>") == Read("", both)
    assert read_alike(HERMES, f"{weather}\n{clock}") == Read("", both)
    assert read_alike(HERMES, f"{clock}\n\nIt is noon.") == Read("It is noon.", both[1:])
    assert read_alike(HERMES, f"{clock}}}\n</tool_call> So.") == Read(" So.", both[1:])
    for end in range(len("</tool_call>") + 1):
        assert read_alike(HERMES, f"{clock}\n" + "</tool_call>"[:end]) == Read("", both[1:])
    assert read_alike(HERMES, f"{clock}\n<tool_ca") == Read("<tool_ca", both[1:])


def test_keys_behind_the_arguments_are_not_read() -> None:
    call = '<tool_call>\n{"name": "clock", "arguments": {}, "id": 3}'
    for text in (call, call + "\n</tool_call>"):
        assert read_alike(HERMES, text) == Read("", [("clock", "{}")])
    assert read_alike(HERMES, call + call + "</tool_call> So.") == Read(" So.", [("clock", "{}")] * 2)


def test_nothing_is_read_behind_the_only_call() -> None:
    for form in FORMATS:
        reader = CallReader(form, NAMES, many=False)
        text = form.write(CALLS[:1])
        whole = text.rindex('"}') + 2
        reader.push(text[: whole - 1])
        assert not reader.is_done
        assert reader.push(text[whole - 1 :] + " and text" + form.write(CALLS)).text == "" and reader.is_done
        assert reader.push("more") == reader.flush() == Found()
        assert reader.calls == 1
    assert not CallReader(HERMES, NAMES, many=False).is_done


def test_white_space_before_what_is_no_call_stays() -> None:
    for text in (
        "Use:\n\n  <tool_call>x</tool_call>\n",
        "a \n<tool_call>x",
        " <tool_call> <tool_call>x</tool_call>  y",
    ):
        assert read_alike(HERMES, text) == Read(text, [])
    call = HERMES.write(CALLS[1:])
    assert read_alike(HERMES, f"a <tool_call>x</tool_call> {call} b") == Read(
        "a <tool_call>x</tool_call> b", raw(CALLS[1:])
    )


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nnot JSON\n</tool_call>",
        '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": "now"}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "more": 1, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": NaN}, "name": "clock"}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": "\\ud800"}, "name": "clock"}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": 99999999999999999999999}, "name": "clock"}\n</tool_call>',
        '<tool_call>\n{"name": "clo\\ck", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "parameters": {}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "argu',
        "<tool_ca",
        "",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read_alike(HERMES, text) == Read(text, [])


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, "<tool_call>" + "[" * 5000 + "</tool_call>"),
        (HERMES, '<tool_call>{"arguments": ' + '{"a": ' * 300 + "1" + "}" * 300 + ', "name": "clock"}</tool_call>'),
        (MISTRAL, "[TOOL_CALLS] [1, 2]"),
        (MISTRAL, "[1, 2] is a list"),
        (MISTRAL, "[" * 3000),
        (MISTRAL, "[TOOL_CALLS] 3"),
        (MISTRAL, '[{"name": "nobody", "arguments": {}}]'),
        (LLAMA, '{"name": "clock"} and more'),
        (LLAMA, '{"city": "here"}'),
        (LLAMA, '{"name": "nobody", "parameters": {}}'),
        (LLAMA, '{"name": "clock", "arguments": {}}'),
        (LLAMA, "Plain text {"),
        (LLAMA, 'Plain text {"name": "clock", "parameters": {}}'),
    ],
    ids=lambda part: part[:30] if isinstance(part, str) else "",
)
def test_answers_that_are_no_calls_stay_text(form: ToolFormat, text: str) -> None:
    for size in (1, 7, len(text)):
        assert read(form, cut(text, size)) == Read(text, [])


FRAGMENTS = {
    0: ["<tool_call>", "</tool_call>", "<", "text", '{"c": "</tool_call>"}', '{"c": "<tool_call>'],
    1: ["[TOOL_CALLS]", "[", "]", ", ", "text"],
    2: ["<|python_tag|>", "; ", ";", "text"],
}


def fragments(form: ToolFormat) -> list[str]:
    """What calls are made of, and what may come in between."""
    key = form.arguments
    whole = [
        json.dumps(value)
        for value in ({"name": "clock", key: {"a": ['}"', {}]}}, {key: {}, "name": "clock"}, {"name": "clock"})
    ]
    unknown = json.dumps({"name": "nobody", key: {}})
    begun = f'{{"name": "weather", "{key}": '
    own = FRAGMENTS[FORMATS.index(form)]
    return [*own, *whole, unknown, begun, "{}", '{"b": "\\"', "{", "}", '"', "\n", " "]


@settings(max_examples=300)
@given(st.data())
def test_any_text_is_read_the_same_whatever_the_cut(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(FORMATS))
    text = "".join(data.draw(st.lists(st.sampled_from(fragments(form)), max_size=9)))
    many = data.draw(st.booleans())
    whole = read(form, [text], many=many)
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=5).map(sorted))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    assert read(form, pieces, many=many) == read(form, list(text), many=many) == whole
    assert len(whole.calls) <= (len(text) if many else 1)
    if not whole.calls:
        assert whole.text == text
    elif not many:
        assert text.startswith(whole.text) or form is not HERMES


WORDS = st.text("ab </>\n", max_size=8).map(lambda text: text + ".")
PIECES = st.lists(WORDS | st.tuples(st.sampled_from(CALLS), st.sampled_from(["\n</tool_call>", "}", "\n"])), max_size=6)


@settings(max_examples=300)
@given(PIECES, st.integers(1, 30))
def test_all_calls_and_all_text_are_found_whether_calls_are_closed_or_not(pieces: list[Any], size: int) -> None:
    """Only white space around calls may be lost."""
    written = [
        each if isinstance(each, str) else HERMES.write([each[0]])[: -len("\n</tool_call>")] + each[1]
        for each in pieces
    ]
    found = read(HERMES, cut("".join(written), size))
    assert found.calls == raw([each[0] for each in pieces if not isinstance(each, str)])
    assert "".join(found.text.split()) == "".join("".join(each.split()) for each in pieces if isinstance(each, str))
