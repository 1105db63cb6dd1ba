"""What the server refuses, in OpenAI's form."""

import logging
from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from stridelm.engine.worker import EngineStopped
from stridelm.params import InputError

log = logging.getLogger(__name__)

_LONGEST_MESSAGE = 500
_LONGEST_PARAM = 100
"""Characters. Both may repeat what the request said, which can be megabytes."""
ErrorBody = dict[str, dict[str, str | int | None]]


class ApiError(Exception):
    """Ends a request with a status and a message that may be shown: no paths, no addresses, nothing of the inside."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        """`param`: the field of the request at fault; `retry_after`: seconds, for a client that may come again."""
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def body(self) -> ErrorBody:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        message, param = _cut(self.message, _LONGEST_MESSAGE), self.param and _cut(self.param, _LONGEST_PARAM)
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code or self.status}}


class Uncompilable(ApiError):
    """A grammar that nothing can keep to, or that says what is not supported."""


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "..."


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of a failure. What is not the client's doing goes to the log instead."""
    match error:
        case ApiError():
            return error
        case InputError():
            return ApiError(400, str(error), param=error.field)
        case EngineStopped(has_crashed=True):
            return ApiError(503, "the engine has crashed: the server must be started anew")
        case EngineStopped():
            return ApiError(503, "the server is shutting down: ask again when it is back")
        case HTTPException():
            return ApiError(error.status_code, error.detail)
    log.error("a request failed", exc_info=error)
    return ApiError(500, "the server failed to answer: its log says why")


def install_handlers(app: FastAPI) -> None:
    """Let every failure of a request end in OpenAI's form."""
    for kind in (ApiError, InputError, EngineStopped, HTTPException, Exception):
        app.add_exception_handler(kind, _handle)


async def _handle(_: Request, error: Exception) -> Response:
    shown = as_api_error(error)
    headers = dict(getattr(error, "headers", None) or {})
    if shown.retry_after:
        headers["Retry-After"] = str(shown.retry_after)
    return JSONResponse(shown.body(), shown.status, headers)


def invalid(error: ValidationError, body: object) -> ApiError:
    """The error that lies deepest in the body: a union reports what each of its members would have wanted."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    path, first = max(((_path(each["loc"], body), each) for each in found), key=lambda pair: len(pair[0]))
    param = ".".join(path) or None
    what = "this field is not known here" if first["type"] == "extra_forbidden" else first["msg"]
    return ApiError(400, f"{param or 'the body'}: {what}", param=param)


def _path(location: Iterable[Any], body: object) -> list[str]:
    """The place in the body that an error names, without the names of models and types that pydantic adds."""
    path: list[str] = []
    parts = list(location)
    for index, part in enumerate(parts):
        match body:
            case {"type": kind, **rest} if kind == part and index < len(parts) - 1 and isinstance(rest.get(part), str):
                continue  # which of several kinds it is, and not the field of the same name
            case dict() if part in body:
                body = body[part]
            case list() if isinstance(part, int) and part < len(body):
                body = body[part]
            case dict() if index == len(parts) - 1:
                pass  # a field that is missing
            case _:
                continue
        path.append(str(part))
    return path
