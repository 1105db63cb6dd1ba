"""`stridelm train` in a process of its own that kills itself when it is about to make a certain change on the disk."""

import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

from stridelm.cli import app as cli
from stridelm.train import rollouts

_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod")
_processes = multiprocessing.get_context("forkserver")
# What takes long to import is imported once, in a process that starts no threads and touches no GPU.
_processes.set_forkserver_preload(
    ["killed", "stridelm.train.run", "torch.utils.tensorboard", "matplotlib.backends.backend_agg"]
)

Moment = int | str
"""The n-th change, or one such as `os.rename run/.train.json.writing`."""
NEVER: Moment = 0


def train_until(moment: Moment, folder: Path, arguments: list[str]) -> int | None:
    """Run in a folder up to a moment; returns the exit status, -9 for a run that was killed."""
    process = _processes.Process(target=_train, args=(moment, folder, arguments))
    process.start()
    process.join(timeout=120)
    return process.exitcode


def _train(moment: Moment, folder: Path, arguments: list[str]) -> None:
    os.chdir(folder)
    rollouts._PART = 3
    changes = 0

    def look(event: str, details: tuple[object, ...]) -> None:
        nonlocal changes
        path = _changed(event, details)
        if path is None or not path.is_relative_to(folder):
            return
        changes += 1
        if moment in (changes, f"{event} {path.relative_to(folder)}"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    sys.argv = ["stridelm", "train", *arguments]
    cli.main()


def _changed(event: str, details: tuple[object, ...]) -> Path | None:
    """What the main thread is about to change; threads of its own write TensorBoard's files."""
    if threading.current_thread() is not threading.main_thread():
        return None
    writes = event == "open" and isinstance(details[2], int) and details[2] & (os.O_WRONLY | os.O_RDWR)
    return Path(str(details[0])).absolute() if event in _CHANGES or writes else None
