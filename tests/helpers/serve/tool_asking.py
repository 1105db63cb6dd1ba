"""Tools to ask for, templates that know of them, and models that always say the same."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from starlette.testclient import TestClient

from asking import CHAT, NotedGrammars, Scripted, chat, make_context, serving
from stridelm.api import LanguageModel
from stridelm.serve.schemas.chat import Function
from stridelm.serve.tools.forms import Call
from stridelm.types import Sequence

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/name"}}, "$defs": {"name": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CALLS = [Call("weather", {"city": "Zürich"}), Call("clock", {})]
FUNCTIONS = [Function(name="weather", parameters=CITY), Function(name="clock")]

LOOP = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}"
PLACE = "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
_CALLED = "{% for c in m['tool_calls'] or [] %}MARK{{ c['function']['arguments'] | tojson }}{% endfor %}"
END = "\n{% endfor %}"


def template(marker: str) -> str:
    return PLACE + LOOP + _CALLED.replace("MARK", marker) + END


@contextmanager
def scripted(
    model: LanguageModel, text: str, *, grammars: NotedGrammars | None = None, ending: str = "stop", size: int = 3
) -> Iterator[tuple[TestClient, Scripted]]:
    """A server whose model always says the same."""
    worker = Scripted(text, size=size, ending=ending)
    with serving(make_context(model, grammars=grammars, worker=worker)) as client:
        yield client, worker


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    reply = client.post(CHAT, json=chat(**{"tools": [WEATHER, CLOCK]} | fields))
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


def called(message: dict[str, Any]) -> list[Call]:
    return [
        Call(call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]


def gathered(sent: list[dict[str, Any]]) -> dict[str, Any]:
    """The choice that a stream's chunks make. A call's first piece has its id and name, the others arguments alone."""
    parts = [chunk["choices"][0] for chunk in sent]
    calls: list[dict[str, Any]] = []
    for part in parts:  # clients take the entries of a chunk for so many calls
        indexes = [piece["index"] for piece in part["delta"].get("tool_calls", ())]
        assert len(set(indexes)) == len(indexes)
    for piece in (piece for part in parts for piece in part["delta"].get("tool_calls", ())):
        if "id" in piece:
            assert piece["index"] == len(calls) and piece["type"] == "function" and piece["function"]["name"]
            calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
        else:
            assert piece == {"index": len(calls) - 1, "function": {"arguments": piece["function"]["arguments"]}}
            calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    content = "".join(part["delta"].get("content", "") for part in parts)
    message = {"role": "assistant", "content": content}
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    (reason,) = [part["finish_reason"] for part in parts if part["finish_reason"]]
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    """Ids are drawn anew each time."""
    message = dict(choice["message"])
    if "tool_calls" in message:
        message["tool_calls"] = [{**call, "id": None} for call in message["tool_calls"]]
    return {**choice, "message": message}


def prompt_of(model: LanguageModel, sequence: Sequence) -> str:
    return str(model.target.tokenizer.decode(sequence.tokens[: sequence.prompt_length]))


def accepts(grammar: str, text: str) -> bool:
    """Whether a text may be a whole answer."""
    tokenizer = LLTokenizer("byte")
    compiled = LLMatcher.grammar_from_lark(grammar)
    assert not LLMatcher.validate_grammar(compiled, tokenizer)
    matcher = LLMatcher(tokenizer, compiled)
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
