"""The server that all clients are pointed at: `stridelm serve` from the main environment, once for all tests."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forms import KEY
from wire import PATIENCE, Wire, recorded

# Before a client is imported: litellm would fetch a list of prices, langchain report to its maker.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}

ROOT = Path(__file__).parent.parent.parent
_READY = re.compile(r"http://(\S+):(\d+)/v1 serves")


@dataclass(frozen=True)
class Server:
    """Where it listens, and the file that it logs to."""

    host: str
    port: int
    log: Path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the built-in model, which wants a key."""
    log = tmp_path_factory.mktemp("server") / "log"
    command = [str(ROOT / ".venv/bin/python"), "-m", "stridelm", "serve", "--port", "0", "--device", "cpu"]
    # The working tree's own code, also where the environment is another tree's.
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "STRIDELM_API_KEY": KEY, "HF_HUB_OFFLINE": "1"}
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True) as process,
    ):
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            found = _READY.search(process.stdout.readline())
            assert found, f"the server did not start: {log.read_text()}"
            watchdog.cancel()
            yield Server(found[1], int(found[2]), log)
        finally:
            watchdog.cancel()
            process.kill()


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    """The way to the server; what goes over it is printed if the test fails."""
    with recorded(server.host, server.port) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    match getattr(item, "funcargs", {}):
        case {"wire": Wire() as wire, "server": Server() as server} if report.failed:
            report.sections.append(("what went over the wire", str(wire)))
            if any(exchange.status >= 500 for exchange in wire.exchanges):
                report.sections.append(("the end of the server's log", server.log.read_text()[-6000:]))
    return report


def pytest_report_header() -> str:
    return f"clients of {sys.prefix}"
