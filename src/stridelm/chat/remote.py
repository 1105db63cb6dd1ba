"""Answers from an OpenAI-compatible server."""

import time
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from stridelm.chat.conversation import Conversation
from stridelm.chat.openai_stream import Endpoint, ServerError
from stridelm.chat.speaker import Messages, Report
from stridelm.params import SamplingParams
from stridelm.settings import DecodeSettings

_ALWAYS_SENT = ("max_tokens", "temperature")
"""Servers have other defaults for these than our command line."""
_Kind = TypeVar("_Kind")


class RemoteSpeaker:
    """A model behind a URL."""

    def __init__(
        self, endpoint: Endpoint, model: str | None, params: SamplingParams, stride: Mapping[str, Any]
    ) -> None:
        """`model`: by default the server's first. `stride`: decoding settings, for servers that know them."""
        self._endpoint = endpoint
        self._model = find_model(endpoint, model)
        self._stride = dict(stride)
        plain = SamplingParams()
        self._sampling = {
            name: getattr(params, name)
            for name in (each.name for each in fields(params))
            if name in _ALWAYS_SENT or getattr(params, name) != getattr(plain, name)
        }
        self.description = f"{self._model} at {endpoint.url}"

    @property
    def decoder(self) -> str | None:
        return self._stride.get("decoder")

    def decode_by(self, decoder: str) -> None:
        self._stride = {"decoder": DecodeSettings(decoder).decoder}

    def shorten(self, conversation: Conversation) -> int:
        """Drops nothing, since the model's context length is not known here: the server refuses what is too long."""
        return 0

    def ask(self, messages: Messages) -> "RemoteReply":
        body = {
            "model": self._model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._sampling,
        }
        if self._stride:
            body["stride"] = self._stride
        return RemoteReply(self._endpoint, body)


def find_model(endpoint: Endpoint, model: str | None) -> str:
    """The model's name in requests. The server is asked even if the model is named, so that an unreachable server or a
    wrong key is reported at the start."""
    try:
        listed = endpoint.get("/models")
    except ServerError as error:
        if model is not None and error.status in (404, 405):
            return model  # a server without a list of models
        raise
    if model is not None:
        return model
    match listed:
        case {"data": [{"id": str(first)}, *_]}:
            return first
    raise ServerError(f"{endpoint.url}: lists no model: name one with --model")


class RemoteReply:
    """An answer that comes as a stream of chunks; each piece is a chunk."""

    def __init__(self, endpoint: Endpoint, body: dict[str, Any]) -> None:
        self._url = endpoint.url
        self._started = time.perf_counter()
        self._first: float | None = None
        self._last = self._started
        self._chunks = endpoint.stream("/chat/completions", body)
        self._finish_reason: str | None = None
        self._reported: dict[str, Any] = {}
        """What chunks carry beside the choices: usage, stride, metrics."""

    def __iter__(self) -> "RemoteReply":
        return self

    def __next__(self) -> str:
        for chunk in self._chunks:
            text = self._read(chunk)
            if text is not None:
                self._last = time.perf_counter()
                self._first = self._first or self._last
                return text
        if self._finish_reason is None:
            raise ServerError(f"{self._url}: the connection broke before the answer was finished")
        raise StopIteration

    def _read(self, chunk: dict[str, Any]) -> str | None:
        """The text of a chunk, if it has any."""
        self._reported |= {
            name: chunk[name] for name in ("usage", "stride", "metrics") if isinstance(chunk.get(name), dict)
        }
        match chunk:
            case {"choices": [{"delta": dict(delta), **rest}, *_]}:
                reason, text = rest.get("finish_reason"), delta.get("content")
            case {"choices": []}:
                return None
            case _:
                raise ServerError(f"{self._url}: what it sent is no chunk of a chat")
        if not isinstance(reason, str | None) or not isinstance(text, str | None):
            raise ServerError(f"{self._url}: what it sent is no chunk of a chat")
        self._finish_reason = reason or self._finish_reason
        return text or None

    def report(self) -> Report:
        stride, usage = self._reported.get("stride", {}), self._reported.get("usage", {})
        speculation = self._reported.get("metrics", {}).get("speculative_decoding")
        strides, histogram = _strides(speculation if isinstance(speculation, dict) else {})
        strides = tuple(_counts(stride.get("lengths"))) or strides
        return Report(
            seconds=self._last - self._started,
            first=None if self._first is None else self._first - self._started,
            tokens=_kept(usage.get("completion_tokens"), int),
            prompt_tokens=_kept(usage.get("prompt_tokens"), int),
            forwards=_kept(stride.get("forwards"), int),  # the histogram may count only those that verified drafts
            strides=strides,
            histogram=histogram,
            decoder=_kept(stride.get("decoder"), str),
            exact=_kept(stride.get("exact"), bool),
            exact_to=_kept(stride.get("exact_to"), str),
            path=_kept(stride.get("path"), str),
            backend=_kept(stride.get("backend"), str),
            own_forwards=_kept(stride.get("own_forwards"), int),
            finish_reason=self._finish_reason,
        )

    def close(self) -> None:
        self._chunks.close()


def _strides(speculation: dict[str, Any]) -> tuple[tuple[int, ...], dict[int, int]]:
    """The strides in order, and how often each length occurred, from vLLM's format: a step that accepts j drafts emits
    j + 1 tokens."""
    steps, counts = speculation.get("per_step_accepted"), speculation.get("acceptance_histogram")
    strides = tuple(accepted + 1 for accepted in _counts(steps))
    return strides, {accepted + 1: count for accepted, count in enumerate(_counts(counts)) if count}


def _counts(value: Any) -> list[int]:
    """The value, if it is a list of counts, else an empty list."""
    are_counts = isinstance(value, list) and all(isinstance(each, int) and 0 <= each < 2**31 for each in value)
    return value if are_counts else []


def _kept(value: Any, kind: type[_Kind]) -> _Kind | None:
    return value if isinstance(value, kind) else None
