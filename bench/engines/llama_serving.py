"""llama.cpp's server, started and spoken to: for bench/engines/llama_server.py, and for the test of docs/engines.md."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from bench.cpu.setup import peers_folder
from bench.measured import free_port
from stridelm.params import InputError

PACKAGE = "xllamacpp==2026.10.11549"
SCRIPT = Path(__file__).parents[1] / "peers" / "llama_server.py"
START_SECONDS = 300.0
"""Until a server must have read its model. It takes seconds, unless the machine is very busy."""


def program() -> list[str]:
    """What stands for `llama-server`: the one that is installed, or else llama.cpp's server out of a wheel, which is
    fetched once into a virtual environment of its own."""
    installed = shutil.which("llama-server")
    return [installed] if installed else [str(_wheel_python()), str(SCRIPT)]


def _wheel_python() -> Path:
    folder = peers_folder() / PACKAGE.replace("==", "-")
    python = folder / "bin" / "python"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as working:
            made = Path(working) / "venv"
            for command in (
                [sys.executable, "-m", "venv", str(made)],
                [str(made / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:", PACKAGE],
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    said = (done.stderr or done.stdout).strip().splitlines()
                    raise InputError(f"{PACKAGE} could not be installed: {said[-1] if said else done.returncode}")
            made.rename(folder)
    return python


@contextmanager
def serving(arguments: list[str], start_seconds: float = START_SECONDS) -> Iterator[str]:
    """A server with these options of `llama-server`; gives its address."""
    port = free_port()
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
    process = subprocess.Popen(
        [*program(), *arguments, "--port", str(port)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(process, address, log, time.monotonic() + start_seconds)
        yield address
    finally:
        _stop(process)
        log.close()


def _wait(process: subprocess.Popen[bytes], address: str, log: IO[str], deadline: float) -> None:
    while not _is_healthy(address):
        has_ended = process.poll() is not None
        if has_ended or time.monotonic() > deadline:
            log.seek(0)
            what = "ended" if has_ended else "did not get ready in time"
            raise InputError(f"llama.cpp's server {what}: {log.read()[-500:]}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The server and whatever it has started: it leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=60)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def complete(address: str, prompt: str | list[int], tokens: int, **more: Any) -> dict[str, Any]:
    """An answer, greedy: its text, its tokens, and the server's own counts and times."""
    body = {
        "prompt": prompt,
        "n_predict": tokens,
        "temperature": 0,
        "return_tokens": True,
        "cache_prompt": False,
        **more,
    }
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


def chat(address: str, question: str, tokens: int, **more: Any) -> dict[str, Any]:
    """The same, to a question in the built-in model's own chat format, as the server's template writes it."""
    request = urllib.request.Request(
        f"{address}/apply-template",
        json.dumps({"messages": [{"role": "user", "content": question}]}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        prompt = json.load(reply)["prompt"]
    return complete(address, prompt, tokens, **more)


def export_draft(file: Path) -> Path:
    command = [sys.executable, "-m", "stridelm", "export", "--part", "draft", "--to", "gguf", "--storage", "q8_0"]
    subprocess.run([*command, str(file)], check=True, capture_output=True)
    return file
