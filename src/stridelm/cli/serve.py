"""`stridelm serve` and `stridelm demo`: load a model, say where it is served, and stay until told to leave."""

import ipaddress
import logging
import sys
import threading
import webbrowser
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import stridelm
from stridelm.api import LanguageModel
from stridelm.params import InputError
from stridelm.serve.settings import ServeSettings
from stridelm.settings import AUTO, LoadSettings

log = logging.getLogger(__name__)

_PACKAGES = ("fastapi", "uvicorn", "sse_starlette", "prometheus_client", "orjson", "llguidance")
"""What the extra `serve` installs."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for."""

    model: str
    adapter: str | None
    draft_model: str | None
    heads: str | None
    settings: ServeSettings
    load: LoadSettings
    opens_browser: bool = False
    """Show the playground to whoever sits here."""


def run(request: Request) -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(f"the server needs {missing[0]}: pip install 'stridelm[serve]'")
    from stridelm.engine.lane import Lane
    from stridelm.serve.lifecycle import Server, bind, make_context

    _set_up_logging()
    settings = request.settings
    listener = bind(settings)  # before the model is loaded: a port that is taken is told at once
    if settings.api_key is None and not _is_loopback(settings.host):
        log.warning("everyone who reaches %s may use this server: set STRIDELM_API_KEY", settings.host)
    lane = Lane()
    model = lane.run(lambda: _load(request)).result()
    context = make_context(model, settings, _own_name(request.model), lane)

    def announce(address: str) -> None:
        print(
            f"stridelm: {address}/v1 serves {', '.join(context.names)}, decoder {AUTO} by default, "
            f"a KV cache of {model.engine.forward.cache.capacity} tokens; playground: {address}/",
            flush=True,
        )
        if request.opens_browser:
            # Some browsers hold up whoever opens them, and this is the server's own thread.
            threading.Thread(target=_open, args=(f"{address}/",), daemon=True).start()

    Server(context, announce).run([listener])


def _open(address: str) -> None:
    if not webbrowser.open(address):
        print(f"stridelm: no browser could be opened: open {address} in one", flush=True)


def _load(request: Request) -> LanguageModel:
    """The model, with everything measured and loaded that a request may ask for."""
    model = stridelm.load(
        request.model,
        adapter=request.adapter,
        draft_model=request.draft_model,
        heads=request.heads,
        settings=request.load,
    )
    model.warm_up()
    return model


def _own_name(model: str) -> str:
    """A folder or file goes by its own name: where it lies is nobody's business."""
    path = Path(model)
    return path.resolve().name if path.exists() else model


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _set_up_logging() -> None:
    """Requests and what becomes of the server, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name, level in (
        ("stridelm", logging.INFO),
        ("uvicorn.access", logging.INFO),
        ("uvicorn.error", logging.WARNING),
    ):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = [handler]
        logger.propagate = False
