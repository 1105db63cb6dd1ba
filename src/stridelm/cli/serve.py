"""`stridelm serve`: load a model, print where it is served, and run until stopped."""

import ipaddress
import logging
import sys
import threading
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stridelm.cli.options import with_settings
from stridelm.light import install_command
from stridelm.params import InputError
from stridelm.serve.settings import ServeSettings
from stridelm.settings import AUTO, ModelChoice

if TYPE_CHECKING:
    from stridelm.api import LanguageModel

log = logging.getLogger(__name__)

_PACKAGES = ("fastapi", "uvicorn", "sse_starlette", "prometheus_client", "orjson", "llguidance")
"""What the extra `serve` installs."""


@with_settings
def serve(
    choice: ModelChoice = ModelChoice(),  # noqa: B008 (frozen)
    settings: ServeSettings = ServeSettings(),  # noqa: B008 (frozen)
) -> None:
    """Serve a model to OpenAI's clients, with a playground at /. SIGTERM or Ctrl-C lets open answers finish; a second
    one does not.

    \b
    stridelm serve
    STRIDELM_API_KEY=... stridelm serve --host 0.0.0.0 --model Qwen/Qwen3-4B --adapter runs/qwen
    """
    run(choice, settings)


def run(choice: ModelChoice, settings: ServeSettings, *, opens_browser: bool = False) -> None:
    """`opens_browser`: show the playground on this machine."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(f"the server needs {missing[0]}: {install_command('serve')}")
    from stridelm.engine.thread import EngineThread
    from stridelm.serve.lifecycle import Server, bind, make_context

    _set_up_logging()
    listener = bind(settings)  # before the model is loaded, so that a port in use is reported at once
    if settings.api_key is None and not _is_loopback(settings.host):
        log.warning("everyone who reaches %s may use this server: set STRIDELM_API_KEY", settings.host)
    thread = EngineThread()
    model = thread.run(lambda: _load(choice)).result()
    context = make_context(model, settings, _own_name(choice.model), thread)

    def announce(address: str) -> None:
        print(
            f"stridelm: {address}/v1 serves {', '.join(context.names)}, decoder {AUTO} by default, "
            f"a KV cache of {model.engine.forward.cache.capacity} tokens; playground: {address}/",
            flush=True,
        )
        if opens_browser:
            # Opening some browsers blocks, and this is the server's own thread.
            threading.Thread(target=_open, args=(f"{address}/",), daemon=True).start()

    Server(context, announce).run([listener])


def _open(address: str) -> None:
    if not webbrowser.open(address):
        print(f"stridelm: no browser could be opened: open {address} in one", flush=True)


def _load(choice: ModelChoice) -> "LanguageModel":
    """The model, with everything measured and loaded that most requests need."""
    from stridelm.api import LanguageModel

    model = LanguageModel.load(choice)
    model.warm_up()
    return model


def _own_name(model: str) -> str:
    """The name that clients see. For a folder or file only its last part: its path is not disclosed."""
    path = Path(model)
    return path.resolve().name if path.exists() else model


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _set_up_logging() -> None:
    """Log requests and the server's state on standard error."""
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
