"""The subjects of bench/cpu/run.py: what is compared, and the processes that do it, which speak peers/line_json.py.

One process per loaded model, started once and then asked in turns, never two at a time.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.cpu import setup as cpu_setup
from stridelm.settings import ACTIVATIONS, AUTO, DEFAULT_MODEL, PLAIN

PEERS = Path(__file__).parents[1] / "peers"
SECONDS = 600.0
"""The longest that a load or an answer may take."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A way of decoding, and the process that can do it."""

    process: str
    mode: str


VARIANTS = (*ACTIVATIONS, "torch")
"""Ours: the native backend with its two kinds of activations, the default first, and the torch backend in float32."""
LLAMA, TRANSFORMERS, OPENVINO = "llama.cpp", "transformers", "openvino"
NGRAMS = ("ngram-cache", "ngram-mod", "ngram-simple", "ngram-map-k", "ngram-map-k4v")
"""llama.cpp's own; `ngram-cache` looks short n-grams up as its llama-lookup does, `ngram-mod` is its --spec-default."""
SUBJECTS = {
    **{f"plain {variant}": Subject(variant, PLAIN) for variant in VARIANTS},
    **{f"multi {variant}": Subject(variant, AUTO) for variant in VARIANTS},
    LLAMA: Subject(LLAMA, "plain"),
    **{f"{LLAMA} {name}": Subject(LLAMA, name) for name in NGRAMS},
    OPENVINO: Subject(OPENVINO, "plain"),
    TRANSFORMERS: Subject(TRANSFORMERS, "plain"),
}
DEFAULT = (
    "plain int8", "multi int8", "plain int16", "multi int16", LLAMA, f"{LLAMA} {NGRAMS[0]}", f"{LLAMA} {NGRAMS[1]}",
    OPENVINO, TRANSFORMERS,
)  # fmt: skip


class Absent(Exception):
    """A subject that cannot take part, and why."""


@dataclass(frozen=True, slots=True)
class Answer:
    ids: list[int]
    first_tokens: int
    """Those that came with the pass that ended the prompt."""
    first_seconds: float
    seconds: float
    """Of the whole answer, the prompt's reading included."""
    forwards: int

    @property
    def decoding(self) -> float:
        """Tokens per second after the first."""
        return (len(self.ids) - self.first_tokens) / (self.seconds - self.first_seconds)

    @property
    def whole(self) -> float:
        """Tokens per second of the whole answer."""
        return len(self.ids) / self.seconds


class Process:
    """A subject's process. `about` is what it says of itself."""

    def __init__(self, command: list[str], *, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, bufsize=1
            )
        except OSError as error:
            raise Absent(f"{command[0]}: {error.strerror}") from error
        try:
            self.about: dict[str, Any] = self._reply()["about"]
        except Absent:
            self.close()
            raise

    def answer(self, ids: list[int], tokens: int, banned: list[int], mode: str) -> Answer:
        reply = self._ask({"ids": ids, "tokens": tokens, "banned": banned, "mode": mode})
        answer = Answer(**reply)
        if len(answer.ids) != tokens:
            raise Absent(f"wrote {len(answer.ids)} tokens instead of {tokens}")
        return answer

    def time_rows(self, rows: list[int], context: int) -> dict[int, float]:
        """Seconds of one forward over so many rows."""
        times = self._ask({"rows": rows, "context": context})["times"]
        return {int(width): seconds for width, seconds in times.items()}

    def logits(self, ids: list[int]) -> np.ndarray:
        """Those of every position, float32; llama.cpp's process only."""
        with tempfile.NamedTemporaryFile() as file:
            reply = self._ask({"ids": ids, "logits": file.name})
            return np.fromfile(file.name, np.float32).reshape(len(ids), reply["vocabulary"])

    def close(self) -> None:
        """It ends by itself when nobody asks any more."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the reply, which is missing then, tells more
            self._process.stdin.write(json.dumps(request) + "\n")
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(self._seconds, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line:
            self._process.wait()
            self._log.seek(0)
            said = self._log.read().strip().splitlines()
            raise Absent(f"ended without an answer ({said[-1] if said else 'and without a word'})")
        reply = json.loads(line)
        if "error" in reply:
            raise Absent(reply["error"])
        return reply


def command(process: str, gguf: Path, threads: int, adapter: Path | None = None) -> list[str]:
    """What starts a process; refuses what `--setup` has not made yet. `adapter`: for ours."""
    if process in VARIANTS:
        # The built-in model by its name: that brings its adapter along. Other files may be its other quantisations.
        is_builtin = gguf == cpu_setup.builtin_gguf()
        model = [DEFAULT_MODEL, "-"] if is_builtin else [str(gguf), str(adapter or "-")]
        choice = ["torch", "-"] if process == "torch" else ["native", process]
        return [sys.executable, str(PEERS / "ours.py"), *model, *choice, str(threads)]
    if process == TRANSFORMERS:
        return [sys.executable, str(PEERS / "hugging_face.py"), str(gguf), str(threads)]
    if process == OPENVINO:
        return [_made(cpu_setup.openvino_python()), str(PEERS / "intel.py"), str(gguf), str(threads)]
    assert process == LLAMA
    return [_made(cpu_setup.llama_driver()), str(gguf), str(threads)]


def _made(program: Path) -> str:
    if not program.exists():
        raise Absent(f"not set up: run `python bench/cpu/run.py --setup` ({program} is missing)")
    return str(program)
