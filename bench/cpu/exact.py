"""Whether several tokens at a time write what one at a time writes, to the last token, on the native backend.

    python bench/cpu/exact.py [--prompts FILE ...] [--count 500] [--tokens 128] [--jobs 1] [--threads 2] [--json FILE]

Every prompt is answered plainly and by `auto`, greedy and with a seed, in int16 and int8; no answer may end early. Any
difference is one too many: the exit status is 1 then.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from stridelm import LoadSettings, SamplingParams, load
from stridelm.prompts import read_prompts
from stridelm.types import Stride

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import PROMPTS, script_parser, write

SAMPLED = {"temperature": 0.8, "top_p": 0.95}


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--prompts", type=Path, nargs="*", default=sorted(PROMPTS.glob("*.jsonl")))
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--threads", type=int, default=0, help="of each; 0 takes one per core")
    options = parser.parse_args()
    texts = list(dict.fromkeys(str(line.prompt) for file in options.prompts for line in read_prompts(file)))
    texts = texts[: options.count]
    shards = [texts[number :: options.jobs] for number in range(options.jobs)]
    figures: dict[str, Any] = {}
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for activations in ("int16", "int8"):
            work = [(shard, activations, options.tokens, options.threads) for shard in shards]
            for found in pool.map(compare, work):
                for name, (prompts, tokens, different, forwards) in found.items():
                    entry = figures.setdefault(
                        f"{activations}, {name}", {"prompts": 0, "tokens": 0, "different": 0, "forwards": 0}
                    )
                    entry["prompts"] += prompts
                    entry["tokens"] += tokens
                    entry["different"] += different
                    entry["forwards"] += forwards
            print({name: entry for name, entry in figures.items() if name.startswith(activations)}, flush=True)
    write(options.json, figures)
    return int(any(entry["different"] for entry in figures.values()))


def compare(work: tuple[list[str], str, int, int]) -> dict[str, tuple[int, int, int, int]]:
    """Per way of drawing: prompts, tokens, prompts with a difference, and forwards of `auto`."""
    texts, activations, tokens, threads = work
    model = load(settings=LoadSettings(backend="native", activations=activations, threads=threads, cache_tokens=8192))
    found: dict[str, tuple[int, int, int, int]] = {}
    for name in ("greedy", "seeded"):
        prompts = written = different = forwards = 0
        for number, text in enumerate(texts):
            ids = model.encode(text)
            if len(ids) + tokens > 2048:
                continue
            drawn = SAMPLED | {"seed": number} if name == "seeded" else {}
            params = SamplingParams(max_tokens=tokens, **drawn)  # type: ignore[arg-type]
            answers = []
            for decoder in ("autoregressive", "auto"):
                sequence = model.sequence(list(ids), params, model.check(decoder))
                sequence.eos_ids = frozenset()  # what it goes on with behind its answer is a text as good as any
                model.engine.add(sequence)
                while sequence.finish_reason is None:
                    for _, event in model.engine.step():
                        if not isinstance(event, Stride):
                            raise event
                answers.append(sequence.tokens)
            forwards += sequence.stats.forwards
            prompts, written = prompts + 1, written + tokens
            different += answers[0] != answers[1]
        found[name] = prompts, written, different, forwards
    return found


if __name__ == "__main__":
    sys.exit(main())
