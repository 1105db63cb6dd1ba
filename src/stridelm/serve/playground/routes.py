"""The routes of the playground: its page, what the page has to know about the server, and the race."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

import stridelm
from stridelm.serve.context import Context
from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.serve.http.json_body import JsonReply, json_route
from stridelm.serve.playground.files import PageFile
from stridelm.serve.playground.race import answer_race
from stridelm.serve.playground.schema import RaceRequest
from stridelm.serve.prompts import Prompts
from stridelm.serve.schemas.common import ERRORS
from stridelm.serve.status import decoders
from stridelm.settings import DECODERS, LARGEST_K, TAKES

_RACE: dict[int | str, dict[str, Any]] = {
    200: {"description": "Both lanes' strides as server-sent events", "content": {"text/event-stream": {}}},
    **ERRORS,
}


def make_playground_router(context: Context, page: Mapping[str, PageFile]) -> APIRouter:
    """`page`: its files by their paths."""
    router = APIRouter(route_class=json_route(context.model.max_length))
    prompts = Prompts(context)
    vocabulary = Vocabulary(context.model.target.tokenizer)
    about = _about(context)

    @router.get("/playground/about", include_in_schema=False)
    async def show_about() -> Response:
        return JsonReply(about)

    @router.post("/playground/race", responses=_RACE, response_class=JsonReply)
    async def race(request: RaceRequest) -> Response:
        return await answer_race(context, prompts, vocabulary, request)

    async def show_file(request: Request) -> Response:
        return page[request.url.path].reply(request)

    for path in page:
        router.add_api_route(path, show_file, methods=["GET", "HEAD"], include_in_schema=False)
    return router


def _about(context: Context) -> dict[str, Any]:
    """What the dials need: the model, its decoders and the settings that each of them takes."""
    return {
        "version": stridelm.__version__,
        "model": context.name,
        "exact_to": context.exact_to,
        "backend": context.model.engine.forward.backend,
        "max_model_len": context.model.max_length,
        "largest_k": LARGEST_K,
        "decoders": [{"name": name, "what": DECODERS[name], "takes": TAKES[name]} for name in decoders(context.model)],
    }
