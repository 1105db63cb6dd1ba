"""The server that all clients are pointed at: `stridelm serve` from the main environment, once for all tests."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forms import KEY
from wire import PATIENCE, Wire, recorded

# Before a client is imported: litellm would fetch a list of prices, langchain report to its maker.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}

ROOT = Path(__file__).parent.parent.parent
_READY = re.compile(r"http://(\S+):(\d+)/v1 serves")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Host and port of a server of the built-in model, which wants a key."""
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
            yield found[1], int(found[2])
        finally:
            watchdog.cancel()
            process.kill()


@pytest.fixture
def wire(server: tuple[str, int]) -> Iterator[Wire]:
    """The way to the server; what goes over it is printed if the test fails."""
    with recorded(*server) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    wire = getattr(item, "funcargs", {}).get("wire")
    if report.failed and isinstance(wire, Wire):
        report.sections.append(("what went over the wire", str(wire)))
    return report


def pytest_report_header() -> str:
    return f"clients of {sys.prefix}"
