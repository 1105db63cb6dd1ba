"""How /v1/responses writes an answer: as one object, or as events that build it up."""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stridelm.serve.blocks import Block, Change, WholeAnswer
from stridelm.serve.chat_answers import ChatAnswers
from stridelm.serve.errors import ApiError
from stridelm.serve.respond import Reply
from stridelm.serve.responses.request import FunctionTool, ResponsesRequest

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Ids:
    """Those of an item; `call` is the call's own, by which its result refers to it."""

    item: str
    call: str = ""


class ResponseForm:
    """The reply to one request. Its items are the answer's blocks."""

    def __init__(self, request: ResponsesRequest, answers: ChatAnswers) -> None:
        self._request, self._answers = request, answers
        self._created = int(time.time())
        self._id = _new_id("resp")
        self._items: list[_Ids] = []
        self._number = 0
        """The next event's."""

    def opening(self) -> Iterator[Reply]:
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._response("in_progress", []))

    def change(self, change: Change, answer: WholeAnswer | None) -> Iterator[Reply]:
        block = change.block
        if change.what == "opened":
            is_call = block.name is not None
            ids = _Ids(_new_id("fc"), self._answers.new_call_id()) if is_call else _Ids(_new_id("msg"))
            self._items.append(ids)
            item = self._item(block, "in_progress")
            yield self._event("response.output_item.added", output_index=block.index, item=item)
        place = {"output_index": block.index, "item_id": self._items[block.index].item}
        yield from self._call_events(change, place) if block.name is not None else self._text_events(change, place)
        if change.what == "closed":
            item = self._item(block, _status(answer) if answer else "completed")
            yield self._event("response.output_item.done", output_index=block.index, item=item)

    def _call_events(self, change: Change, place: dict[str, Any]) -> Iterator[Reply]:
        """The events within a call."""
        kind, block = "response.function_call_arguments", change.block
        if change.what == "grew":
            yield self._event(f"{kind}.delta", **place, delta=change.piece)
        elif change.what == "closed":
            yield self._event(f"{kind}.done", **place, name=block.name, arguments=block.content)

    def _text_events(self, change: Change, place: dict[str, Any]) -> Iterator[Reply]:
        """The events within a message, which has one part."""
        block, place = change.block, place | {"content_index": 0}
        if change.what == "opened":
            yield self._event("response.content_part.added", **place, part=_part(block))
        elif change.what == "grew":
            yield self._event("response.output_text.delta", **place, delta=change.piece, logprobs=change.logprobs)
        else:
            done = {"text": block.content, "logprobs": block.logprobs}
            yield self._event("response.output_text.done", **place, **done)
            yield self._event("response.content_part.done", **place, part=_part(block))

    def ending(self, answer: WholeAnswer) -> Iterator[Reply]:
        yield self._event(f"response.{_status(answer)}", response=self.whole(answer))

    def whole(self, answer: WholeAnswer) -> Reply:
        status, last = _status(answer), len(answer.blocks) - 1
        output = [self._item(each, status if each.index == last else "completed") for each in answer.blocks]
        counted = self._answers.report.whole(answer.trace)
        more = counted | {"usage": _usage(counted["usage"]), "completed_at": int(time.time())}
        if status == "incomplete":
            more["incomplete_details"] = {"reason": "max_output_tokens"}
        return self._response(status, output) | more

    def failure(self, error: ApiError) -> Reply:
        said = {"code": "server_error", "message": error.message}
        return self._event("response.failed", response=self._response("failed", []) | {"error": said})

    def _event(self, kind: str, **fields: Any) -> Reply:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _item(self, block: Block, status: str) -> Item:
        ids = self._items[block.index]
        if block.name is None:
            content = [] if status == "in_progress" else [_part(block)]
            return {"id": ids.item, "type": "message", "status": status, "role": "assistant", "content": content}
        called = {"call_id": ids.call, "name": block.name, "arguments": block.content}
        return {"id": ids.item, "type": "function_call", "status": status, **called}

    def _response(self, status: str, output: list[Item]) -> Reply:
        """The reply's fields that are known from the beginning: what it is, and what was requested."""
        request = self._request
        text, reasoning = request.text, request.reasoning
        form = text.format.model_dump(by_alias=True, exclude_none=True) if text and text.format else {"type": "text"}
        choice = request.tool_choice or "auto"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._answers.context.named(request.model),
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
            "store": False,
            "background": False,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "top_logprobs": request.top_logprobs or 0,
            "text": {"format": form},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [_tool(tool) for tool in request.tools or ()],
            "truncation": "disabled",
            "usage": None,
        }


def _part(block: Block) -> dict[str, Any]:
    return {"type": "output_text", "text": block.content, "annotations": [], "logprobs": block.logprobs}


def _tool(tool: FunctionTool) -> dict[str, Any]:
    about = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", **about, "strict": bool(tool.strict)}


def _status(answer: WholeAnswer) -> str:
    return "incomplete" if answer.finish_reason == "length" else "completed"


def _usage(counted: dict[str, Any]) -> dict[str, Any]:
    """The counts under this API's names."""
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": counted["prompt_tokens_details"],
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
