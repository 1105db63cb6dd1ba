"""/v1/chat/completions: a chat goes in, the assistant's message comes out."""

import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import Request
from starlette.responses import Response

from stridelm.serve.context import Context
from stridelm.serve.errors import ApiError
from stridelm.serve.generation import Generation, check_queue
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.logprobs import chat_form, scored_stride
from stridelm.serve.prompts import Prompts, text_of
from stridelm.serve.reading import StrideStreams
from stridelm.serve.replies import Envelope, Report
from stridelm.serve.respond import Reply, Strides, respond
from stridelm.serve.schemas.chat import ChatRequest, Prediction
from stridelm.serve.tools.forms import ToolFormat
from stridelm.serve.tools.reader import CallPart
from stridelm.serve.tools.use import ToolUse, answer_grammar, tool_use
from stridelm.serve.trace import Forward, traced
from stridelm.types import Sequence, Stride


async def answer_chat(
    http: Request, context: Context, prompts: Prompts, vocabulary: Vocabulary, request: ChatRequest
) -> Response:
    generation = Generation(context, request, request.alternatives)
    asked, param = _max_tokens(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    use = tool_use(context.settings, prompts.talk, request)
    given = request.chat_template_kwargs, request.reasoning_effort
    prompt = await prompts.chat(
        request.messages,
        use.shown if use else [],
        opens_turn=request.opens_turn,
        continues=request.continues,
        variables=prompts.variables(*given),
    )
    room = generation.room(prompts.checked(prompt, "messages"), asked, param)
    start = await answer_grammar(context, request, use, vocabulary)
    await generation.load_parts()
    # Made even if nothing is written, so that invalid requests are refused all the same.
    sequences = generation.sequences(prompt, max(room, 1), start=start)
    if request.prediction is not None:
        await _predict(prompts, request.prediction, sequences)
    report = Report(context, request, generation.plan(sequences[0]), sequences, ignored=prompts.ignored(*given))
    check_queue(context, len(sequences), "n")
    answers = StrideStreams(context.worker, sequences if room else [])
    writer = ChatWriter(context, vocabulary, request, use, report, answers.end)
    return await respond(http, answers, writer, context.settings, streams=bool(request.stream))


async def _predict(prompts: Prompts, prediction: Prediction, sequences: list[Sequence]) -> None:
    """Let answers be drafted from the request's prediction."""
    if not sequences[0].policy.reads_predictions:
        message = "prediction: the decoder does not look text up; auto, ngram and ensemble do, where they draft at all"
        raise ApiError(400, message, param="prediction")
    if not sequences[0].policy.exact:
        message = "prediction: with stride.tolerance it would change the text; leave one of the two out"
        raise ApiError(400, message, param="prediction")
    ids = await prompts.text(text_of(prediction.content), "prediction", adds_special=False)
    prompts.check_known(ids, "prediction")
    for sequence in sequences:
        sequence.prediction = tuple(ids)


def _max_tokens(request: ChatRequest) -> tuple[int | None, str]:
    """The requested maximum number of tokens, and the field that has it."""
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        message = "max_tokens and max_completion_tokens say different things: give one"
        raise ApiError(400, message, param="max_completion_tokens")
    return (old, "max_tokens") if new is None else (new, "max_completion_tokens")


@dataclass(slots=True)
class _Part:
    """What one stride adds to a message."""

    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    trace: list[Forward] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.calls or self.logprobs or self.trace or self.finish_reason)

    def add(self, part: "_Part") -> None:
        self.text += part.text
        self.calls += part.calls
        self.logprobs += part.logprobs
        self.trace += part.trace
        self.finish_reason = part.finish_reason


class ChatWriter:
    """The reply to one request."""

    def __init__(
        self,
        context: Context,
        vocabulary: Vocabulary,
        request: ChatRequest,
        use: ToolUse | None,
        report: Report,
        end: Callable[[int], None],
    ) -> None:
        """`end` is called with the number of each answer that is complete before the engine ends it."""
        self._end = end
        self._vocabulary, self._request, self._use, self._report = vocabulary, request, use, report
        self._readers = [use.reader() if use else None for _ in range(request.count)]
        kind = "chat.completion.chunk" if request.stream else "chat.completion"
        self._envelope = Envelope(context, request, kind, "chatcmpl")

    async def whole(self, strides: Strides) -> Reply:
        messages = [_Part() for _ in self._readers]
        async for index, stride in strides:
            messages[index].add(self._part(index, stride))
        trace = [forward for part in messages for forward in part.trace]
        choices = [self._choice(index, part) for index, part in enumerate(messages)]
        return self._envelope.around(choices, **self._report.whole(trace))

    async def chunks(self, strides: Strides) -> AsyncIterator[Reply]:
        """Each answer begins with a chunk that has only its role."""
        unstarted, unfinished = set(range(len(self._readers))), len(self._readers)
        async for index, stride in strides:
            if index in unstarted:
                unstarted.remove(index)
                yield self._opening(index)
            part = self._part(index, stride)
            unfinished -= part.finish_reason is not None
            if not part.is_empty:
                yield self._chunk(index, part, is_last=not unfinished)
        for index in sorted(unstarted):  # if no tokens were requested
            yield self._opening(index)
            yield self._chunk(index, _Part(finish_reason="length"), is_last=index == len(self._readers) - 1)
        if self._request.includes_usage:
            yield self._envelope.around([], usage=self._report.usage())

    def _part(self, index: int, stride: Stride) -> _Part:
        part = _Part(stride.text, finish_reason=stride.finish_reason)
        if (alternatives := self._request.alternatives) is not None:
            part.logprobs = chat_form(scored_stride(stride, alternatives), self._vocabulary)
        if stride.trace is not None:
            part.trace = [traced(stride, index, self._vocabulary)]
        if self._readers[index] is not None:
            self._read_calls(index, part)
        if part.finish_reason is not None and stride.finish_reason is None:
            self._end(index)
            stride = replace(stride, finish_reason="stop")
        self._report.add(stride)
        return part

    def _read_calls(self, index: int, part: _Part) -> None:
        """Move the calls from a part's text to its calls. If only one call is allowed, the answer ends with it."""
        reader, use = self._readers[index], self._use
        assert reader is not None and use is not None
        found = reader.push(part.text)
        part.text = found.text
        if reader.is_done:
            part.finish_reason = "tool_calls"
        elif part.finish_reason:
            rest = reader.flush()
            part.text += rest.text
            found.calls += rest.calls
            if reader.calls and part.finish_reason == "stop":
                part.finish_reason = "tool_calls"
        part.calls = [_delta(call, use.form) for call in _joined(found.calls)]

    def _choice(self, index: int, part: _Part) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": part.text}
        if part.calls:
            message |= {"content": part.text or None, "tool_calls": _whole(part.calls)}
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(part),
            "finish_reason": part.finish_reason or "length",
        }

    def _opening(self, index: int) -> Reply:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._envelope.around([choice], **self._report.chunk([], is_last=False))

    def _chunk(self, index: int, part: _Part, *, is_last: bool) -> Reply:
        delta: dict[str, Any] = {"content": part.text} if part.text else {}
        if part.calls:
            delta["tool_calls"] = part.calls
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(part),
            "finish_reason": part.finish_reason,
        }
        return self._envelope.around([choice], **self._report.chunk(part.trace, is_last=is_last))

    def _logprobs(self, part: _Part) -> dict[str, Any] | None:
        return {"content": part.logprobs} if self._request.logprobs else None


def _joined(pieces: list[CallPart]) -> list[CallPart]:
    """Join the pieces of each call to one: clients accept only one per chunk."""
    joined: dict[int, CallPart] = {}
    for piece in pieces:
        before = joined.get(piece.index, CallPart(piece.index, piece.name, ""))
        joined[piece.index] = CallPart(piece.index, before.name, before.arguments + piece.arguments)
    return list(joined.values())


def _delta(call: CallPart, form: ToolFormat) -> dict[str, Any]:
    """A piece of a call, in the format of streams."""
    if call.name is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {
        "index": call.index,
        "id": form.id_prefix + secrets.token_hex(form.id_length)[: form.id_length],
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
