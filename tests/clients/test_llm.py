"""llm, on the command line as its users have it. It has no way to make a model call a tool: the model copies a call."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest

from forms import ANSWERS, CALL_TOKENS, COPY_CALL, KEY, MODEL, QUESTION, SYSTEM, Weather
from wire import PATIENCE, Wire

WAYS: dict[str, list[str]] = {"stream": [], "whole": ["--no-stream"], "async": ["--async"]}
FUNCTIONS = f"""
def weather(city: str, unit: str) -> str:
    "The weather in a city."
    return {ANSWERS["weather"]!r}

def clock() -> str:
    "The time of day."
    return {ANSWERS["clock"]!r}
"""


class Command(Protocol):
    """Run `llm` with these arguments; what it printed."""

    def __call__(self, *arguments: str, tokens: int = 16) -> str: ...


@pytest.fixture
def llm(wire: Wire, tmp_path: Path) -> Command:
    entry = {"model_id": "stride", "model_name": MODEL, "api_base": wire.url, "api_key_name": "stride"}
    models = [entry | {"supports_schema": True, "supports_tools": True}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    (tmp_path / "keys.json").write_text(json.dumps({"stride": KEY}))
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path)}

    def run(*arguments: str, tokens: int = 16) -> str:
        options = ["-o", "max_tokens", str(tokens), "-o", "temperature", "0", "-o", "seed", "3"]
        command = [str(Path(sys.prefix) / "bin" / "llm"), "-m", "stride", *options, *arguments]
        done = subprocess.run(
            command, env=environment, input="", capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_chats_and_goes_on(llm: Command, wire: Wire) -> None:
    said = [llm(QUESTION, "-s", SYSTEM, *way) for way in WAYS.values()]
    assert said[0] and said == [said[0]] * len(WAYS)
    assert llm("-c", "And in Rome?")
    assert wire.chats[-1].roles[-3:] == ["user", "assistant", "user"]


@pytest.mark.parametrize("way", WAYS)
def test_structured_output(llm: Command, way: str) -> None:
    schema = json.dumps(Weather.model_json_schema())
    assert Weather.model_validate_json(llm(QUESTION, "--schema", schema, *WAYS[way], tokens=CALL_TOKENS))


def test_json_object(llm: Command) -> None:
    copied = 'Repeat this and nothing else: {"city": "Oslo", "unit": "C"}'
    assert isinstance(json.loads(llm(copied, "-o", "json_object", "1", tokens=CALL_TOKENS)), dict)


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_of_tools(llm: Command, wire: Wire, way: str) -> None:
    """A call, its answer, whatever the model says to it; then a second call, with all of that in the history."""
    options = ["--functions", FUNCTIONS, "--chain-limit", "0", *WAYS[way]]
    llm(COPY_CALL, *options, tokens=CALL_TOKENS)
    assert called(wire.chats[-1].messages)
    turns = len(wire.chats)
    llm("-c", COPY_CALL, *options, tokens=CALL_TOKENS)
    assert len(wire.chats) >= turns + 1 and len(called(wire.chats[-1].messages)) >= 2
    assert {chat.status for chat in wire.chats} == {200}
    for chat in wire.chats:
        answered = [message["tool_call_id"] for message in chat.messages if message["role"] == "tool"]
        assert answered == [call["id"] for call in called(chat.messages)]


def called(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of a history."""
    return [call for message in messages for call in message.get("tool_calls") or ()]
