"""JSON in and out by orjson: fast, and stricter than the standard library (no NaN, no lone surrogates).

A long body is parsed and checked in a separate thread, so that no other request has to wait for it.
"""

import asyncio
import email.message
import typing
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.responses import JSONResponse, Response

from stridelm.serve.errors import ApiError, invalid
from stridelm.serve.http.bounds import parse

_LONG = 32 * 2**10
"""Bodies of at least this many bytes are parsed in a thread."""
_PART = 256
"""Number of list values that are serialised at once."""
_THREADS = ThreadPoolExecutor(1, thread_name_prefix="stridelm-body")


class JsonReply(JSONResponse):
    """A JSON reply. From the class, FastAPI knows not to describe it as a string in the OpenAPI document."""

    def render(self, content: object) -> bytes:
        return content if isinstance(content, bytes) else orjson.dumps(content)


def dumps(value: object) -> bytes:
    """Serialise a value that may be long; to be called in a thread. Long lists are written in parts, because orjson
    lets no other thread run until it returns."""
    return orjson.dumps(_with_written_lists(value))


def _with_written_lists(value: object) -> object:
    if isinstance(value, dict):
        return {name: _with_written_lists(held) for name, held in value.items()}
    if isinstance(value, list) and len(value) > _PART:
        parts = (orjson.dumps(value[start : start + _PART])[1:-1] for start in range(0, len(value), _PART))
        return orjson.Fragment(b"[%b]" % b",".join(parts))
    return [_with_written_lists(held) for held in value] if isinstance(value, list) else value


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run `work` in the thread that parses long bodies, one call at a time, and return its result."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


class JsonRequest(Request):
    """A request whose body has already been parsed and checked."""

    def __init__(self, request: Request, value: object) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        return b"-"  # FastAPI only looks at whether there is a body

    async def json(self) -> Any:
        return self._value


def json_route(most_tokens: int) -> type[APIRoute]:
    """The class of routes whose bodies are parsed and checked here. Their functions must name the parameter for the
    body `request`. `most_tokens`: as in `parse`."""

    class JsonRoute(APIRoute):
        """FastAPI would check bodies on the event loop, and report every one of a million errors. So it is given a
        request that was already checked."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            if self.body_field is None:
                return handle
            kind = typing.get_type_hints(self.endpoint, include_extras=True)["request"]
            read = _reader(TypeAdapter(kind), most_tokens)

            async def handle_json(request: Request) -> Response:
                _check_type(request)
                # Not `request.body()`, which would keep the body in memory: answers may take minutes.
                body = b"".join([part async for part in request.stream()])
                value = read(body) if len(body) < _LONG else await in_thread(partial(read, body))
                del body
                return await handle(JsonRequest(request, value))

            return handle_json

    return JsonRoute


def _reader(kind: TypeAdapter[Any], most_tokens: int) -> Callable[[bytes], Any]:
    def read(body: bytes) -> Any:
        value = parse(body, most_tokens)
        try:
            return kind.validate_python(value)
        except ValidationError as error:
            raise invalid(error, value) from None

    return read


def _check_type(request: Request) -> None:
    """Refuse bodies that are not declared as JSON: a page of another site can make a browser post anything else without
    a CORS preflight."""
    message = email.message.Message()
    message["content-type"] = request.headers.get("content-type", "")
    subtype = message.get_content_subtype()
    if message.get_content_maintype() != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise ApiError(415, "the body must be JSON, and say so: send `Content-Type: application/json`")


def depth(value: object) -> int:
    """How deeply lists and objects are nested. Without recursion, since the value may be nested too deeply for it."""
    deepest, level = 0, [value]
    while level := [inner for outer in level for inner in _inside(outer)]:
        deepest += 1
    return deepest


def _inside(value: object) -> list[object]:
    """The values of a list or an object; for an empty one, a single None, so that its own level counts."""
    match value:
        case dict():
            return list(value.values()) or [None]
        case list():
            return list(value) or [None]
    return []
