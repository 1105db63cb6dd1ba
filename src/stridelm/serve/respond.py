"""One reply, whole or in chunks, from answers that are being written. Whatever happens, the answers are closed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

from fastapi import Request
from starlette.responses import Response

from stridelm.serve.http.json_body import JsonReply, dumps
from stridelm.serve.http.sse import EventStream, Failure
from stridelm.serve.reading import StrideStreams, unless_left
from stridelm.serve.settings import ServeSettings
from stridelm.types import Stride

Strides = AsyncIterator[tuple[int, Stride]]
"""Strides, each with the number of its answer."""
Reply = dict[str, Any]


class Writer(Protocol):
    """Turns strides into a reply."""

    @property
    def failure(self) -> Failure | None:
        """As in `EventStream`."""
        ...

    async def whole(self, strides: Strides) -> Reply: ...

    def chunks(self, strides: Strides) -> AsyncIterator[Reply]: ...


async def respond(
    request: Request, answers: StrideStreams, writer: Writer, settings: ServeSettings, *, streams: bool
) -> Response:
    try:
        if not streams:
            reply = await unless_left(request, writer.whole(answers.strides()))
            return JsonReply(await asyncio.to_thread(dumps, reply))
        chunks = writer.chunks(answers.strides())
        # A failure before the first chunk can still be reported by its HTTP status.
        first = await unless_left(request, anext(chunks))
    except BaseException:
        answers.close()
        raise
    return EventStream(first, chunks, answers.close, settings, failure=writer.failure)
