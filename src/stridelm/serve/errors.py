"""The server's errors, in OpenAI's format, and in Anthropic's on its routes."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from stridelm.engine.worker import EngineStopped
from stridelm.params import InputError

log = logging.getLogger(__name__)

_MAX_MESSAGE = 500
_MAX_PARAM = 100
"""Maximum lengths in characters. Both may repeat parts of the request, which can be megabytes."""
MESSAGES = "/v1/messages"
"""Anthropic's API is below this path."""
_MESSAGES_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
"""Anthropic's names for kinds of errors, by status."""
ErrorBody = dict[str, Any]


class ApiError(Exception):
    """Ends a request with a status and a message that may be shown: no paths, no addresses, no internals."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        """`param`: the field of the request at fault; `retry_after`: seconds after which the client may try again."""
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def body(self) -> ErrorBody:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        message, param = _cut(self.message, _MAX_MESSAGE), self.param and _cut(self.param, _MAX_PARAM)
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code or self.status}}

    def messages_body(self) -> ErrorBody:
        """In Anthropic's format, which has no place for the field: the message begins with it."""
        kind = _MESSAGES_KINDS.get(self.status, "invalid_request_error")
        is_named = self.param is None or self.message.startswith(self.param)
        message = self.message if is_named else f"{self.param}: {self.message}"
        return {"type": "error", "error": {"type": kind, "message": _cut(message, _MAX_MESSAGE)}}

    def body_for(self, path: str) -> ErrorBody:
        """In the format of the API that a path belongs to."""
        return self.messages_body() if path == MESSAGES or path.startswith(f"{MESSAGES}/") else self.body()

    def rename(self, names: Mapping[str, str]) -> None:
        """Name fields as the client does. `names`: its names by ours."""
        old, new = self.param, names.get(self.param or "")
        if old is not None and new is not None:
            self.param = new
            if self.message.startswith(old):
                self.message = new + self.message.removeprefix(old)


class Uncompilable(ApiError):
    """A grammar that no text can match, or that uses something that is not supported."""


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "..."


def as_api_error(error: Exception) -> ApiError:
    """The error that a client is sent for a failure. Details of failures that the client did not cause are logged
    instead."""
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
    """Report every failure of a request in the format of its API."""
    for kind in (ApiError, InputError, EngineStopped, HTTPException, Exception):
        app.add_exception_handler(kind, _handle)


async def _handle(request: Request, error: Exception) -> Response:
    shown = as_api_error(error)
    headers = dict(getattr(error, "headers", None) or {})
    if shown.retry_after:
        headers["Retry-After"] = str(shown.retry_after)
    return JSONResponse(shown.body_for(request.url.path), shown.status, headers)


def invalid(error: ValidationError, body: object) -> ApiError:
    """The error that is deepest in the body: for a union, pydantic reports the errors of each of its members."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    path, first = max(((_path(each["loc"], body), each) for each in found), key=lambda pair: len(pair[0]))
    param = ".".join(path) or None
    what = (
        "this field is not known here"
        if first["type"] == "extra_forbidden"
        else first["msg"].removeprefix("Value error, ")
    )
    return ApiError(400, f"{param or 'the body'}: {what}", param=param)


def _path(location: Iterable[Any], body: object) -> list[str]:
    """The place in the body that an error names, without the names of models and types that pydantic adds."""
    path: list[str] = []
    parts = list(location)
    for index, part in enumerate(parts):
        match body:
            case {"type": kind, **rest} if kind == part and index < len(parts) - 1 and isinstance(rest.get(part), str):
                continue  # the tag of a union's member, not the field of the same name
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
