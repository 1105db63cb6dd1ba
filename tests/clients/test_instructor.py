"""instructor: objects by tools, by JSON and by a schema; and its way of asking again, which gives the history back."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Literal, cast

import instructor
import openai
import pytest
from instructor import Mode
from instructor.core.exceptions import IncompleteOutputException, InstructorError
from pydantic import field_validator

from forms import CALL_TOKENS, COPY_OBJECT, KEY, MODEL, QUESTION, Closed, Weather
from wire import PATIENCE, Wire


@pytest.fixture
def client(wire: Wire) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=wire.url, api_key=KEY, max_retries=0, timeout=PATIENCE) as made:
        yield made


def fields(**changes: Any) -> Any:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": CALL_TOKENS}
    return asked | {"temperature": 0, "seed": 3, "response_model": Weather, "max_retries": 1} | changes


FORCED = [Mode.TOOLS, Mode.JSON_SCHEMA]
"""In these modes the server sees to the form; in the others the model must be able to write it."""
WRITTEN = [Mode.JSON, Mode.MD_JSON]


@pytest.mark.parametrize("mode", FORCED)
def test_an_object(client: openai.OpenAI, mode: Mode) -> None:
    patched = instructor.from_openai(client, mode=mode)
    assert isinstance(patched.chat.completions.create(**fields()), Weather)
    made, raw = patched.chat.completions.create_with_completion(**fields())
    assert isinstance(made, Weather) and raw.usage.completion_tokens


@pytest.mark.parametrize("mode", FORCED)
def test_objects_that_grow(client: openai.OpenAI, mode: Mode) -> None:
    patched = instructor.from_openai(client, mode=mode)
    *_, last = patched.chat.completions.create_partial(**fields())
    assert Weather.model_validate(last.model_dump())


@pytest.mark.parametrize("mode", WRITTEN)
def test_an_object_that_the_model_must_see_to(client: openai.OpenAI, wire: Wire, mode: Mode) -> None:
    """What holds whatever it writes: every turn is taken, with what was wrong in the one before."""
    patched = instructor.from_openai(client, mode=mode)
    messages = [{"role": "user", "content": COPY_OBJECT}]
    with suppress(InstructorError):
        made = patched.chat.completions.create(**fields(messages=messages, max_tokens=200, max_retries=3))
        assert isinstance(made, Weather)
    assert {chat.status for chat in wire.chats} == {200}
    if mode is Mode.JSON:
        for chat in wire.chats:
            (choice,) = json.loads(chat.received)["choices"]
            content = choice["message"]["content"]
            assert content.lstrip().startswith("{")
            assert choice["finish_reason"] == "length" or isinstance(json.loads(content), dict)


def test_several_objects(client: openai.OpenAI) -> None:
    """A list is streamed object by object; it may hold none, and it need not come to an end."""
    patched = instructor.from_openai(client, mode=Mode.TOOLS)
    with suppress(IncompleteOutputException):
        made = list(cast(Any, patched.chat.completions.create_iterable(**fields())))
        assert all(isinstance(each, Weather) for each in made)


def test_parallel_tools(client: openai.OpenAI, wire: Wire) -> None:
    """Several tools, and a model that may choose; if it calls none, the client complains of that."""
    patched = instructor.from_openai(client, mode=Mode.PARALLEL_TOOLS)
    with suppress(InstructorError, TypeError):
        list(cast(Any, patched.chat.completions.create(**fields(response_model=Iterable[Weather]))))
    assert {chat.status for chat in wire.chats} == {200}


@pytest.mark.parametrize("mode", FORCED)
def test_asks_again_twice(client: openai.OpenAI, wire: Wire, mode: Mode) -> None:
    """Three turns: what does not validate goes back as the client found it, with what was wrong."""
    seen: list[str] = []

    class Picky(Closed):
        """The weather in a city."""

        city: Literal["Oslo", "Rome"]

        @field_validator("city")
        @classmethod
        def third_time(cls, value: str) -> str:
            seen.append(value)
            if len(seen) < 3:
                raise ValueError("that is not the one")
            return value

    patched = instructor.from_openai(client, mode=mode)
    assert isinstance(patched.chat.completions.create(**fields(response_model=Picky, max_retries=3)), Picky)
    assert len(wire.chats) == 3 and len(wire.chats[-1].messages) >= 5
