"""A server in the test's own process: the real routes, a real engine in its thread, a tiny model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.testclient import TestClient

from stridelm.api import LanguageModel
from stridelm.engine.worker import Worker
from stridelm.serve.context import Context, Grammars, Start
from stridelm.serve.errors import ApiError, install_handlers
from stridelm.serve.routes import make_router
from stridelm.serve.settings import ServeSettings

NAME = "tiny"


class NoGrammars:
    """Compiles nothing, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def json_object(self) -> Start:
        return self._refuse("object")

    async def json_schema(self, schema: dict[str, Any]) -> Start:
        return self._refuse(schema)

    async def lark(self, text: str) -> Start:
        return self._refuse(text)

    def _refuse(self, asked: object) -> Start:
        self.asked.append(asked)
        raise ApiError(400, "there are no grammars here")


def make_context(
    model: LanguageModel, settings: ServeSettings | None = None, grammars: Grammars | None = None
) -> Context:
    worker = Worker(model.engine)
    return Context(model, worker, settings or ServeSettings(), grammars or NoGrammars(), NAME)


@contextmanager
def serving(context: Context) -> Iterator[TestClient]:
    app = FastAPI()
    install_handlers(app)
    app.include_router(make_router(context))
    context.worker.start()
    try:
        with TestClient(app, raise_server_exceptions=False) as client:
            yield client
    finally:
        context.worker.stop()


def events(text: str) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end as streams do."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [orjson.loads(line) for line in lines[:-1]]
