"""A server in the test's own process: the real routes, a tiny model, a real engine in its thread or a script."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import orjson
from fastapi import FastAPI
from starlette.testclient import TestClient

from stridelm.api import LanguageModel
from stridelm.engine.worker import Receive, Worker
from stridelm.serve.context import Context, Grammars, Start
from stridelm.serve.errors import ApiError, install_handlers
from stridelm.serve.routes import make_router
from stridelm.serve.settings import ServeSettings
from stridelm.types import Sequence, Stride

NAME = "tiny"
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


class NotedGrammars:
    """Compiles nothing, and notes what it was asked for."""

    def __init__(self, start: Start | None = None) -> None:
        """`start`: what every grammar is; without one, all are refused."""
        self.start = start
        self.asked: list[Any] = []

    async def json_schema(self, schema: dict[str, Any]) -> Start:
        return self._note(schema)

    async def lark(self, text: str) -> Start:
        return self._note(text)

    def _note(self, asked: object) -> Start:
        self.asked.append(asked)
        if self.start is None:
            raise ApiError(400, "this grammar cannot be compiled")
        return self.start


class Scripted:
    """In the worker's place: every answer is the same text, a few characters a stride."""

    def __init__(self, text: str, *, size: int = 3, ending: str = "stop") -> None:
        self.pieces = [text[start : start + size] for start in range(0, len(text), size)] or [""]
        self.ending = ending
        self.sequences: list[Sequence] = []
        self.cancelled: list[Sequence] = []
        self.waiting = 0

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def cancel(self, sequence: Sequence) -> None:
        self.cancelled.append(sequence)

    def hold(self, sequence: Sequence, is_held: bool) -> None: ...

    def submit(self, sequence: Sequence, receive: Receive) -> None:
        self.sequences.append(sequence)
        for number, piece in enumerate(self.pieces, 1):
            tokens = tuple(range(len(piece)))
            ending = self.ending if number == len(self.pieces) else None
            receive(Stride(tokens, piece, ("model",) * len(tokens), (0.5,) * len(tokens), cast(Any, ending)))


class NotingWorker(Worker):
    """Notes what was submitted."""

    def submit(self, sequence: Sequence, receive: Receive) -> None:
        self.__dict__.setdefault("sequences", []).append(sequence)
        super().submit(sequence, receive)


def make_context(
    model: LanguageModel,
    settings: ServeSettings | None = None,
    grammars: Grammars | None = None,
    worker: Worker | Scripted | None = None,
) -> Context:
    return Context(
        model,
        cast(Worker, worker or NotingWorker(model.engine)),
        settings or ServeSettings(),
        grammars or NotedGrammars(),
        settings.served_model_name or (NAME,) if settings else (NAME,),
    )


def make_app(context: Context) -> FastAPI:
    app = FastAPI()
    install_handlers(app)
    app.include_router(make_router(context))
    return app


@contextmanager
def serving(context: Context) -> Iterator[TestClient]:
    context.worker.start()
    try:
        with TestClient(make_app(context), raise_server_exceptions=False) as client:
            yield client
    finally:
        context.worker.stop()


def submitted(context: Context) -> list[Sequence]:
    """The sequences that the engine was given, in order."""
    return cast(Any, context.worker).sequences


def chat(content: str = "hello", /, **more: Any) -> dict[str, Any]:
    """The body of a chat's request."""
    return {"model": NAME, "messages": [{"role": "user", "content": content}], "max_tokens": 8, "seed": 3} | more


def text(prompt: Any = "hello", /, **more: Any) -> dict[str, Any]:
    """The body of a request for a completion."""
    return {"model": NAME, "prompt": prompt, "max_tokens": 8, "seed": 3} | more


def chunks(reply: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end as streams do."""
    assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [orjson.loads(line) for line in lines[:-1]]


def refusal(reply: Any, status: int = 400) -> dict[str, Any]:
    """What a refused request was told."""
    assert reply.status_code == status, reply.text
    return reply.json()["error"]
