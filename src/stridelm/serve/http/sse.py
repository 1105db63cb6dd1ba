"""Replies that are sent while they are being written, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from stridelm.serve.errors import ApiError, as_api_error
from stridelm.serve.http.json_body import dumps
from stridelm.serve.settings import ServeSettings

Failure = Callable[[ApiError], dict[str, Any]]
"""Makes the last event of a stream that failed."""
_SEPARATOR = "\n"
_LONG = 256
"""With more tokens with probabilities than this, a chunk takes longer than a millisecond or two to serialise."""


class EventStream(EventSourceResponse):
    """Sends chunks as they come. `close` is called when the reply has ended: sent, cut off or abandoned."""

    def __init__(
        self,
        first: dict[str, Any],
        rest: AsyncIterator[dict[str, Any]],
        close: Callable[[], None],
        settings: ServeSettings,
        *,
        failure: Failure | None = None,
    ) -> None:
        """`failure`: given by APIs whose events have names, their `type`; None: events have no names, and `[DONE]` ends
        them."""
        self._close = close
        super().__init__(
            _events(first, rest) if failure is None else _named_events(first, rest, failure),
            sep=_SEPARATOR,
            shutdown_grace_period=settings.grace,  # by default, a signal would cut off every stream
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _events(first: dict[str, Any], rest: AsyncIterator[dict[str, Any]]) -> AsyncIterator[ServerSentEvent | bytes]:
    try:
        yield await _event(first)
        async for chunk in rest:
            yield await _event(chunk)
        yield ServerSentEvent("[DONE]", sep=_SEPARATOR)
    except Exception as error:
        yield ServerSentEvent(orjson.dumps(as_api_error(error).body()).decode(), event="error", sep=_SEPARATOR)


async def _named_events(
    first: dict[str, Any], rest: AsyncIterator[dict[str, Any]], failure: Failure
) -> AsyncIterator[bytes]:
    try:
        yield await _named_event(first)
        async for event in rest:
            yield await _named_event(event)
    except Exception as error:
        yield await _named_event(failure(as_api_error(error)))


async def _event(chunk: dict[str, Any]) -> bytes:
    """An event as bytes, which sse-starlette sends unchanged: JSON has no line breaks that it would have to split."""
    is_long = any(_tokens(choice) > _LONG for choice in chunk.get("choices", ()))
    return b"data: %b\n\n" % (await asyncio.to_thread(dumps, chunk) if is_long else orjson.dumps(chunk))


async def _named_event(event: dict[str, Any]) -> bytes:
    """Other events than those of a single stride may hold a whole answer, and are serialised in a thread."""
    is_short = "delta" in event and "stride" not in event
    data = orjson.dumps(event) if is_short else await asyncio.to_thread(dumps, event)
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), data)


def _tokens(choice: dict[str, Any]) -> int:
    """Number of tokens whose probabilities a choice has: those of an echoed prompt come all at once."""
    return len((choice.get("logprobs") or {}).get("tokens", ()))
