"""Clients for JavaScript: openai and the AI SDK. Each test runs a part of a script in node/, which prints JSON."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forms import (
    ANSWERS,
    CALL_TOKENS,
    COPY_CALL,
    FINISHED,
    KEY,
    MODEL,
    QUESTION,
    SYSTEM,
    Weather,
    chat,
    check_call,
    tools,
)
from wire import PATIENCE, Wire

HERE = Path(__file__).parent
PACKAGES = Path(sys.prefix) / "npm"
WAYS = ["whole", "stream"]
ROLES = ["system", "user", "assistant", "tool", "assistant", "tool"]
CHAT_ROLES = ["system", "user", "assistant", "user"]
CALLED = ["function_call", "function_call_output"]
ROLES_OF = {
    "compatible": ROLES,
    "openai": ROLES,
    "responses": ["system", "user", *CALLED, *CALLED],
    "anthropic": ["user", "assistant", "user", "assistant", "user"],
}
"""What the last request of a loop of tools says, by the AI SDK's provider."""


@pytest.fixture(scope="session")
def scripts() -> Path:
    """The scripts beside the packages that they import: node looks for those from where a script lies."""
    return Path(shutil.copytree(HERE / "node", PACKAGES / "scripts", dirs_exist_ok=True))


@pytest.fixture
def node(scripts: Path, wire: Wire) -> Any:
    """Runs a part of a script with its options, and gives what it printed."""
    forms = {"system": SYSTEM, "question": QUESTION, "chat": chat(), "tools": tools(), "answers": ANSWERS}
    environment = os.environ | {
        "STRIDELM_URL": wire.url,
        "STRIDELM_KEY": KEY,
        "STRIDELM_MODEL": MODEL,
        "STRIDELM_FORMS": json.dumps(forms | {"callTokens": CALL_TOKENS, "copyCall": COPY_CALL}),
    }
    program = Path(sys.prefix) / "bin" / "node"

    def run(script: str, *options: str) -> Any:
        command = [str(program), f"{script}.mjs", *options]
        done = subprocess.run(
            command, cwd=scripts, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def check_loop(result: dict[str, Any], wire: Wire, roles: list[str] = ROLES) -> None:
    """Two calls, then text, and a history as long."""
    assert [call["name"] for call in result["calls"]] == ["weather", "clock"]
    for call in result["calls"]:
        check_call(call["name"], call["arguments"])
    assert result["text"]
    assert len(wire.chats) == 3 and wire.chats[-1].roles == roles


# openai


def test_openai_finds_the_model(node: Any) -> None:
    assert node("openai", "models") == {"id": MODEL}


def test_openai_chats_and_streams(node: Any) -> None:
    whole = node("openai", "chat", "whole")
    assert whole["text"] and whole["finish"] in FINISHED
    assert node("openai", "chat", "stream") == whole
    counted = node("openai", "usage")
    assert counted["text"] == whole["text"] and 1 <= counted["usage"]["completion_tokens"] <= 16


def test_openai_gets_an_object(node: Any) -> None:
    assert Weather.model_validate(node("openai", "object"))


@pytest.mark.parametrize("way", WAYS)
def test_openai_loops_over_tools(node: Any, wire: Wire, way: str) -> None:
    result = node("openai", "loop", way)
    check_loop(result, wire)
    assert {call["finish"] for call in result["calls"]} == {"tool_calls"} and result["finish"] in FINISHED


@pytest.mark.parametrize("way", WAYS)
def test_openai_runs_tools(node: Any, wire: Wire, way: str) -> None:
    result = node("openai", "runner", way)
    assert len(result["calls"]) >= 3 and result["roles"].count("assistant") == 3
    for call in result["calls"]:
        check_call(call["name"], call["arguments"])
    assert len(wire.chats) == 3


@pytest.mark.parametrize("way", WAYS)
def test_openai_responds(node: Any, wire: Wire, way: str) -> None:
    answer = node("openai", "respond", way)
    assert answer == node("openai", "respond", "whole") and answer["status"] in ("completed", "incomplete")
    result = node("openai", "respondLoop", way)
    assert [call["name"] for call in result["calls"]] == ["weather", "clock"] and result["text"]
    for call in result["calls"]:
        check_call(call["name"], call["arguments"])
        assert call["finish"] == "completed"
    assert wire.chats[-1].roles == ROLES_OF["responses"]


def test_openai_responds_with_an_object(node: Any) -> None:
    assert Weather.model_validate(node("openai", "respondObject"))


# The AI SDK

each = pytest.mark.parametrize("provider", list(ROLES_OF))
either = pytest.mark.parametrize("way", WAYS)


@each
def test_ai_sdk_chats_and_streams(node: Any, provider: str) -> None:
    whole, streamed = (node("ai_sdk", "chat", provider, way) for way in WAYS)
    assert whole["text"] and whole["finish"] in FINISHED and 1 <= whole["usage"]["outputTokens"] <= 16
    assert (streamed["text"], streamed["finish"]) == (whole["text"], whole["finish"])
    assert streamed["usage"]["outputTokens"] == whole["usage"]["outputTokens"]


@each
@either
def test_ai_sdk_goes_on(node: Any, wire: Wire, provider: str, way: str) -> None:
    assert node("ai_sdk", "again", provider, way)["text"]
    assert wire.chats[-1].roles == (["user", "assistant", "user"] if provider == "anthropic" else CHAT_ROLES)


@each
@either
def test_ai_sdk_gets_an_object(node: Any, provider: str, way: str) -> None:
    assert Weather.model_validate(node("ai_sdk", "object", provider, way))


@each
@either
def test_ai_sdk_loops_over_tools(node: Any, wire: Wire, provider: str, way: str) -> None:
    result = node("ai_sdk", "loop", provider, way)
    check_loop(result, wire, ROLES_OF[provider])
    assert result["finish"][:2] == ["tool-calls"] * 2 and result["finish"][2] in FINISHED


@each
@either
def test_ai_sdk_requires_tools(node: Any, provider: str, way: str) -> None:
    result = node("ai_sdk", "required", provider, way)
    assert len(result["calls"]) >= 2 and result["finish"] == ["tool-calls"] * 2
    for call in result["calls"]:
        check_call(call["name"], call["arguments"])


@each
@either
def test_ai_sdk_calls_by_the_model_s_own_choice(node: Any, provider: str, way: str) -> None:
    result = node("ai_sdk", "free", provider, way)
    assert result["calls"][0] == {"name": "weather", "arguments": {"city": "Oslo", "unit": "C"}}
    assert result["finish"][0] == "tool-calls"


@each
@either
def test_ai_sdk_gets_an_object_after_tools(node: Any, wire: Wire, provider: str, way: str) -> None:
    result = node("ai_sdk", "output", provider, way)
    check_call("weather", result["calls"][0]["arguments"])
    assert Weather.model_validate(result["output"])
    assert len(wire.chats) == 2
