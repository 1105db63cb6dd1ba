"""Judges how many drafts steps of fixed shapes get, as on a GPU, by replay: recorded answers times measured step times.

    python bench/replay/device.py [--traces FILE.npz] [--users 1 4 8 16] [--json FILE]

Masks hang off every row, so each step drafts anew from where the text stands. The texts are written by so many users at
a time, each of whom begins the next one when one is done; all get as many drafts. Step times are those of
`bench/gpu/run.py`, by rows. Figures are tokens per second over one token at a time: for every fixed number, for
`ChainLength`, and for it with the prior alone.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import RESULTS, read, script_parser, table, write
from bench.replay.run import TRACES
from bench.replay.trace import Trace, load
from stridelm.decode.chain_length import ChainLength, TextOdds
from stridelm.decode.draft_prior import draft_priors

GPU = RESULTS / "gpu.json"
DRAFTS = (0, 2, 4, 7)
SHAPES = {"135M": "steps", "8B shape": "large"}
"""The part of the GPU's figures that has the forwards of each."""
AROUND = 0.01
"""Milliseconds of a step beside its forward."""
CHOSEN, PRIOR_ALONE = "chosen", "by the prior alone"


class Fixed(ChainLength):
    """Always the same number."""

    def __init__(self, seconds: Mapping[int, float], drafts: int) -> None:
        super().__init__(seconds)
        self.drafts = drafts

    def choose(self, texts: Iterable[TextOdds]) -> int:
        return self.drafts


class PriorAlone(TextOdds):
    def observe(self, drafts: int, emitted: int) -> None: ...


def step_times(figures: Mapping[str, Any], users: int) -> dict[int, float]:
    """Milliseconds by number of drafts, as far as so many rows were measured."""
    measured = figures["forward_with_masks"]
    rows = {drafts: (drafts + 1) ** 2 * users for drafts in DRAFTS[1:]}
    found = {drafts: _at(measured, each) for drafts, each in rows.items() if each <= max(map(int, measured))}
    return {drafts: each + AROUND for drafts, each in ({0: _at(figures["forward"], users)} | found).items()}


def _at(measured: Mapping[str, Mapping[str, float]], rows: int) -> float:
    """On straight lines between what was measured."""
    known = {int(each): entry["median"] for each, entry in measured.items()}
    return float(np.interp(rows, sorted(known), [known[each] for each in sorted(known)]))


def written(traces: Items[Trace], length: ChainLength, users: int, kind: type[TextOdds] = TextOdds) -> float:
    """Tokens per millisecond, as long as there are texts for all users."""
    waiting = iter(traces)
    texts: list[tuple[Trace, TextOdds, int]] = []
    tokens, milliseconds = 0, 0.0
    while True:
        while len(texts) < users:
            if (trace := next(waiting, None)) is None:
                return tokens / milliseconds
            texts.append((trace, kind(draft_priors()[0]), trace.prompt_length + 1))
            if len(texts) == 1:
                length.begin_texts()
        drafts = length.choose([odds for _, odds, _ in texts])
        milliseconds += length.seconds[drafts]
        going_on: list[tuple[Trace, TextOdds, int]] = []
        for trace, odds, at in texts:
            stood = min(drafts, int(trace.stood[at - 2 - trace.first_anchor, 0]))
            emitted = min(stood + 1, len(trace.tokens) - at)
            tokens += emitted
            if at + emitted < len(trace.tokens):
                odds.observe(drafts, emitted)
                going_on.append((trace, odds, at + emitted))
        texts = going_on


def figures(traces: Items[Trace], gpu: Mapping[str, Any], users: Items[int]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for shape, part in SHAPES.items():
        for count in users:
            times = step_times(gpu[part], count)
            if len(times) == 1:
                continue
            ways = {str(drafts): written(traces, Fixed(times, drafts), count) for drafts in times}
            ways[CHOSEN] = written(traces, ChainLength(times), count)
            ways[PRIOR_ALONE] = written(traces, ChainLength(times), count, PriorAlone)
            found.append({
                "shape": shape,
                "users": count,
                "milliseconds": {str(drafts): round(each, 3) for drafts, each in times.items()},
                "over_plain": {way: round(each / ways["0"], 3) for way, each in ways.items()},
            })  # fmt: skip
    return found


def device() -> str:
    """For docs/decoding.md."""
    ways = [*map(str, DRAFTS), CHOSEN, PRIOR_ALONE]
    heads = ["model", "users", *(f"{way} drafts" if way.isdigit() else way for way in ways)]
    rows = [
        [entry["shape"], str(entry["users"]), *(_cell(entry["over_plain"].get(way)) for way in ways)]
        for entry in read("replay-gpu.json")["measured"]
    ]
    return table(heads, rows)


def _cell(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def main(arguments: list[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--traces", type=Path, default=TRACES, help="made by bench/replay/record.py")
    parser.add_argument("--users", type=int, nargs="+", default=[1, 4, 8, 16])
    options = parser.parse_args(arguments)
    traces = load(options.traces)
    traces = [traces[number] for number in np.random.default_rng(0).permutation(len(traces))]
    gpu = json.loads(GPU.read_text(encoding="utf-8"))
    measured = figures(traces, gpu, options.users)
    for entry in measured:
        print(json.dumps(entry))
    write(options.json, {"traces": options.traces.name, "times": GPU.name, "measured": measured})


if __name__ == "__main__":
    main()
