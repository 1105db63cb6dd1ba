"""Our server for a suite that starts servers, as often as it likes: one process per set of options, kept while it is of
use.

Peers start a server per test or per file. Ours stays until servers with other options have been asked for since.
`PEERS_SERVE` holds the command, as JSON; it says where it listens in its first line. `PEERS_LOG` names the file that
the servers' logs go to.
"""

import atexit
import ctypes
import json
import os
import re
import signal
import subprocess

MAX_SERVERS = 2
"""Processes at the same time: each has a model in memory."""

_READY = re.compile(r"http://[\d.]+:(\d+)/v1 serves")
_PR_SET_PDEATHSIG = 1
_servers: dict[tuple[str, ...], "_Server"] = {}
"""The latest used comes last."""


class _Server:
    """A process that is ready."""

    def __init__(self, options: tuple[str, ...]) -> None:
        command = [*json.loads(os.environ["PEERS_SERVE"]), "--port", "0", "--grace", "0", *options]
        with open(os.environ["PEERS_LOG"], "a") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=_end_with_parent
            )
        atexit.register(self.stop)
        try:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            ready = _READY.search(line)
            if ready is None:
                raise RuntimeError(f"the server did not start with {' '.join(options)}: {line}")
        except BaseException:  # a test's time may be up meanwhile
            self.stop()
            raise
        self.port = int(ready[1])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def running(*options: str) -> int:
    """The port of a server with these options."""
    server = _servers.pop(options, None)
    if server is None or server.process.poll() is not None:
        while len(_servers) >= MAX_SERVERS:
            _servers.pop(next(iter(_servers))).stop()
        server = _Server(options)
    _servers[options] = server
    return server.port


def stop(*options: str) -> None:
    """End the server with these options, for a suite that wants a fresh one next time."""
    if server := _servers.pop(options, None):
        server.stop()


def _end_with_parent() -> None:
    """Whatever ends pytest ends its servers."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
