"""Streams whose events have names: what they say, and the replies that they build up, as clients do it."""

import json
from typing import Any

import orjson

Event = dict[str, Any]


def named_events(reply: Any) -> list[Event]:
    """The events of a stream. Each is named by its type."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    found: list[Event] = []
    for part in reply.text.strip().split("\n\n"):
        name, data = part.split("\n")
        found.append(orjson.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def built_response(events: list[Event]) -> dict[str, Any]:
    """The response that a stream of /v1/responses ends with, once all that came before agrees with it."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert all(event["response"]["status"] == "in_progress" for event in events[:2])
    items: list[dict[str, Any]] = []
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items) and event["item"]["status"] == "in_progress"
            items.append(event["item"])
            continue
        item = items[-1]  # one is open at a time
        assert event["output_index"] == len(items) - 1
        if kind == "output_item.done":
            assert event["item"] == item | {"status": event["item"]["status"]}
            items[-1] = event["item"]
            continue
        assert event["item_id"] == item["id"]
        if kind.startswith("function_call_arguments"):
            _grow_call(item, kind, event)
        else:
            _grow_text(item, kind, event)
    last = events[-1]
    assert last["type"] == f"response.{last['response']['status']}" and last["response"]["output"] == items
    return last["response"]


def _grow_call(item: dict[str, Any], kind: str, event: Event) -> None:
    if kind.endswith("delta"):
        assert event["delta"]
        item["arguments"] += event["delta"]
    else:
        assert (event["name"], event["arguments"]) == (item["name"], item["arguments"])


def _grow_text(item: dict[str, Any], kind: str, event: Event) -> None:
    assert event["content_index"] == 0
    match kind:
        case "content_part.added":
            assert item["content"] == []
            item["content"].append(event["part"])
        case "output_text.delta":
            assert event["delta"] or event["logprobs"]
            item["content"][0]["text"] += event["delta"]
            item["content"][0]["logprobs"] += event["logprobs"]
        case "output_text.done":
            assert item["content"][0] == item["content"][0] | {"text": event["text"], "logprobs": event["logprobs"]}
        case _:
            assert kind == "content_part.done" and item["content"] == [event["part"]]


def built_message(events: list[Event]) -> dict[str, Any]:
    """The message that a stream of /v1/messages builds up."""
    first, *inner, delta, last = events
    assert first["type"] == "message_start" and last == {"type": "message_stop"} and delta["type"] == "message_delta"
    message: dict[str, Any] = first["message"]
    assert message["usage"]["output_tokens"] == 0 and message["stop_reason"] is None
    is_open, written = False, ""
    for event in inner:
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open and event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            is_open, written = True, ""
            continue
        assert is_open and event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        if kind == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                assert block["input"] == {}
                block["input"] = json.loads(written) if written else {}
        elif block["type"] == "text":
            assert event["delta"]["type"] == "text_delta" and event["delta"]["text"]
            block["text"] += event["delta"]["text"]
        else:
            assert event["delta"]["type"] == "input_json_delta" and event["delta"]["partial_json"]
            written += event["delta"]["partial_json"]
    assert not is_open
    return message | delta["delta"] | {name: delta[name] for name in ("usage", "metrics", "stride")}
