"""uvicorn's HTTP connection, without endless patience: it waits forever for a request's headers by itself."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEADER_SECONDS = 30.0
"""The longest from a connection's start, or from its last reply, to the end of a request's headers. What is left of a
body that was refused is read and dropped for as long, too."""


class Protocol(H11Protocol):
    """Closes a connection that has been open for a while without asking for anything."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request()

    def _await_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._give_up, self.cycle)

    def _give_up(self, last: RequestResponseCycle | None) -> None:
        """Unless a request has come since the `last` one, or that one came before its predecessor's reply was out."""
        if self.cycle is last and (last is None or last.response_complete):
            self.timeout_keep_alive_handler()
