"""JSON in and out by orjson: quick, and stricter than the standard library (no NaN, no lone surrogates).

A long body is read and checked in a thread of its own: nobody else's answer waits for it.
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
"""Bytes from which a body is read in a thread."""
_PART = 256
"""Values of a list that are written at once."""
_THREADS = ThreadPoolExecutor(1, thread_name_prefix="stridelm-body")


class JsonReply(JSONResponse):
    """An answer as JSON. By its class FastAPI knows that it is not to be described as a string."""

    def render(self, content: object) -> bytes:
        return content if isinstance(content, bytes) else orjson.dumps(content)


def dumps(value: object) -> bytes:
    """JSON of what may be long, for a thread. Long lists are written in parts: orjson lets no other thread run before
    it is done."""
    return orjson.dumps(_with_written_lists(value))


def _with_written_lists(value: object) -> object:
    if isinstance(value, dict):
        return {name: _with_written_lists(held) for name, held in value.items()}
    if isinstance(value, list) and len(value) > _PART:
        parts = (orjson.dumps(value[start : start + _PART])[1:-1] for start in range(0, len(value), _PART))
        return orjson.Fragment(b"[%b]" % b",".join(parts))
    return [_with_written_lists(held) for held in value] if isinstance(value, list) else value


async def in_thread(work: Callable[[], Any]) -> Any:
    """What the work gives, done where others' bodies are read: one after the other."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work)


class JsonRequest(Request):
    """A request whose body was read and checked."""

    def __init__(self, request: Request, value: object) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        return b"-"  # only whether there is one matters

    async def json(self) -> Any:
        return self._value


def json_route(most_tokens: int) -> type[APIRoute]:
    """Routes that take such bodies; their functions call what they take `request`. `most_tokens`: as in `parse`."""

    class JsonRoute(APIRoute):
        """FastAPI would check bodies on the event loop, and tell of every fault of a million; it is handed a request
        that was checked."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            if self.body_field is None:
                return handle
            kind = typing.get_type_hints(self.endpoint, include_extras=True)["request"]
            read = _reader(TypeAdapter(kind), most_tokens)

            async def handle_json(request: Request) -> Response:
                _check_type(request)
                # Not by `request.body()`, which keeps it: answers may take minutes.
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
    """A page of somebody else's may have a browser post anything but JSON without asking."""
    message = email.message.Message()
    message["content-type"] = request.headers.get("content-type", "")
    subtype = message.get_content_subtype()
    if message.get_content_maintype() != "application" or not (subtype == "json" or subtype.endswith("+json")):
        raise ApiError(415, "the body must be JSON, and say so: send `Content-Type: application/json`")


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
