"""The answers to a chat, whichever API asks: from the request to strides, and from strides to text and calls."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from typing import Any

from stridelm.serve.context import Context
from stridelm.serve.errors import ApiError
from stridelm.serve.generation import Generation, check_queue
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.logprobs import chat_form, scored_stride
from stridelm.serve.prompts import Prompts, text_of
from stridelm.serve.reading import StrideStreams
from stridelm.serve.replies import Report
from stridelm.serve.schemas.chat import ChatRequest, Prediction
from stridelm.serve.tools.reader import CallPart, Found
from stridelm.serve.tools.use import ToolUse, answer_grammar, tool_use
from stridelm.serve.trace import Forward, traced
from stridelm.types import Sequence, Stride


@dataclass(frozen=True, slots=True)
class Translated:
    """A request as a chat's: that of /v1/chat/completions itself, or of another API."""

    chat: ChatRequest
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """The request's own names for fields of the chat, where they differ."""
    ignored: Items[str] = ()
    """Fields of the request that are not part of the chat and cannot change the text."""
    may_shorten: bool = False
    """If `max_tokens` is more than there is room for, as many are written as there is room for."""


@dataclass(slots=True)
class Part:
    """What one stride adds to an answer."""

    pieces: list[str | CallPart]
    """Text and calls, in order."""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    trace: list[Forward] = field(default_factory=list)
    finish_reason: str | None = None


class ChatAnswers:
    """The answers to one chat while they are being written."""

    def __init__(
        self,
        context: Context,
        vocabulary: Vocabulary,
        request: ChatRequest,
        use: ToolUse | None,
        report: Report,
        sequences: list[Sequence],
        *,
        writes: bool,
    ) -> None:
        """`writes`: False if no tokens were requested."""
        self.context, self.request, self.use, self.report = context, request, use, report
        self.sequences = sequences
        self.streams = StrideStreams(context.worker, sequences if writes else [])
        self._vocabulary = vocabulary
        self._readers = [use.reader() if use else None for _ in sequences]

    def part(self, index: int, stride: Stride) -> Part:
        """What a stride of one answer adds to it. If only one call is allowed, the answer ends with it."""
        part = Part([stride.text] if stride.text else [], finish_reason=stride.finish_reason)
        if (alternatives := self.request.alternatives) is not None:
            part.logprobs = chat_form(scored_stride(stride, alternatives), self._vocabulary)
        if stride.trace is not None:
            part.trace = [traced(stride, index, self._vocabulary)]
        self._read_calls(index, stride.text, part)
        if part.finish_reason is not None and stride.finish_reason is None:
            self.streams.end(index)
            stride = replace(stride, finish_reason="stop")
        self.report.add(stride)
        return part

    def new_call_id(self) -> str:
        """An id for a call, as the model's template takes them."""
        assert self.use is not None
        return self.use.form.new_id()

    def _read_calls(self, index: int, text: str, part: Part) -> None:
        reader = self._readers[index]
        if reader is None:
            return
        found = reader.push(text)
        if reader.is_done:
            part.finish_reason = "tool_calls"
        elif part.finish_reason:
            found = Found([*found.pieces, *reader.flush().pieces])
            if reader.calls and part.finish_reason == "stop":
                part.finish_reason = "tool_calls"
        part.pieces = found.pieces


async def open_chat(context: Context, prompts: Prompts, vocabulary: Vocabulary, translated: Translated) -> ChatAnswers:
    """Check a request and submit its answers to the engine. Errors name fields as the request does."""
    try:
        return await _open(context, prompts, vocabulary, translated)
    except ApiError as error:
        error.rename(translated.names)
        raise


async def _open(context: Context, prompts: Prompts, vocabulary: Vocabulary, translated: Translated) -> ChatAnswers:
    request = translated.chat
    generation = Generation(context, request, request.alternatives)
    asked, param = _max_tokens(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    use = tool_use(context.settings, prompts.talk, request)
    given = request.chat_template_kwargs, request.reasoning_effort
    prompt = await _encode(prompts, request, use)
    prompts.checked(prompt, "messages")
    if translated.may_shorten and asked is not None:
        asked = min(asked, generation.room(prompt, None, param))
    room = generation.room(prompt, asked, param)
    start = await answer_grammar(context, request, use, vocabulary)
    await generation.load_parts()
    # Made even if nothing is written, so that invalid requests are refused all the same.
    sequences = generation.sequences(prompt, max(room, 1), start=start)
    if request.prediction is not None:
        await _predict(prompts, request.prediction, sequences)
    ignored = [*prompts.ignored(*given), *translated.ignored]
    report = Report(context, request, generation.plan(sequences[0]), sequences, ignored=ignored, names=translated.names)
    check_queue(context, len(sequences), "n")
    return ChatAnswers(context, vocabulary, request, use, report, sequences, writes=room > 0)


async def count_prompt(context: Context, prompts: Prompts, translated: Translated) -> int:
    """The number of tokens of a request's prompt."""
    request = translated.chat
    try:
        context.check_model(request.model)
        return len(await _encode(prompts, request, tool_use(context.settings, prompts.talk, request)))
    except ApiError as error:
        error.rename(translated.names)
        raise


async def _encode(prompts: Prompts, request: ChatRequest, use: ToolUse | None) -> list[int]:
    return await prompts.chat(
        request.messages,
        use.shown if use else [],
        opens_turn=request.opens_turn,
        continues=request.continues,
        variables=prompts.variables(request.chat_template_kwargs, request.reasoning_effort),
    )


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
