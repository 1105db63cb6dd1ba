"""Files of prompts: what is read, what is refused and where the message points; and the files that we ship."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stridelm.params import InputError
from stridelm.prompts import PromptLine, read_prompts

BENCH = Path(__file__).parent.parent.parent / "bench" / "prompts"
CHAT = [{"role": "system", "content": ""}, {"role": "user", "content": "Größe?"}]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prompts"


def test_json_lines(file: Path) -> None:
    entries = [
        {"prompt": "One"},
        {"question": "Two?", "answer": "2", "category": "maths"},
        {"messages": CHAT, "prompt": "One", "category": None},
    ]
    file.write_text("\n  \n".join(json.dumps(entry, ensure_ascii=False) for entry in entries), encoding="utf-8")
    assert read_prompts(file) == [
        PromptLine(f"{file}, line 1", "One", None),
        PromptLine(f"{file}, line 3", "Two?", "maths", "2"),
        PromptLine(f"{file}, line 5", CHAT, None),
    ]


def test_plain_text(file: Path) -> None:
    file.write_bytes("\ufeff\r\n Why is the sky blue?\r\n\n{not JSON}\nGröße\u2028\n".encode())
    assert [(line.place, line.prompt) for line in read_prompts(file)] == [
        (f"{file}, line 2", "Why is the sky blue?"),
        (f"{file}, line 4", "{not JSON}"),
        (f"{file}, line 5", "Größe"),
    ]


def test_byte_order_mark_and_windows_line_ends(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "One"}\r\n{"prompt": " Two "}\r\n')
    assert [line.prompt for line in read_prompts(file)] == ["One", " Two "]


# A second line, and what the message must say.
BAD_LINES: dict[str, tuple[str, str]] = {
    "plain text among JSON": ("Why?", "not JSON"),
    "too deep": ("[" * 100_000, "not JSON"),
    "not an object": ("[1]", '"messages" (a list), "prompt" or "question"'),
    "no known field": ('{"text": "x"}', '"messages" (a list), "prompt" or "question"'),
    "prompt is no text": ('{"prompt": 5}', "the prompt must be text"),
    "prompt is a chat": (json.dumps({"prompt": CHAT}), "the prompt must be text"),
    "question is empty": ('{"question": " "}', "the prompt must be text"),
    "messages are text": ('{"messages": "x", "prompt": "x"}', "messages must be a list"),
    "messages are empty": ('{"messages": []}', "messages must be a list that is not empty"),
    "message is text": ('{"messages": ["x"]}', "role and a content"),
    "message without content": ('{"messages": [{"role": "user"}]}', "role and a content"),
    "content is no text": ('{"messages": [{"role": "user", "content": [1]}]}', "role and a content"),
    "category is no text": ('{"prompt": "x", "category": 1}', "the category must be text"),
    "half a character": (r'{"prompt": "x \ud800 y"}', "not valid Unicode"),
    "half a character in a chat": (r'{"messages": [{"role": "user", "content": "\udc00"}]}', "not valid Unicode"),
    "half a character in a role": (r'{"messages": [{"role": "\udc00", "content": "x"}]}', "not valid Unicode"),
    "half a character in a category": (r'{"prompt": "x", "category": "\ud800"}', "not valid Unicode"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_lines(case: str, file: Path) -> None:
    line, message = BAD_LINES[case]
    file.write_text(f'{{"prompt": "Fine"}}\n\n{line}\n')
    with pytest.raises(InputError) as caught:
        read_prompts(file)
    assert str(caught.value).startswith(f"{file}, line 3: ")
    assert message in str(caught.value)
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no prompts"),
        (b"\xef\xbb\xbf \n\n", "no prompts"),
        (b"One\n\xef\xbb\xbf\nTwo \xff\n", "line 3 is not text in UTF-8"),
        (b"\xef\xbb\xbfOne\nTwo\n\xff\n", "line 3 is not text in UTF-8"),
    ],
)
def test_bad_content(content: bytes, message: str, file: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_prompts(file)
    assert str(caught.value).startswith(f"{file}: ")


def test_what_is_no_file(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "nowhere", "No such file or directory")):
        with pytest.raises(InputError) as caught:
            read_prompts(path)
        assert str(caught.value) == f"{path}: cannot be read ({reason})"


def texts(file: Path) -> list[tuple[str | None, str]]:
    lines = [(line.category, line.prompt) for line in read_prompts(file)]
    return [(category, prompt) for category, prompt in lines if isinstance(prompt, str)]


def test_our_prompts_of_twelve_kinds() -> None:
    prompts = texts(BENCH / "kinds.jsonl")
    assert Counter(category for category, _ in prompts) == dict.fromkeys(
        (
            *("writing", "roleplay", "reasoning", "maths", "coding", "extraction", "stem", "humanities"),
            *("translation", "summarisation", "qa", "rag"),
        ),
        10,
    )
    assert len({prompt for _, prompt in prompts}) == 120


def test_the_held_out_questions_of_gsm8k() -> None:
    prompts = texts(BENCH / "gsm8k_heldout.jsonl")
    assert {category for category, _ in prompts} == {"gsm8k"}
    assert len(prompts) == len({prompt for _, prompt in prompts}) == 300


def test_answers(file: Path) -> None:
    told = {"role": "assistant", "content": "Yes."}
    entries = [{"question": "Two?", "answer": "2"}, {"messages": [*CHAT, told]}]
    file.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    assert [line.with_answer() for line in read_prompts(file)] == [("Two?", "2"), (CHAT, "Yes.")]


@pytest.mark.parametrize(
    "entry", [{"prompt": "Two?"}, {"messages": CHAT}, {"messages": [CHAT[-1] | {"role": "assistant"}]}]
)
def test_no_answer(entry: dict[str, Any], file: Path) -> None:
    file.write_text(json.dumps(entry))
    with pytest.raises(InputError, match="line 1: has no answer"):
        read_prompts(file)[0].with_answer()


def test_an_answer_that_is_no_text(file: Path) -> None:
    file.write_text('{"prompt": "Two?", "answer": 2}')
    (line,) = read_prompts(file)  # of no matter to who only wants the prompt
    with pytest.raises(InputError, match="line 1: the answer must be text"):
        line.with_answer()
