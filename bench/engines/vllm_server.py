"""A vLLM server with our folders, as a process of its own: started, asked, measured, ended.

    make vllm                        # builds .venv-vllm
    python bench/engines/vllm_server.py      # every path against plain decoding, to bench/results/vllm.json
    python bench/engines/vllm_server.py --memory    # what each server holds, into the same file

The servers run one at a time, because two cores are all there is: each answers the same prompts one after another, and
the rounds go through the paths in turns. Tokens per step are those of the server's own metrics.
"""

import argparse
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stridelm.backends.common.processor import processor_entry
from stridelm.prompts import read_prompts

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import BENCH, KINDS, MATHS, RESULTS, free_port, script_parser, write

VENV = BENCH.parent / ".venv-vllm"
PATIENCE = 900.0
"""Seconds until a server that does not start is given up."""
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
ON_A_CPU = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8")
"""What is added to a command of `stridelm export --to vllm` here: float32, as texts are compared."""
_PER_POSITION = re.compile(r'^vllm:spec_decode_num_accepted_tokens_per_pos_total\{.*position="(\d+)".*\} (\S+)$', re.M)
_DRAFTS = re.compile(r"^vllm:spec_decode_num_drafts_total\{.*\} (\S+)$", re.M)


@dataclass(frozen=True, slots=True)
class Drafts:
    """A server's count of what it drafted: steps with drafts, and how often each position was accepted."""

    steps: int
    accepted: list[int]

    @property
    def rates(self) -> list[float]:
        return [count / max(self.steps, 1) for count in self.accepted]

    @property
    def tokens_per_step(self) -> float:
        return 1 + sum(self.rates)

    def since(self, before: "Drafts") -> "Drafts":
        accepted = [each - was for each, was in zip(self.accepted, before.accepted, strict=True)]
        return Drafts(self.steps - before.steps, accepted)


@dataclass(frozen=True, slots=True)
class Server:
    address: str
    model: str
    process: int

    def ask(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        """The answer's tokens."""
        return self.choices(messages, **options)[0]["token_ids"]

    def choices(self, messages: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
        body = {"model": self.model, "messages": messages, "temperature": 0, "return_token_ids": True} | options
        request = urllib.request.Request(
            f"{self.address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return json.load(reply)["choices"]

    def ask_all(self, prompts: list[list[dict[str, Any]]], *, at_once: int = 1, **options: Any) -> list[list[int]]:
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda messages: self.ask(messages, **options), prompts))

    def drafts(self) -> Drafts:
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=PATIENCE) as reply:
            text = reply.read().decode()
        steps = _DRAFTS.search(text)
        found = sorted((int(position), int(float(count))) for position, count in _PER_POSITION.findall(text))
        return Drafts(int(float(steps[1])) if steps else 0, [count for _, count in found])

    def megabytes(self) -> float:
        """Of memory that the server and its children hold and share with nobody."""
        held, waiting = 0, [self.process]
        while waiting:
            process = Path("/proc") / str(waiting.pop())
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
            for line in (process / "smaps_rollup").read_text().splitlines():
                if line.startswith(("Private_Clean", "Private_Dirty")):
                    held += int(line.split()[1])
        return held / 1000


@contextmanager
def serving(command: str) -> Iterator[Server]:
    """Run a command `vllm serve MODEL ...`, with what a CPU needs. In vLLM's build for CPUs the program `vllm` fails,
    because it looks for a package of that name; the module behind it does the same."""
    program, verb, model, *arguments = shlex.split(command)
    assert (program, verb) == ("vllm", "serve")
    port = free_port()
    whole = [str(VENV / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    whole += [*arguments, *ON_A_CPU, "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(whole, stdout=log, stderr=log, env=os.environ | ENVIRONMENT, start_new_session=True)
        address = f"http://127.0.0.1:{port}"
        try:
            _wait(process, address, log)
            yield Server(address, model, process.pid)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    log.seek(0)
    raise RuntimeError(f"vLLM did not start:\n{log.read()[-30000:]}")


def messages_of(file: Path, count: int) -> list[list[dict[str, Any]]]:
    """So many prompts from all over a file: files are sorted by kind."""
    lines = read_prompts(file)
    prompts = [line.prompt for line in lines[:: max(1, len(lines) // count)][:count]]
    return [[{"role": "user", "content": each}] if isinstance(each, str) else each for each in prompts]


def export(folder: Path, *options: str) -> str:
    """`stridelm export --to vllm`; the command that it prints."""
    command = [sys.executable, "-m", "stridelm", "export", "--to", "vllm", *options, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()[-1].strip()


def with_drafts(command: str, drafts: int) -> str:
    """The same command, drafting so many tokens a step."""
    return re.sub(r'("num_speculative_tokens": )\d+', rf"\g<1>{drafts}", command)


def plain(command: str) -> str:
    """The same command without a drafter."""
    return shlex.join(shlex.split(command)[:3])


def main() -> None:
    parser = script_parser(__doc__, RESULTS / "vllm.json")
    parser.add_argument("--prompts", type=Path, nargs="+", default=None)
    parser.add_argument("--count", type=int, default=8, help="prompts of each file")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help="measure memory, not speed, and add it to the file")
    options = parser.parse_args()
    files = options.prompts or [MATHS, KINDS]
    machine = {
        "vllm": _installed_version(),
        "processor": processor_entry("model name"),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "date": datetime.now(UTC).date().isoformat(),
    }
    with tempfile.TemporaryDirectory() as folder:
        gated = export(Path(folder) / "gated")
        ungated = export(Path(folder) / "ungated", "--adapter", "smollm2-ungated")
        paths = {"plain": plain(gated), "gated, plugin": gated, "ungated, as it comes": ungated}
        if options.memory:
            report = json.loads(options.json.read_text()) | {"megabytes": _memory(paths)}
            write(options.json, report)
            return
        measured = _measure(paths, files, options)
    report = {
        "machine": machine,
        "max_tokens": options.max_tokens,
        "prompts_per_file": options.count,
        "rounds": options.rounds,
        "paths": measured,
    }
    write(options.json, report)


def _memory(paths: dict[str, str]) -> dict[str, int]:
    """After an answer; all servers with the same room for keys and values."""
    held: dict[str, int] = {}
    for name, command in paths.items():
        with serving(command) as server:
            server.ask([{"role": "user", "content": "Hello"}], max_tokens=32)
            held[name] = round(server.megabytes())
            print(f"{name}: {held[name]:,} MB", flush=True)
    return held


def _installed_version() -> str:
    ask = "from importlib.metadata import version; print(version('vllm-cpu'))"
    return subprocess.run(
        [VENV / "bin" / "python", "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()


def _measure(paths: dict[str, str], files: list[Path], options: argparse.Namespace) -> list[dict[str, Any]]:
    answers: dict[tuple[str, str], list[list[int]]] = {}
    rates: dict[tuple[str, str], list[float]] = {}
    steps: dict[tuple[str, str], Drafts] = {}
    for _ in range(options.rounds):
        for name, command in paths.items():
            with serving(command) as server:
                server.ask([{"role": "user", "content": "Hello"}], max_tokens=8)
                for file in files:
                    key, before = (name, file.stem), server.drafts()
                    start = time.perf_counter()
                    answers[key] = server.ask_all(messages_of(file, options.count), max_tokens=options.max_tokens)
                    seconds = time.perf_counter() - start
                    rates.setdefault(key, []).append(sum(map(len, answers[key])) / seconds)
                    steps[key] = server.drafts().since(before)
                    print(f"{name}, {file.stem}: {rates[key][-1]:.1f} tokens/s", flush=True)
    usual = {prompts: statistics.median(rates["plain", prompts]) for name, prompts in rates if name == "plain"}
    return [
        {
            "path": name,
            "prompts": prompts,
            "tokens_per_second": [round(each, 2) for each in found],
            "over_plain": round(statistics.median(found) / usual[prompts], 3),
            "least": round(min(found) / usual[prompts], 3),
            "most": round(max(found) / usual[prompts], 3),
            "identical": sum(a == b for a, b in zip(answers[name, prompts], answers["plain", prompts], strict=True)),
            "answers": len(answers[name, prompts]),
            "tokens_per_step": round(steps[name, prompts].tokens_per_step, 3),
            "rate_by_position": [round(rate, 3) for rate in steps[name, prompts].rates],
        }
        for (name, prompts), found in rates.items()
    ]


if __name__ == "__main__":
    main()
