"""Learns what is known of drafts before a text has shown anything, and writes it into the package.

    python bench/replay/priors.py SAMPLED.npz [--greedy bench/results/replay-traces.npz]

The regressions of bench/replay/prior.py over all texts of recordings (bench/replay/record.py), of greedy answers and of
ones at temperature 0.7.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.replay.prior import Prior, learn
from bench.replay.run import TRACES
from bench.replay.trace import load
from stridelm.decode.draft_prior import FILE

_DIGITS = 3


def kept(prior: Prior) -> dict[str, float | list[float]]:
    """As the package keeps it."""
    return {
        name: [round(each, _DIGITS) for each in value] if isinstance(value, tuple) else round(value, _DIGITS)
        for name, value in asdict(prior).items()
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sampled", type=Path, help="a recording at temperature 0.7")
    parser.add_argument("--greedy", type=Path, default=TRACES, help="a greedy one")
    options = parser.parse_args(arguments)
    found = {name: kept(learn(load(file))) for name, file in (("greedy", options.greedy), ("sampled", options.sampled))}
    FILE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
