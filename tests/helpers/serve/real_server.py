"""Real servers for tests: one in a thread of the test's own process, one as a process of its own. Both take a free port
and are gone when the test is."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from stridelm.api import LanguageModel
from stridelm.serve.context import Context
from stridelm.serve.lifecycle import Server, bind, make_context
from stridelm.serve.settings import ServeSettings

NAME = "tiny"
"""The model's name, whatever the model."""
PATIENCE = 60.0
"""Seconds until a test is told that something hangs."""
_READY = re.compile(r"(http://\S+)/v1 serves")


@dataclass(frozen=True)
class ThreadServer:
    """A server in a thread."""

    url: str
    server: Server
    context: Context
    thread: threading.Thread

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, headers=headers)

    def drain(self) -> None:
        """What a first SIGTERM does."""
        self.server.drain()

    def wait(self) -> None:
        """Until it has left."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the server did not leave"


@contextmanager
def serve_in_thread(model: LanguageModel, settings: ServeSettings | None = None) -> Iterator[ThreadServer]:
    """Serve a model, which nothing else may use meanwhile; default: without a key, leaving at once when it ends."""
    settings = settings or ServeSettings(port=0, grace=0)
    context = make_context(model, settings, NAME)
    addresses: list[str] = []
    is_over = threading.Event()  # ready, or failed before that

    def ready(address: str) -> None:
        addresses.append(address)
        is_over.set()

    server = Server(context, ready)
    listener = bind(settings)

    def run() -> None:
        try:
            server.run([listener])
        finally:
            is_over.set()
            listener.close()

    thread = threading.Thread(target=run, name="test-server", daemon=True)
    thread.start()
    try:
        assert is_over.wait(PATIENCE) and addresses, "the server did not start"
        running = ThreadServer(addresses[0], server, context, thread)
        yield running
    finally:
        server.drain()
        thread.join(PATIENCE)
    assert not thread.is_alive(), "the server did not leave"


class ProcessServer:
    """`stridelm serve` as a user starts it."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process = process
        self._log = log
        assert process.stdout is not None
        self.ready_line = process.stdout.readline()
        found = _READY.search(self.ready_line)
        assert found, f"the server did not start: {self.ready_line} {self.log}"
        self.url = found[1]

    @property
    def log(self) -> str:
        """What it wrote to standard error so far."""
        return self._log.read_text()

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, headers=headers)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit status, once it has left."""
        return self.process.wait(PATIENCE)


@contextmanager
def serve_in_process(model: Path | str, log: Path, *options: str, **environment: str) -> Iterator[ProcessServer]:
    """`python -m stridelm serve --model MODEL --port 0`; its standard error goes to the file `log`."""
    command = [sys.executable, "-m", "stridelm", "serve", "--model", str(model), "--port", "0", "--device", "cpu"]
    every = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"} | environment
    with (
        log.open("w") as errors,
        subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors, env=every, text=True) as process,
    ):
        # The line comes, or the process ends, or somebody ends it.
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            server = ProcessServer(process, log)
            watchdog.cancel()
            yield server
        finally:
            watchdog.cancel()
            process.kill()


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that will be so shortly."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


def completion(prompt: Any = "One two three", **fields: Any) -> dict[str, Any]:
    """A request to /v1/completions."""
    return {"model": NAME, "prompt": prompt, "max_tokens": 16, "temperature": 0} | fields


def events(response: httpx.Response) -> Iterator[dict[str, Any] | str]:
    """What a stream says, one object an event; `[DONE]` as it is."""
    for line in response.iter_lines():
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            yield data if data == "[DONE]" else json.loads(data)
