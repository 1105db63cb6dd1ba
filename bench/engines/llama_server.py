"""llama.cpp's server with and without our draft model, on the built-in model's own 4-bit file.

    python bench/engines/llama_server.py [--rounds 3] [--tokens 96] [--json bench/results/llama-cpp.json]

All servers run at once and take turns, prompt by prompt, so that a slow moment of the machine hits them alike. A speed
is the server's own figure, tokens per second of writing without the reading of the prompt; a ratio is that of two
answers to one prompt in one round. The machine's load is recorded: on a busy one only the counts mean much.
"""

import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stridelm.prompts import read_prompts

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.cpu.setup import builtin_gguf
from bench.engines.llama_serving import PACKAGE, chat, export_draft, program, serving
from bench.measured import MATHS, machine, prompts_by_kind, script_parser, write

MATHS_COUNT = 6
DRAFTED = (1, 2, 4)
PLAIN = "plain"
Answers = dict[str, dict[str, Any]]
"""By subject: what the server says of one prompt."""


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    loads = [os.getloadavg()[0]]
    answers: list[tuple[str, Answers]] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        draft = export_draft(Path(folder) / "draft.gguf")
        common = ["-m", str(builtin_gguf()), "--threads", str(options.threads), "--parallel", "1", "--ctx-size", "2048"]
        servers = {PLAIN: running.enter_context(serving(common))}
        for count in DRAFTED:
            more = ["--spec-type", "draft-simple", "--spec-draft-model", str(draft), "--spec-draft-n-max", str(count)]
            servers[str(count)] = running.enter_context(serving([*common, *more]))
        for turn in range(options.rounds):
            for place, (kind, question) in enumerate(questions()):
                names = list(servers)
                shift = (turn + place) % len(names)  # nobody always goes first
                order = names[shift:] + names[:shift]
                answers.append((kind, {name: chat(servers[name], question, options.tokens) for name in order}))
            loads.append(os.getloadavg()[0])
            print(f"round {turn + 1} of {options.rounds}, load {loads[-1]:.1f}", flush=True)
    figures = {
        "machine": {
            **machine(options.threads),
            "load": loads,
            "engine": PACKAGE if len(program()) > 1 else program()[0],
        },
        "rounds": options.rounds,
        "tokens": options.tokens,
        "kinds": {
            name: {subject: summary(some, subject) for subject in servers}
            for name, some in (
                ("maths", [each for kind, each in answers if kind == "maths"]),
                ("other", [each for kind, each in answers if kind != "maths"]),
            )
        },
    }
    print(json.dumps(figures, indent=2))
    write(options.json, figures)


def questions() -> list[tuple[str, str]]:
    """Kind and question: some of the maths questions that nobody was trained on, and one of each other kind."""
    maths = [("maths", str(line.prompt)) for line in read_prompts(MATHS)[:MATHS_COUNT]]
    return maths + [(kind, texts[0]) for kind, texts in reversed(prompts_by_kind().items()) if kind != "maths"]


def summary(answers: list[Answers], subject: str) -> dict[str, Any]:
    """Of some answers: medians, quartiles, and how they compare with those of the plain server."""
    own, plain = ([each[name] for each in answers] for name in (subject, PLAIN))
    speeds = [each["timings"]["predicted_per_second"] for each in own]
    ratios = [mine / theirs["timings"]["predicted_per_second"] for mine, theirs in zip(speeds, plain, strict=True)]
    drafted, accepted = (sum(each["timings"].get(name, 0) for each in own) for name in ("draft_n", "draft_n_accepted"))
    return {
        "answers": len(own),
        "identical": sum(mine["tokens"] == theirs["tokens"] for mine, theirs in zip(own, plain, strict=True)),
        "tokens_per_second": statistics.median(speeds),
        "quartiles": statistics.quantiles(speeds, n=4)[::2],
        "ratio": statistics.median(ratios),
        "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
        "drafted": drafted,
        "accepted": accepted,
    }


if __name__ == "__main__":
    main()
