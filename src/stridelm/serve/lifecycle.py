"""The server's life cycle: it starts the engine, listens, drains after a signal, and exits.

signal         new requests for work are refused (503), /health reports it; open requests continue
nothing open   the engine stops and the server exits, with status 0
grace is over  the same, and answers that are still open end with an error
second signal  the process exits at once
"""

import asyncio
import gc
import logging
import os
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from stridelm.api import LanguageModel
from stridelm.engine.thread import EngineThread
from stridelm.engine.worker import Worker
from stridelm.params import InputError
from stridelm.serve.app import create_app
from stridelm.serve.context import Context
from stridelm.serve.grammars.compile import Grammars
from stridelm.serve.http.middleware import HEADER_BYTES, Traffic
from stridelm.serve.http.protocol import make_protocol, most_connections
from stridelm.serve.settings import ServeSettings

log = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 10
_SPARE_CONNECTIONS = 256
"""For idle connections and status requests."""
_FLUSH_SECONDS = 5
"""Time for the last bytes of answers to reach clients that read slowly."""


def make_context(
    model: LanguageModel, settings: ServeSettings, name: str, thread: EngineThread | None = None
) -> Context:
    """`name`: the model's name if the settings give none; `thread`: the one in which it was loaded."""
    model.engine.scheduler.max_sequences = settings.max_sequences
    names = settings.served_model_name or (name,)
    return Context(model, Worker(model.engine, thread=thread), settings, Grammars(model, settings), names)


def bind(settings: ServeSettings) -> socket.socket:
    """A socket that is bound to the server's address. Clients cannot connect before the server listens on it."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise _cannot_listen(settings, error) from error
    return listener


def _cannot_listen(settings: ServeSettings, error: OSError) -> InputError:
    return InputError(
        f"cannot listen on {settings.host}, port {settings.port} ({error.strerror}): choose another --port or --host"
    )


class Server(uvicorn.Server):
    """Runs the app and its engine until it is told to exit. `should_exit` is never set: sse-starlette would then cut
    off all streams at once."""

    def __init__(self, context: Context, on_ready: Callable[[str], None]) -> None:
        """`on_ready` is called with the server's address once it listens."""
        app = create_app(context)
        self._context = context
        self._on_ready = on_ready
        self._traffic: Traffic = app.state.traffic
        self._deadline: float | None = None
        settings = context.settings
        most = most_connections(settings.most_requests + _SPARE_CONNECTIONS)
        super().__init__(
            uvicorn.Config(
                app,
                http=make_protocol(most, settings.send_seconds),
                ws="none",
                lifespan="off",
                log_config=None,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=2 * HEADER_BYTES,  # so that most headers that are too long get our error
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_FLUSH_SECONDS,
            )
        )

    def drain(self) -> None:
        """Exit when open requests are finished. May be called from any thread, and from signal handlers."""
        self._traffic.is_draining = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._traffic.is_draining:
            os._exit(128 + sig)
        self.drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except OSError as error:  # another process began to listen since the address was bound
            raise _cannot_listen(self._context.settings, error) from error
        # What was loaded stays: every full garbage collection would walk it, which stops all threads for 300 ms.
        gc.collect()
        gc.freeze()
        self._context.worker.start()
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self._on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or (self._traffic.is_draining and self._may_exit())

    def _may_exit(self) -> bool:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._context.settings.grace
            log.info("draining: %d requests are under way", self._traffic.under_way)
        return self._traffic.under_way == 0 or time.monotonic() >= self._deadline

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._traffic.under_way:
            log.warning("%d requests are given up", self._traffic.under_way)
        await asyncio.to_thread(self._context.worker.stop)
        await super().shutdown(sockets)
        gc.unfreeze()  # for programs that continue without the server
