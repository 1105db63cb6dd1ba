"""Replies that are sent while they are being written, as server-sent events."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from stridelm.serve.errors import as_api_error
from stridelm.serve.settings import ServeSettings

_SEPARATOR = "\n"


class EventStream(EventSourceResponse):
    """Chunks as they come. `close` is called when the reply is over: sent, cut off or left alone."""

    def __init__(
        self,
        first: dict[str, Any],
        rest: AsyncIterator[dict[str, Any]],
        close: Callable[[], None],
        settings: ServeSettings,
    ) -> None:
        self._close = close
        super().__init__(
            _events(first, rest),
            sep=_SEPARATOR,
            shutdown_grace_period=settings.grace,  # by default a signal would cut every stream
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


async def _events(first: dict[str, Any], rest: AsyncIterator[dict[str, Any]]) -> AsyncIterator[ServerSentEvent]:
    try:
        yield _event(first)
        async for chunk in rest:
            yield _event(chunk)
        yield ServerSentEvent("[DONE]", sep=_SEPARATOR)
    except Exception as error:
        yield ServerSentEvent(orjson.dumps(as_api_error(error).body()).decode(), event="error", sep=_SEPARATOR)


def _event(chunk: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent(orjson.dumps(chunk).decode(), sep=_SEPARATOR)
