"""JSON in and out by orjson: quick, and stricter than the standard library (no NaN, no lone surrogates)."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response


class JsonReply(JSONResponse):
    """An answer as JSON. By its class FastAPI knows that it is not to be described as a string."""

    def render(self, content: object) -> bytes:
        return orjson.dumps(content)


class JsonRequest(Request):
    """A request whose body is read by orjson; what it refuses ends as any other JSON that cannot be read."""

    async def json(self) -> Any:
        return orjson.loads(await self.body())


class JsonRoute(APIRoute):
    """A route that takes its body so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


def depth(value: object) -> int:
    """How deep lists and objects nest. Without recursion: what nests too deep is the reason to ask."""
    deepest, level = 0, [value]
    while level := [inner for outer in level for inner in _inside(outer)]:
        deepest += 1
    return deepest


def _inside(value: object) -> list[object]:
    """What a list or an object holds; something, even where it is empty."""
    match value:
        case dict():
            return list(value.values()) or [None]
        case list():
            return list(value) or [None]
    return []
