"""/v1/completions: a text goes in, its continuation comes out; with echo and logprobs, how likely the text is."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from fastapi import Request
from starlette.responses import Response

from stridelm.serve.context import Context
from stridelm.serve.errors import ApiError
from stridelm.serve.generation import Generation, check_queue
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.logprobs import LegacyForm, Scored, scored, scored_stride
from stridelm.serve.prompts import Prompts
from stridelm.serve.reading import StrideStreams, unless_left
from stridelm.serve.replies import Envelope, Report
from stridelm.serve.respond import Reply, Strides, respond
from stridelm.serve.schemas.text import CompletionRequest
from stridelm.serve.trace import Forward, traced
from stridelm.types import Alternatives, Stride

_DEFAULT_TOKENS = 16
_MAX_SCORES = 1_000_000
"""Maximum number of probabilities of prompt tokens in a reply, alternatives included."""


async def answer_completion(
    http: Request, context: Context, prompts: Prompts, vocabulary: Vocabulary, request: CompletionRequest
) -> Response:
    generation = Generation(context, request, request.logprobs)
    check_queue(context, len(request.prompts) * request.count, "prompt")
    asked = [await _encode(prompts, prompt, request.suffix) for prompt in request.prompts]
    encoded = [ids for ids, _ in asked]
    await generation.load_parts()
    made = []
    for prompt in encoded:
        left = generation.room(prompt, request.max_tokens, "max_tokens")
        most = min(left, _DEFAULT_TOKENS) if request.max_tokens is None else request.max_tokens
        # Made even if nothing is written, so that invalid requests are refused all the same.
        made += generation.sequences(prompt, max(most, 1))
    sequences = [] if request.max_tokens == 0 else made
    scores = bool(request.echo) and request.logprobs is not None
    report = Report(context, request, generation.plan(made[0]), made, is_scored=scores)
    if scores and sum(len(each.tokens) for each in made) * (1 + (request.logprobs or 0)) > _MAX_SCORES:
        message = f"logprobs: more than {_MAX_SCORES} would be told; ask for fewer, or in several requests"
        raise ApiError(400, message, param="logprobs")
    check_queue(context, len(sequences) + (len(encoded) if scores else 0), "prompt")
    scored_prompts = await unless_left(http, _score(context, encoded, request.logprobs or 0)) if scores else []
    choices = await asyncio.to_thread(_choices, context, vocabulary, request, asked, scored_prompts)
    writer = CompletionWriter(context, request, choices, report)
    answers = StrideStreams(context.worker, sequences)
    return await respond(http, answers, writer, context.settings, streams=bool(request.stream))


async def _encode(prompts: Prompts, prompt: str | list[int], suffix: str | None) -> tuple[list[int], slice]:
    """The tokens that the model reads, and which part of them is the prompt."""
    if suffix is None:
        ids = await prompts.text(prompt) if isinstance(prompt, str) else prompt
        own = slice(len(ids))
    elif isinstance(prompt, str):
        ids, own = await prompts.gap(prompt, suffix)
    else:
        raise ApiError(400, "suffix: only for prompts that are text", param="suffix")
    return prompts.checked(ids, "prompt"), own


async def _score(context: Context, prompts: list[list[int]], alternatives: int) -> list[list[Scored]]:
    """How likely each prompt's tokens were, from the second on."""
    confidence: list[tuple[float, ...]] = [() for _ in prompts]
    likeliest: list[tuple[Alternatives, ...]] = [() for _ in prompts]
    long = [index for index, prompt in enumerate(prompts) if len(prompt) > 1]
    answers = StrideStreams(
        context.worker, [context.model.scoring(list(prompts[index]), alternatives) for index in long]
    )
    try:
        async for number, stride in answers.strides():
            confidence[long[number]] += stride.confidence
            likeliest[long[number]] += stride.alternatives
    finally:
        answers.close()

    def put_together() -> list[list[Scored]]:
        columns = zip(prompts, confidence, likeliest, strict=True)
        return [list(scored(prompt[1:], each, others, alternatives)) for prompt, each, others in columns]

    return await asyncio.to_thread(put_together)


class _Choice:
    """One answer: the prompt that is echoed before it, and its logprobs so far."""

    def __init__(self, index: int, echoed: str | None, form: LegacyForm | None, vocabulary: Vocabulary) -> None:
        self.index, self.echoed, self.vocabulary = index, echoed, vocabulary
        self._form = form

    def part(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        """The text, and all logprobs that were added since the last part."""
        logprobs = None if self._form is None else self._form.take()
        return {"index": self.index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def note(self, stride: Stride, alternatives: int) -> None:
        if self._form is not None:
            self._form.add(scored_stride(stride, alternatives))


def _choices(
    context: Context,
    vocabulary: Vocabulary,
    request: CompletionRequest,
    prompts: list[tuple[list[int], slice]],
    scored_prompts: list[list[Scored]],
) -> list[_Choice]:
    choices: list[_Choice] = []
    for number, (given, (prompt, own)) in enumerate(zip(request.prompts, prompts, strict=True)):
        text = given if isinstance(given, str) else cast(str, context.model.target.tokenizer.decode(prompt))
        for _ in range(request.count):
            form = None if request.logprobs is None else LegacyForm(vocabulary)
            if form is not None and scored_prompts:
                if not own.start:
                    form.first(prompt[0])
                first = own.start or 1  # the very first token has no probability
                form.add(scored_prompts[number][first - 1 : own.stop - 1])
            choices.append(_Choice(len(choices), text if request.echo else None, form, vocabulary))
    return choices


class CompletionWriter:
    """The reply to one request."""

    failure = None

    def __init__(self, context: Context, request: CompletionRequest, choices: list[_Choice], report: Report) -> None:
        self._request, self._choices, self._report = request, choices, report
        self._envelope = Envelope(context, request, "text_completion", "cmpl")

    @property
    def _writes(self) -> bool:
        return self._request.max_tokens != 0

    async def whole(self, strides: Strides) -> Reply:
        texts = [choice.echoed or "" for choice in self._choices]
        reasons: list[str | None] = [None if self._writes else "length" for _ in self._choices]
        traces: list[list[Forward]] = [[] for _ in self._choices]
        async for index, stride in strides:
            texts[index] += stride.text
            reasons[index] = stride.finish_reason
            traces[index] += self._note(index, stride)
        columns = zip(self._choices, texts, reasons, strict=True)
        parts = [choice.part(text, reason) for choice, text, reason in columns]
        return self._envelope.around(parts, **self._report.whole([each for trace in traces for each in trace]))

    async def chunks(self, strides: Strides) -> AsyncIterator[Reply]:
        unfinished = len(self._choices)
        for choice in self._choices:
            if choice.echoed is not None or not self._writes:
                unfinished -= not self._writes
                part = choice.part(choice.echoed or "", None if self._writes else "length")
                yield self._envelope.around([part], **self._report.chunk([], is_last=not unfinished))
        async for index, stride in strides:
            trace = self._note(index, stride)
            unfinished -= stride.finish_reason is not None
            if stride.text or stride.finish_reason or trace or self._request.logprobs is not None:
                part = self._choices[index].part(stride.text, stride.finish_reason)
                yield self._envelope.around([part], **self._report.chunk(trace, is_last=not unfinished))
        if self._request.includes_usage:
            yield self._envelope.around([], usage=self._report.usage())

    def _note(self, index: int, stride: Stride) -> list[Forward]:
        """Count a stride; returns its trace, if there is one."""
        choice = self._choices[index]
        self._report.add(stride)
        choice.note(stride, self._request.logprobs or 0)
        return [] if stride.trace is None else [traced(stride, index, choice.vocabulary)]
