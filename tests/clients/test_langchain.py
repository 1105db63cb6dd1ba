"""langchain: ChatOpenAI with its messages, tools and structured outputs, and an agent."""

import asyncio
from functools import reduce
from operator import add
from typing import Any, Literal, cast

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, wrap_model_call
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from forms import (
    ANSWERS,
    CALL_TOKENS,
    COPY_OBJECT,
    FINISHED,
    KEY,
    MODEL,
    QUESTION,
    SYSTEM,
    Clock,
    Weather,
    check_call,
)
from wire import PATIENCE, Wire


@tool(args_schema=Weather)
def weather(city: Literal["Oslo", "Rome"], unit: Literal["C", "F"]) -> str:
    """The weather in a city."""
    assert city in ("Oslo", "Rome") and unit in ("C", "F")
    return ANSWERS["weather"]


@tool(args_schema=Clock)
def clock() -> str:
    """The time of day."""
    return ANSWERS["clock"]


TOOLS = {"weather": weather, "clock": clock}


def model(wire: Wire, **settings: Any) -> ChatOpenAI:
    made = {"model": MODEL, "base_url": wire.url, "api_key": KEY, "max_retries": 0, "timeout": PATIENCE}
    return ChatOpenAI(**cast(Any, made | {"temperature": 0, "seed": 3, "max_tokens": CALL_TOKENS} | settings))


def invoke(runnable: Any, messages: list[Any]) -> Any:
    return runnable.invoke(messages)


def stream(runnable: Any, messages: list[Any]) -> Any:
    """The same by a stream, put together as langchain does it."""
    return reduce(add, runnable.stream(messages))


def chat() -> list[Any]:
    return [SystemMessage(SYSTEM), HumanMessage(QUESTION)]


def test_chats_and_streams(wire: Wire) -> None:
    short = model(wire, max_tokens=16, stream_usage=True)
    reply = short.invoke(chat())
    assert reply.content and reply.response_metadata["finish_reason"] in FINISHED
    assert reply.usage_metadata and 1 <= reply.usage_metadata["output_tokens"] <= 16
    streamed = stream(short, chat())
    assert isinstance(streamed, AIMessageChunk) and streamed.content == reply.content
    assert streamed.usage_metadata and streamed.usage_metadata["output_tokens"] == reply.usage_metadata["output_tokens"]
    assert asyncio.run(short.ainvoke(chat())).content == reply.content
    assert [each.content for each in short.batch([chat(), chat()])] == [reply.content] * 2


def test_an_answer_goes_back(wire: Wire) -> None:
    for get in (invoke, stream):
        short = model(wire, max_tokens=16)
        assert get(short, [*chat(), get(short, chat()), HumanMessage("And in Rome?", name="anna")]).content


@pytest.mark.parametrize("get", [invoke, stream])
def test_a_loop_of_tools(wire: Wire, get: Any) -> None:
    """Three turns, of AIMessages and ToolMessages."""
    messages = chat()
    for name in ("weather", "clock"):
        answer = get(model(wire).bind_tools(list(TOOLS.values()), tool_choice=name), messages)
        assert isinstance(answer, AIMessage) and not answer.invalid_tool_calls
        (call,) = answer.tool_calls
        assert call["name"] == name and answer.response_metadata["finish_reason"] == "tool_calls"
        check_call(name, call["args"])
        result = TOOLS[name].invoke(call)
        assert isinstance(result, ToolMessage)
        messages += [answer, result]
    last = get(model(wire, max_tokens=12).bind_tools(list(TOOLS.values()), tool_choice="none"), messages)
    assert last.content and not last.tool_calls
    assert wire.chats[-1].roles == ["system", "user", "assistant", "tool", "assistant", "tool"]


def test_any_and_strict_tools(wire: Wire) -> None:
    for strict in (True, None):
        bound = model(wire).bind_tools([weather], tool_choice="any", parallel_tool_calls=False, strict=strict)
        (call,) = bound.invoke(chat()).tool_calls
        check_call("weather", call["args"])


@pytest.mark.parametrize("get", [invoke, stream])
def test_an_agent(wire: Wire, get: Any) -> None:
    """Its loop is langchain's own; what it may choose is ours, since the model would not call by itself."""

    @wrap_model_call
    def forced(request: ModelRequest, handler: Any) -> Any:
        turn = sum(isinstance(message, ToolMessage) for message in request.messages)
        choice: Any = ["weather", "clock", "none"][turn]
        return handler(request.override(tool_choice=choice))

    agent: Any = create_agent(model(wire), list(TOOLS.values()), system_prompt=SYSTEM, middleware=[forced])
    question = {"messages": [HumanMessage(QUESTION)]}
    if get is invoke:
        messages = agent.invoke(question)["messages"]
    else:
        messages = list(agent.stream(question, stream_mode="values"))[-1]["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai", "tool", "ai"]
    assert messages[-1].content
    assert wire.chats[-1].roles == ["system", "user", "assistant", "tool", "assistant", "tool"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(wire: Wire, method: Any) -> None:
    for form in (Weather, Weather.model_json_schema()):
        got = model(wire).with_structured_output(form, method=method).invoke(chat())
        assert Weather.model_validate(got)
    strict = model(wire).with_structured_output(Weather, method=method, strict=True, include_raw=True)
    assert isinstance(cast(Any, strict.invoke(chat()))["parsed"], Weather)
    pieces = list(model(wire).with_structured_output(Weather, method=method).stream(chat()))
    assert isinstance(pieces[-1], Weather)


def test_json_mode(wire: Wire) -> None:
    formed = model(wire).with_structured_output(Weather, method="json_mode")
    assert isinstance(formed.invoke(COPY_OBJECT), Weather)
    assert isinstance(list(formed.stream(COPY_OBJECT))[-1], Weather)


def test_structured_output_with_tools(wire: Wire) -> None:
    """An object in the end, tools meanwhile."""
    formed = model(wire).with_structured_output(
        Weather, method="json_schema", tools=[weather], strict=True, include_raw=True
    )
    got = cast(Any, formed.invoke(chat()))
    assert isinstance(got["parsed"], Weather) or got["raw"].tool_calls
