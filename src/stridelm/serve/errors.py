"""What the server refuses, in OpenAI's form."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from stridelm.engine.worker import EngineStopped
from stridelm.params import InputError


class ApiError(Exception):
    """Ends a request with a status and a message that may be shown: no paths, no addresses, nothing of the inside."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        """`param`: the field of the request at fault; `retry_after`: seconds, for a client that may come again."""
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def body(self) -> dict[str, dict[str, str | int | None]]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code or self.status}}


def install_handlers(app: FastAPI) -> None:
    """A stand-in: the branch `api` has the real one."""

    async def refuse(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, ApiError):
            return JSONResponse(error.body(), error.status)
        failure = ApiError(503 if isinstance(error, EngineStopped) else 400, str(error))
        return JSONResponse(failure.body(), failure.status)

    for kind in (ApiError, EngineStopped, InputError):
        app.add_exception_handler(kind, refuse)
