"""The objectives at equal steps, on the same questions: what each is worth when verified, and when taken unverified.

    python bench/prompts/split_gsm8k.py gsm8k_train.jsonl --train questions.jsonl
    python bench/training/objectives.py --prompts questions.jsonl --runs runs --json objectives.json \
        --unverified unverified.json

Each variant is a run of `stridelm train` with the same steps and batches, then of `stridelm acceptance` (tokens per
forward of verified decoding on held-out questions) and of `decoding/unverified.py`. Several go on side by side; runs
that are finished are not made again.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import BENCH, MATHS, script_parser, write

COMMON = ["--k", "9", "--depth-decay", "1", "--texts", "16", "--length", "448", "--anchors", "48", "--held-out", "64"]
ADAPTER = ["--rank", "32", "--learning-rate", "1e-3"]
PLAIN_ADAPTER = [*ADAPTER, "--sequential-size", "0"]
FULL = ["--mode", "full", "--learning-rate", "2e-4"]
VARIANTS: dict[str, list[str]] = {
    "distill, soft": PLAIN_ADAPTER,
    "distill, hard": [*PLAIN_ADAPTER, "--labels", "hard"],
    "distill, soft, random k": [*PLAIN_ADAPTER, "--random-k"],
    "online, hard": [*PLAIN_ADAPTER, "--objective", "online"],
    "online, soft": [*PLAIN_ADAPTER, "--objective", "online", "--labels", "soft"],
    "online, hard, random k": [*PLAIN_ADAPTER, "--objective", "online", "--random-k"],
    "ground truth": [*PLAIN_ADAPTER, "--objective", "ground-truth"],
    "distill, soft, sequential head": ADAPTER,
    "online, hard, sequential head": [*ADAPTER, "--objective", "online"],
    "no gate: online, hard, random k": [*ADAPTER, "--gate", "none", "--objective", "online", "--random-k"],
    "full: online, hard, random k": [*FULL, "--objective", "online", "--random-k"],
    "full: online, hard": [*FULL, "--objective", "online"],
    "full: distill, soft": FULL,
    "full: ground truth": [*FULL, "--objective", "ground-truth"],
}
"""The first is made first: the others use its rollouts, and its unverified run leaves the base's plain answers."""


def main() -> None:
    parser = script_parser(__doc__, needs_json=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=Path, required=True, help="questions with answers")
    parser.add_argument("--runs", type=Path, required=True, help="a folder for the runs")
    parser.add_argument("--unverified", type=Path, help="also measure unverified decoding, into this file")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--count", type=int, default=64, help="held-out questions")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--unverified-count", type=int, default=32, help="questions answered unverified")
    parser.add_argument("--unverified-tokens", type=int, default=96)
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="more options of every training run")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    questions = options.runs / "held-out.jsonl"
    questions.write_text("".join(MATHS.open(encoding="utf-8").readlines()[: options.count]), encoding="utf-8")
    bench = _Bench(options, questions)
    first, *others = options.only
    bench.run(first)
    with ThreadPoolExecutor(options.jobs) as pool:
        # Those that take longest first: at the end the places are then left for the short ones.
        list(pool.map(bench.run, sorted(others, key=lambda name: "full" not in name)))


class _Bench:
    def __init__(self, options: argparse.Namespace, questions: Path) -> None:
        self.options, self.questions = options, questions
        self.lock = Lock()

    def run(self, name: str) -> None:
        started = time.perf_counter()
        try:
            entry = self._run(name, self.options.runs / _slug(name))
        except subprocess.CalledProcessError as error:
            print(f"{name}: failed\n{error.stderr[-3000:]}", flush=True)
            return
        entry["seconds"] = round(time.perf_counter() - started, 1)
        with self.lock:
            file = self.options.json
            held = json.loads(file.read_text()) if file.is_file() else {}
            write(file, held | {name: entry})
        print(f"{name}: {json.dumps(entry['verified'])[:400]}", flush=True)

    def _run(self, name: str, folder: Path) -> dict[str, Any]:
        options = self.options
        given = "ground" in name
        rollouts = options.runs / ("rollouts-given" if given else "rollouts")
        steps = ["--steps", str(options.steps), "--warmup", str(options.steps // 10)]
        often = ["--evaluate-every", str(options.steps), "--checkpoint-every", str(10**6)]
        base = ["--model", options.model, "--prompts", str(options.prompts), "--rollouts", str(rollouts)]
        arguments = [*base, *COMMON, *steps, *often, *VARIANTS[name], *options.more]
        is_full = "full" in name
        if not (folder / ("config.json" if is_full else "adapter.json")).is_file():
            resumed = ["--resume"] if folder.exists() else []
            _call("-m", "stridelm", "train", "--out", str(folder), *arguments, *resumed)
        subject = [str(folder)] if is_full else [options.model, str(folder)]
        asked = ["--model", subject[0], *(["--adapter", subject[1]] if not is_full else [])]
        limits = ["--prompts", str(self.questions), "--max-tokens", str(options.max_tokens), "--batch", "64"]
        verified = json.loads(_call("-m", "stridelm", "acceptance", *asked, *limits, "--json"))
        if options.unverified:
            self._measure_unverified(name, ",".join(subject), folder)
        record = json.loads((folder / "train.json").read_text())
        last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-2])
        return {
            "options": VARIANTS[name],
            "steps": options.steps,
            "loss": last["loss"],
            "steps_per_second": last["steps_per_second"],
            "verified": {
                key: verified[key] for key in ("tokens", "forwards", "tokens_per_forward", "acceptance_by_depth")
            },
            "machine": record["machine"],
            "commit": record["commit"],
            "command": record["command"],
        }

    def _measure_unverified(self, name: str, subject: str, folder: Path) -> None:
        """Into a file of its own, joined to the others' at once: what was measured is not lost."""
        options, own = self.options, folder / "unverified.json"
        plain = options.runs / "plain.json"
        count, tokens = str(options.unverified_count), str(options.unverified_tokens)
        limits = ["--prompts", str(self.questions), "--count", count, "--max-tokens", tokens]
        settings = ["--thresholds", "0.5", "0.7", "0.9", "--k-max", "9", "--static", "2", "4", "8"]
        script = str(BENCH / "decoding" / "unverified.py")
        asked = ["--base", options.model, "--subject", f"{name}={subject}", "--json", str(own), "--plain", str(plain)]
        _call(script, *asked, *limits, *settings)
        with self.lock:
            held = json.loads(options.unverified.read_text()) if options.unverified.is_file() else {}
            fresh = json.loads(own.read_text())
            fresh["subjects"] = held.get("subjects", {}) | fresh["subjects"]
            write(options.unverified, fresh)


def _call(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)


if __name__ == "__main__":
    main()
