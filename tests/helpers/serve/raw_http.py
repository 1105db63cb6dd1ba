"""Talk to a server byte by byte, and see whether its event loop goes on meanwhile."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from real_server import PATIENCE, ThreadServer, until

LONGEST_TICK = 0.1
"""Seconds of processor time that the event loop may be busy before others have their turn."""


@contextmanager
def ticking(server: ThreadServer, most: float = LONGEST_TICK) -> Iterator[None]:
    """Asserts that the server's event loop was never busy for longer: by the time of its own thread's processor, which
    does not run while others have it."""
    loop = server.server.servers[0].get_loop()
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(time.thread_time())
            await asyncio.sleep(0.001)

    task = asyncio.run_coroutine_threadsafe(tick(), loop)
    until(lambda: bool(ticks))
    try:
        yield
    finally:
        seen = len(ticks)
        until(lambda: len(ticks) > seen + 1)
        task.cancel()
    assert max(later - earlier for earlier, later in pairwise(ticks)) < most


def resident() -> int:
    """Bytes that this process, and so the server, has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def connect(server: ThreadServer, **options: int) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    if "received" in options:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options["received"])
    connection.settimeout(PATIENCE)
    connection.connect((host, int(port)))
    return connection


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "host: me", "content-type: application/json", *headers, "", "")
    return "\r\n".join(lines).encode()


def answer(connection: socket.socket) -> bytes:
    """All that the server says until it closes the connection."""
    said = b""
    while piece := connection.recv(2**16):
        said += piece
    return said
