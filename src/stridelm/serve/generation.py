"""From a request to the sequences that the engine writes."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stridelm.params import InputError, SamplingParams
from stridelm.serve.context import Context, Start
from stridelm.serve.errors import ApiError
from stridelm.serve.schemas.common import StrideOptions, TextRequest
from stridelm.serve.trace import ALTERNATIVES
from stridelm.settings import DecodeSettings
from stridelm.types import Sequence

_RETRY_SECONDS = 1
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
"""Fields that have the same name in requests and in SamplingParams."""
_READ: dict[str, Callable[[Any], Any]] = {
    "temperature": lambda value: value if value >= 1e-4 else 0.0,
    "top_p": lambda value: max(value, 1e-6),
    "top_k": lambda value: max(value, 0),
}
"""Values that other servers accept, too, are replaced by the nearest valid one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a request's answers are written: the same for all of them."""

    settings: DecodeSettings
    seed: int
    is_exact: bool
    """Whether the text is that of one-token-at-a-time decoding."""


class Generation:
    """Makes sequences for one request."""

    def __init__(self, context: Context, request: TextRequest, alternatives: int | None) -> None:
        """`alternatives`: number of likeliest tokens to report; None: no logprobs at all."""
        _check_limits(context, request)
        self._context, self._request, self._alternatives = context, request, alternatives
        # The choices share a seed: their noise differs by their number. -1 means any seed, as in vLLM and llama.cpp.
        self.seed = secrets.randbits(53) if request.seed in (None, -1) else request.seed
        self.settings = _decode_settings(context, request.options)

    async def load_parts(self) -> None:
        """What comes with the model for a decoder that is seldom asked for is loaded now, outside of the event loop."""
        resources, decoder = self._context.model.resources, self.settings.decoder
        if resources.must_load(decoder):
            await asyncio.to_thread(resources.load_parts, decoder)

    def room(self, prompt: list[int], asked: int | None, param: str) -> int:
        """Maximum number of tokens to write: what was requested, or what the context has room for."""
        left = self._context.model.max_length - len(prompt)
        if asked is not None and asked > left:
            message = f"{param} is {asked}, but behind the prompt's {len(prompt)} tokens there is room for {left}"
            raise ApiError(400, message, param=param, code="context_length_exceeded")
        return left if asked is None else asked

    def sequences(self, prompt: list[int], max_tokens: int, *, start: Start | None = None) -> list[Sequence]:
        """The answers to one prompt."""
        params = self._params(max_tokens)
        made: list[Sequence] = []
        for choice in range(self._request.count):
            try:
                sequence = self._context.model.sequence(list(prompt), params, self.settings)
            except InputError as error:
                raise self._context.refusal(error, error.field or "stride") from error
            sequence.choice = choice
            sequence.grammar = None if start is None else start()
            sequence.is_traced = self._request.options.trace
            sequence.alternatives = self._alternatives or 0
            sequence.optional_alternatives = ALTERNATIVES if sequence.is_traced else 0
            made.append(sequence)
        if self._alternatives is not None and not made[0].policy.exact:
            message = f"logprobs: the decoder {self.settings.decoder} is not exact here, so it has no base logprobs"
            raise ApiError(400, message, param="logprobs")
        return made

    def plan(self, sequence: Sequence) -> Plan:
        """`sequence`: one of the answers."""
        return Plan(self.settings, self.seed, self._context.model.is_exact(sequence, self.settings.decoder))

    def _params(self, max_tokens: int) -> SamplingParams:
        request = self._request
        given: dict[str, Any] = {name: getattr(request, name) for name in _SAMPLING}
        given = {name: value for name, value in given.items() if value is not None}
        nearest: dict[str, Any] = {name: read(given[name]) for name, read in _READ.items() if name in given}
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
                seed=self.seed % 2**64,
                stop=request.stops,
                **{"temperature": 1.0, **given, **nearest},
            )
        except InputError as error:
            raise self._context.refusal(error, error.field) from error


def check_queue(context: Context, count: int, param: str) -> None:
    """Refuse a request if too many others are waiting."""
    most = context.settings.max_queue
    if count > most:
        message = f"the request asks for {count} answers at once, but {most} may wait here"
        raise ApiError(400, message, param=param)
    if context.worker.waiting + count > most:
        raise ApiError(429, "too many requests are waiting: come again", retry_after=_RETRY_SECONDS)


def _check_limits(context: Context, request: TextRequest) -> None:
    context.check_model(request.model)
    settings = context.settings
    if request.count > settings.max_n:
        raise ApiError(400, f"n must be at most {settings.max_n} here, not {request.n}", param="n")
    if len(request.stops) > settings.max_stop:
        raise ApiError(400, f"stop: at most {settings.max_stop} strings are taken here", param="stop")


def _decode_settings(context: Context, options: StrideOptions) -> DecodeSettings:
    try:
        return context.model.check(options.settings())
    except InputError as error:
        raise context.refusal(error, "stride") from error
