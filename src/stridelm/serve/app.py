"""The HTTP application: middleware, the API, the status routes and the playground."""

import math

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import stridelm
from stridelm.serve.context import Context
from stridelm.serve.errors import install_handlers
from stridelm.serve.http.middleware import Admission, ApiKey, Headers, RequestIds, RequestLimit, SizeLimit, Traffic
from stridelm.serve.metrics import Metrics
from stridelm.serve.playground.files import read_page
from stridelm.serve.playground.routes import make_playground_router
from stridelm.serve.routes import make_router
from stridelm.serve.status import make_status_router


def create_app(context: Context) -> FastAPI:
    """Must be called before the worker starts, since the app's metrics observe it. `app.state.traffic` is for the code
    that runs the server."""
    settings, traffic = context.settings, Traffic()
    metrics = Metrics(context.worker, context.name)
    context.worker.add_observer(metrics)
    app = FastAPI(title="StrideLM", version=stridelm.__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.traffic = traffic
    page = read_page()
    install_handlers(app)
    app.include_router(make_router(context))
    app.include_router(make_status_router(context, traffic, metrics))
    app.include_router(make_playground_router(context, page))
    # A request passes the middleware that was added last first.
    app.add_middleware(RequestLimit, most=settings.most_requests)
    app.add_middleware(SizeLimit, most=settings.max_body)
    retry_after = max(1, math.ceil(settings.grace))
    app.add_middleware(Admission, traffic=traffic, retry_after=retry_after)
    if settings.api_key is not None:
        app.add_middleware(ApiKey, key=settings.api_key, open_paths={"/health", *page})
    if settings.cors_origin:  # before the key is checked: browsers send preflight requests without it
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(Headers)
    app.add_middleware(RequestIds)
    return app
