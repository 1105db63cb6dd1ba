"""Learns what is known of drafts before a text has shown anything, and writes it into the package.

    python bench/replay/record.py GREEDY.npz --made-up 120
    python bench/replay/record.py SAMPLED.npz --made-up 120 --temperature 0.7
    python bench/replay/priors.py GREEDY.npz SAMPLED.npz

The regressions of bench/replay/prior.py over all texts of recordings, of greedy answers and of sampled ones. What they
say of masks goes into the built-in model's adapter, too, as `stridelm train` writes it for others.
"""

import argparse
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.replay.prior import Prior, learn
from bench.replay.trace import load
from stridelm.decode.draft_prior import FILE
from stridelm.stepper import MaskPrior

_DIGITS = 3
ADAPTER = FILE.parents[1] / "adapters" / "smollm2" / "adapter.json"


def kept(prior: Prior) -> dict[str, float | list[float]]:
    """As the package keeps it."""
    return {
        name: [round(each, _DIGITS) for each in value] if isinstance(value, tuple) else round(value, _DIGITS)
        for name, value in asdict(prior).items()
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("greedy", type=Path, help="a recording of greedy answers")
    parser.add_argument("sampled", type=Path, help="one at temperature 0.7")
    options = parser.parse_args(arguments)
    found = {name: kept(learn(load(file))) for name, file in (("greedy", options.greedy), ("sampled", options.sampled))}
    FILE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    adapter = json.loads(ADAPTER.read_text(encoding="utf-8"))
    masks = [each.name for each in fields(MaskPrior)]
    adapter["draft_prior"] = {kind: {name: kept[name] for name in masks} for kind, kept in found.items()}
    ADAPTER.write_text(json.dumps(adapter, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {FILE} and {ADAPTER}")


if __name__ == "__main__":
    main()
