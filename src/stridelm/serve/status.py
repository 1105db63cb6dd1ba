"""Status routes for operators and monitoring: the server's health, its version, its models and its metrics."""

import time
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

import stridelm
from stridelm.api import LanguageModel
from stridelm.params import InputError
from stridelm.serve.context import Context
from stridelm.serve.http.middleware import Traffic
from stridelm.serve.metrics import Metrics
from stridelm.serve.schemas.common import ERRORS
from stridelm.settings import DECODERS


def make_status_router(context: Context, traffic: Traffic, metrics: Metrics) -> APIRouter:
    router = APIRouter()
    cards = {name: _card(context, name) for name in context.names}

    @router.get("/health", responses={503: {"description": "The engine has crashed, or the server drains."}})
    async def health() -> JSONResponse:
        if not context.worker.is_healthy:
            return JSONResponse({"status": "failed"}, 503)
        if traffic.is_draining:
            return JSONResponse({"status": "draining"}, 503)
        return JSONResponse({"status": "ok"})

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": stridelm.__version__}

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": list(cards.values())}

    @router.get("/v1/models/{name:path}", responses={404: ERRORS[404]})
    async def model(name: str) -> dict[str, Any]:
        context.check_model(name)
        return cards.get(name) or cards[context.name] | {"id": name}

    @router.get("/metrics", response_class=Response)
    async def show_metrics() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return router


def _card(context: Context, name: str) -> dict[str, Any]:
    """The model as /v1/models shows it."""
    model = context.model
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "stridelm",
        "max_model_len": model.max_length,
        "decoders": decoders(model),
    }


def decoders(model: LanguageModel) -> list[str]:
    """The decoders that the loaded model has all parts for."""
    found: list[str] = []
    for name in DECODERS:
        try:
            model.check(name)
        except InputError:
            continue
        found.append(name)
    return found
