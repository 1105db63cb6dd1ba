"""How /v1/messages writes an answer: as one message, or as events that build it up."""

import secrets
from collections.abc import Iterator
from typing import Any

import orjson

from stridelm.serve.blocks import Block, Change, WholeAnswer
from stridelm.serve.chat_answers import ChatAnswers
from stridelm.serve.errors import ApiError
from stridelm.serve.http.json_body import depth
from stridelm.serve.prompts import MAX_ARGUMENT_DEPTH
from stridelm.serve.respond import Reply

_INVALID = "INVALID_JSON"
"""The key of arguments that are not an object: cut off, or not JSON. Anthropic proposes it for the way back."""
_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


class MessageForm:
    """The reply to one request. Its content is the answer's blocks."""

    def __init__(self, answers: ChatAnswers) -> None:
        self._answers = answers
        self._id = f"msg_{secrets.token_hex(16)}"
        self._calls: dict[int, str] = {}
        """The ids of calls, by their blocks' indexes."""

    def opening(self) -> Iterator[Reply]:
        usage = _usage(self._answers.report.usage())
        yield {"type": "message_start", "message": self._message() | {"usage": usage}}

    def change(self, change: Change, answer: WholeAnswer | None) -> Iterator[Reply]:
        block = change.block
        place = {"index": block.index}
        match change.what:
            case "opened":
                if block.name is not None:
                    self._calls[block.index] = self._answers.new_call_id()
                yield {"type": "content_block_start", **place, "content_block": self._block(block)}
            case "grew" if block.name is None:
                yield {"type": "content_block_delta", **place, "delta": {"type": "text_delta", "text": change.piece}}
            case "grew":
                delta = {"type": "input_json_delta", "partial_json": change.piece}
                yield {"type": "content_block_delta", **place, "delta": delta}
            case "closed":
                yield {"type": "content_block_stop", **place}

    def ending(self, answer: WholeAnswer) -> Iterator[Reply]:
        yield {"type": "message_delta", "delta": self._reason(answer), **self._counted(answer)}
        yield {"type": "message_stop"}

    def whole(self, answer: WholeAnswer) -> Reply:
        content = [self._block(block) for block in answer.blocks]
        return self._message() | {"content": content} | self._reason(answer) | self._counted(answer)

    def failure(self, error: ApiError) -> Reply:
        return error.messages_body()

    def _message(self) -> Reply:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._answers.context.named(self._answers.request.model),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _block(self, block: Block) -> dict[str, Any]:
        if block.name is None:
            return {"type": "text", "text": block.content}
        called = {"id": self._calls[block.index], "name": block.name}
        return {"type": "tool_use", **called, "input": _input(block.content)}

    def _reason(self, answer: WholeAnswer) -> dict[str, Any]:
        """Why the answer ended."""
        (sequence,) = self._answers.sequences
        if answer.finish_reason == "stop" and sequence.stopped_by is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": sequence.stopped_by}
        reason = _REASONS[answer.finish_reason]
        if reason == "max_tokens" and sequence.params.max_tokens < (self._answers.request.max_tokens or 0):
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": None}

    def _counted(self, answer: WholeAnswer) -> dict[str, Any]:
        counted = self._answers.report.whole(answer.trace)
        return counted | {"usage": _usage(counted["usage"])}


def _input(arguments: str) -> dict[str, Any]:
    """A call's arguments as an object."""
    try:
        value = orjson.loads(arguments) if arguments else {}
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) and depth(value) <= MAX_ARGUMENT_DEPTH else {_INVALID: arguments}


def _usage(counted: dict[str, Any]) -> dict[str, Any]:
    """The counts under this API's names: tokens from the cache are not part of `input_tokens`."""
    cached = counted["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counted["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": counted["completion_tokens"],
    }
