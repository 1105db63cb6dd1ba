"""/v1/chat/completions: a chat goes in, the assistant's message comes out."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from starlette.responses import Response

from stridelm.serve.chat_answers import ChatAnswers, Part, Translated, open_chat
from stridelm.serve.context import Context
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.prompts import Prompts
from stridelm.serve.replies import Envelope
from stridelm.serve.respond import Reply, Strides, respond
from stridelm.serve.schemas.chat import ChatRequest
from stridelm.serve.tools.forms import ToolFormat
from stridelm.serve.tools.reader import CallPart
from stridelm.serve.trace import Forward
from stridelm.types import Stride


async def answer_chat(
    http: Request, context: Context, prompts: Prompts, vocabulary: Vocabulary, request: ChatRequest
) -> Response:
    answers = await open_chat(context, prompts, vocabulary, Translated(request))
    writer = ChatWriter(context, answers)
    return await respond(http, answers.streams, writer, context.settings, streams=bool(request.stream))


@dataclass(slots=True)
class _Delta:
    """What one stride adds to a message, in the format of streams."""

    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    trace: list[Forward] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.calls or self.logprobs or self.trace or self.finish_reason)

    def add(self, delta: "_Delta") -> None:
        self.text += delta.text
        self.calls += delta.calls
        self.logprobs += delta.logprobs
        self.trace += delta.trace
        self.finish_reason = delta.finish_reason


class ChatWriter:
    """The reply to one request."""

    failure = None

    def __init__(self, context: Context, answers: ChatAnswers) -> None:
        request = answers.request
        self._answers, self._request, self._report = answers, request, answers.report
        self._count = request.count
        kind = "chat.completion.chunk" if request.stream else "chat.completion"
        self._envelope = Envelope(context, request, kind, "chatcmpl")

    async def whole(self, strides: Strides) -> Reply:
        messages = [_Delta() for _ in range(self._count)]
        async for index, stride in strides:
            messages[index].add(self._delta(index, stride))
        trace = [forward for message in messages for forward in message.trace]
        choices = [self._choice(index, message) for index, message in enumerate(messages)]
        return self._envelope.around(choices, **self._report.whole(trace))

    async def chunks(self, strides: Strides) -> AsyncIterator[Reply]:
        """Each answer begins with a chunk that has only its role."""
        unstarted, unfinished = set(range(self._count)), self._count
        async for index, stride in strides:
            if index in unstarted:
                unstarted.remove(index)
                yield self._opening(index)
            delta = self._delta(index, stride)
            unfinished -= delta.finish_reason is not None
            if not delta.is_empty:
                yield self._chunk(index, delta, is_last=not unfinished)
        for index in sorted(unstarted):  # if no tokens were requested
            yield self._opening(index)
            yield self._chunk(index, _Delta(finish_reason="length"), is_last=index == self._count - 1)
        if self._request.includes_usage:
            yield self._envelope.around([], usage=self._report.usage())

    def _delta(self, index: int, stride: Stride) -> _Delta:
        part, use = self._answers.part(index, stride), self._answers.use
        text = "".join(piece for piece in part.pieces if isinstance(piece, str))
        calls = [_call(call, use.form) for call in _joined(part)] if use else []
        return _Delta(text, calls, part.logprobs, part.trace, part.finish_reason)

    def _choice(self, index: int, delta: _Delta) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": delta.text}
        if delta.calls:
            message |= {"content": delta.text or None, "tool_calls": _whole(delta.calls)}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(delta),
            "finish_reason": delta.finish_reason or "length",
        }

    def _opening(self, index: int) -> Reply:
        shown = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": shown, "logprobs": None, "finish_reason": None}
        return self._envelope.around([choice], **self._report.chunk([], is_last=False))

    def _chunk(self, index: int, delta: _Delta, *, is_last: bool) -> Reply:
        shown: dict[str, Any] = {"content": delta.text} if delta.text else {}
        if delta.calls:
            shown["tool_calls"] = delta.calls
        choice = {
            "index": index,
            "delta": shown,
            "logprobs": self._logprobs(delta),
            "finish_reason": delta.finish_reason,
        }
        return self._envelope.around([choice], **self._report.chunk(delta.trace, is_last=is_last))

    def _logprobs(self, delta: _Delta) -> dict[str, Any] | None:
        return {"content": delta.logprobs} if self._request.logprobs else None


def _joined(part: Part) -> list[CallPart]:
    """The pieces of each call, joined to one: clients accept only one per chunk."""
    joined: dict[int, CallPart] = {}
    for piece in (piece for piece in part.pieces if isinstance(piece, CallPart)):
        before = joined.get(piece.index, CallPart(piece.index, piece.name, ""))
        joined[piece.index] = CallPart(piece.index, before.name, before.arguments + piece.arguments)
    return list(joined.values())


def _call(call: CallPart, form: ToolFormat) -> dict[str, Any]:
    """A piece of a call, in the format of streams."""
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {
        "index": call.index,
        "id": form.new_id(),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _whole(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The complete calls, joined from their pieces."""
    calls = [{name: delta[name] for name in ("id", "type", "function")} for delta in deltas if "id" in delta]
    for index, call in enumerate(calls):
        written = (delta["function"]["arguments"] for delta in deltas if delta["index"] == index)
        call["function"] = {"name": call["function"]["name"], "arguments": "".join(written)}
    return calls
