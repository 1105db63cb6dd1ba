"""A real server and openai's client: what it sends is taken, what it gets it can read. Other clients are in clients/,
in an environment of their own (`make test-clients`)."""

import asyncio
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast

import openai
import pytest
from pydantic import BaseModel, Field

from real_server import NAME, PATIENCE, ThreadServer, serve_in_thread
from stridelm.api import LanguageModel
from stridelm.serve.settings import ServeSettings

KEY = "a key for friends"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
EXACT = ("auto", "autoregressive", "self", "heads", "draft", "ngram", "ensemble")
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": PLACE}},
    {"type": "function", "function": {"name": "clock"}},
]


class Place(BaseModel):
    """Where it is."""

    city: Annotated[str, Field(max_length=8)]
    unit: Literal["C", "F"]


@pytest.fixture(scope="module")
def server(roomy_model: LanguageModel) -> Iterator[ThreadServer]:
    with serve_in_thread(roomy_model, ServeSettings(port=0, grace=0, api_key=KEY)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ThreadServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE) as made:
        yield made


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": NAME, "messages": HELLO, "max_tokens": 12, "seed": 3} | fields)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.create(**{"model": NAME, "prompt": "hello", "max_tokens": 12, "seed": 3} | fields)


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def keeps_to_place(arguments: str) -> bool:
    return Place.model_validate_json(arguments).model_dump() == json.loads(arguments)


def test_openai_lists_the_model(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (NAME, "model", "stridelm")
    assert client.models.retrieve(NAME) == model
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("org/other")
    assert unknown.value.code == "model_not_found"


def test_openai_s_own_fields_are_taken(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "user": "me", "store": False, "metadata": {"a": "b"}, "service_tier": "auto", "reasoning_effort": "low",
        "verbosity": "low", "modalities": ["text"], "safety_identifier": "x", "prompt_cache_key": "x",
    }  # fmt: skip
    reply = chat(client, **fields)
    assert reply.choices[0].message.content == chat(client).choices[0].message.content
    assert set(reply.stride["ignored"]) == fields.keys()
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0
    assert reply.usage.completion_tokens_details.accepted_prediction_tokens == 0


def test_openai_chats(client: openai.OpenAI) -> None:
    reply = chat(client)
    (choice,) = reply.choices
    assert choice.message.role == "assistant" and choice.message.content and choice.finish_reason == "length"
    assert reply.usage.completion_tokens == 12 and reply.model == NAME
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 12


def test_openai_streams_what_the_reply_says(client: openai.OpenAI) -> None:
    said = chat(client).choices[0].message.content
    chunks = list(chat(client, stream=True))
    assert text_of(chunks) == said and len(chunks) > 1
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == "length"
    counted = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert text_of(counted) == said
    assert counted[-1].choices == [] and counted[-1].usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in counted[:-1])


def test_openai_gathers_a_stream(client: openai.OpenAI) -> None:
    """By the helper that puts the chunks together; it takes none for whole that ended by its length."""
    stop = chat(client).choices[0].message.content[6]
    with client.chat.completions.stream(model=NAME, messages=HELLO, max_tokens=12, seed=3, stop=stop) as stream:
        written = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert written == final.choices[0].message.content == chat(client, stop=stop).choices[0].message.content


def test_openai_gets_several_answers_and_stops(client: openai.OpenAI) -> None:
    several = [choice.message.content for choice in chat(client, n=2).choices]
    assert len(several) == 2 and several[0] != several[1]
    stop = several[0][4]
    stopped = chat(client, stop=stop).choices[0]
    assert stopped.finish_reason == "stop" and stopped.message.content == several[0].split(stop)[0]


def test_openai_gets_the_same_of_every_exact_decoder(client: openai.OpenAI) -> None:
    said = {
        chat(client, temperature=0.8, extra_body={"stride": {"decoder": decoder}}).choices[0].message.content
        for decoder in (*EXACT, *EXACT)
    }
    assert len(said) == 1
    assert chat(client, temperature=0.8, seed=4).choices[0].message.content not in said


def test_openai_reads_how_decoding_went(client: openai.OpenAI) -> None:
    reply = chat(client, extra_body={"stride": {"decoder": "self", "k": 3, "trace": True}})
    assert reply.stride["exact"] is True and reply.stride["decoder"] == "self" and reply.stride["seed"] == 3
    assert len(reply.stride["trace"]) == reply.stride["forwards"]
    assert reply.metrics["speculative_decoding"]["num_spec_steps"] > 0
    last = list(chat(client, stream=True, extra_body={"stride": {"decoder": "ngram"}}))[-1]
    assert last.stride["decoder"] == "ngram" and "speculative_decoding" in last.metrics


def test_openai_gets_logprobs(client: openai.OpenAI) -> None:
    (choice,) = chat(client, logprobs=True, top_logprobs=3).choices
    places = choice.logprobs.content
    assert len(places) == 12
    for place in places:
        assert place.logprob <= 0 and len(place.top_logprobs) == 3
        assert place.top_logprobs[0].logprob >= place.logprob


def called(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]


def test_openai_s_tools_are_called(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"tools": TOOLS, "max_tokens": 300, "parallel_tool_calls": False}
    (choice,) = chat(client, **fields, tool_choice="required").choices
    assert choice.finish_reason == "tool_calls" and called(choice.message)[0][0] in ("weather", "clock")
    named = {"type": "function", "function": {"name": "weather"}}
    (choice,) = chat(client, **fields, tool_choice=named).choices
    ((name, arguments),) = called(choice.message)
    assert name == "weather" and Place.model_validate(arguments)
    # What the client was given it gives back, and with it what the call gave.
    call = choice.message.tool_calls[0]
    answered = [*HELLO, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    assert chat(client, messages=answered).choices[0].finish_reason == "length"
    with client.chat.completions.stream(
        model=NAME, messages=HELLO, tools=TOOLS, tool_choice=cast(Any, named), max_tokens=300, seed=3
    ) as stream:
        final = stream.get_final_completion()
    assert called(final.choices[0].message) == [(name, arguments)]


def test_openai_gets_the_form_it_asks_for(client: openai.OpenAI, server: ThreadServer) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": PLACE, "strict": True}}
    (choice,) = chat(client, response_format=form, max_tokens=200).choices
    assert choice.finish_reason == "stop" and keeps_to_place(choice.message.content)
    parsed = client.chat.completions.parse(model=NAME, messages=HELLO, response_format=Place, max_tokens=200, seed=3)
    assert isinstance(parsed.choices[0].message.parsed, Place)
    (closing,) = server.context.model.target.tokenizer.encode("}")
    # The bias closes objects early: a random model has no reason to.
    (choice,) = chat(
        client, response_format={"type": "json_object"}, logit_bias={str(closing): 100}, max_tokens=200
    ).choices
    assert choice.finish_reason == "stop" and isinstance(json.loads(choice.message.content), dict)


def test_openai_raises_what_was_meant(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as wrong:
        client.with_options(api_key="a wrong one").models.list()
    assert wrong.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as unknown:
        chat(client, model="gpt-7")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    for field, value in {"temperature": -1, "n": 0, "max_tokens": 10**6, "web_search_options": {}}.items():
        with pytest.raises(openai.BadRequestError) as bad:
            chat(client, **{field: value})
        assert bad.value.param == field and field in bad.value.message
    with pytest.raises(openai.BadRequestError, match=r"modalities\.1"):
        chat(client, modalities=["text", "audio"], audio={"voice": "alloy", "format": "mp3"})
    with pytest.raises(openai.BadRequestError) as bad:
        chat(client, extra_body={"stride": {"decoder": "psychic"}})
    assert str(bad.value.param).startswith("stride")


def test_openai_completes(client: openai.OpenAI, server: ThreadServer) -> None:
    reply = complete(client)
    said = reply.choices[0].text
    assert said and reply.object == "text_completion" and reply.usage.completion_tokens == 12
    assert "".join(chunk.choices[0].text for chunk in complete(client, stream=True)) == said
    ids = server.context.model.target.tokenizer.encode("hello")
    assert [choice.text for choice in complete(client, prompt=["hello", "hello"]).choices] == [said, said]
    assert [choice.text for choice in complete(client, prompt=[ids, ids]).choices] == [said, said]
    assert complete(client, prompt=ids).choices[0].text == said
    echoed = complete(client, echo=True, logprobs=2).choices[0]
    assert echoed.text == "hello" + said
    assert len(echoed.logprobs.tokens) == len(ids) + 12 and echoed.logprobs.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in echoed.logprobs.token_logprobs[1:])


def test_openai_asks_for_many_at_once(server: ThreadServer, client: openai.OpenAI) -> None:
    async def ask() -> tuple[list[str], str]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE
        ) as many:
            fields: dict[str, Any] = {"model": NAME, "messages": HELLO, "max_tokens": 12}
            asked = [many.chat.completions.create(**fields, seed=seed) for seed in (3, 4, 3, 5)]
            whole = [reply.choices[0].message.content for reply in await asyncio.gather(*asked)]
            chunks = [chunk async for chunk in await many.chat.completions.create(**fields, seed=3, stream=True)]
            return whole, text_of(chunks)

    whole, streamed = asyncio.run(ask())
    assert whole[0] == whole[2] == streamed == chat(client).choices[0].message.content
    assert len(set(whole)) == 3
