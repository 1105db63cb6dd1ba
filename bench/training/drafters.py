"""Who drafts best, whatever the machine: masks, heads, a draft model and n-grams on the same greedy answers.

    python bench/training/drafters.py --adapter FOLDER --heads FOLDER --draft FOLDER --json bench/results/drafters.json

Each is walked over the base model's own answers as `stridelm acceptance` does it: a chain of drafts at every forward,
taken as far as it is right. What drafting costs is not counted; `bench/decoding/decoders.py` measures time.
"""

import argparse
import platform
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.backends.torch.draft_layers import load_layers
from stridelm.backends.torch.heads import heads_for, load_heads
from stridelm.draft.ngram import SHORTEST_MATCH, longest_match
from stridelm.models.adapter import check_base, load_adapter
from stridelm.prompts import PromptLine, read_prompts
from stridelm.settings import LoadSettings
from stridelm.train.acceptance import Measure, Tally, total
from stridelm.train.answers import greedy_answers
from stridelm.train.chain_scorer import Noise
from stridelm.train.rollouts import Text
from stridelm.train.students.readers import (
    CHAIN,
    Form,
    HeadsReader,
    Judge,
    MaskReader,
    ModelReader,
    Reader,
    right_tokens,
)
from stridelm.train.students.student import Student

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import BENCH, KINDS, MATHS, script_parser, write

SHIPPED = BENCH.parent / "src" / "stridelm" / "adapters"
SETS = {"GSM8K, held out": MATHS, "twelve kinds": KINDS}
DRAFTS = 8


class NgramReader:
    """Look-up in the text so far, as the decoder `ngram` does it."""

    drafts = DRAFTS
    forms: tuple[Form, ...] = CHAIN

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, ids_BT: torch.Tensor, noise: Noise | None = None) -> Judge:
        texts = ids_BT.cpu().numpy()

        def judge(anchors_B1: torch.Tensor) -> torch.Tensor:
            found_BK = np.full((len(texts), self.drafts), -2)  # no token: what is not proposed is not right
            for row, anchor in enumerate(anchors_B1[:, 0].tolist()):
                known = texts[row, : anchor + 2]  # up to the newest token
                place, length = longest_match(known, longest=self.drafts)
                if length >= SHORTEST_MATCH:
                    draft = known[place : place + min(self.drafts, length)]
                    found_BK[row, : len(draft)] = draft
            drafts_BK = torch.from_numpy(found_BK).to(ids_BT.device)
            return (drafts_BK == right_tokens(ids_BT, anchors_B1, self.drafts))[:, None]

        return judge


def main() -> None:
    parser = script_parser(__doc__, needs_json=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--adapter", type=Path, default=SHIPPED / "smollm2")
    parser.add_argument("--heads", type=Path, default=SHIPPED / "smollm2-heads")
    parser.add_argument("--draft", type=Path, default=SHIPPED / "smollm2-draft")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--count", type=int, help="of each file, the first so many prompts")
    options = parser.parse_args()
    checkpoint = load_checkpoint(options.model, LoadSettings(device=options.device), trainable=True)
    report: dict[str, Any] = {
        "model": options.model,
        "max_tokens": options.max_tokens,
        "device": torch.cuda.get_device_name() if checkpoint.network.device.type == "cuda" else platform.processor(),
        "torch": torch.__version__,
        "prompts": {},
    }
    readers = _readers(checkpoint, options)
    for name, file in SETS.items():
        lines = read_prompts(file)[: options.count]
        answers = greedy_answers(checkpoint, lines, options.max_tokens, 64, lambda what, done, of: None)
        texts = [answers[number] for number in range(len(lines))]
        report["prompts"][name] = {}
        for drafter, reader in readers.items():
            entry = _measured(reader, lines, texts)
            report["prompts"][name][drafter] = entry
            print(f"{name}, {drafter}: {entry['tokens_per_forward']:.2f} tokens per forward", flush=True)
            write(options.json, report)


def _readers(checkpoint: Checkpoint, options: argparse.Namespace) -> dict[str, Reader]:
    network = checkpoint.network
    adapter = load_adapter(options.adapter)
    check_base(options.adapter, adapter, checkpoint.name, checkpoint.fingerprint)
    heads = heads_for(checkpoint, options.heads, *load_heads(options.heads))
    return {
        "self": MaskReader(network, Student.of(network, adapter)),
        "heads": HeadsReader(network, heads),
        "draft": ModelReader(load_layers(options.draft, checkpoint), DRAFTS),
        "ngram": NgramReader(network.device),
    }


def _measured(reader: Reader, lines: list[PromptLine], texts: list[Text]) -> dict[str, Any]:
    categories = {id(text): line.category for line, text in zip(lines, texts, strict=True)}
    by_category: dict[str | None, list[Tally]] = defaultdict(list)
    for text, tally in Measure(reader)(texts):
        by_category[categories[id(text)]].append(tally)
    parts = {str(name): total(tallies) for name, tallies in by_category.items()}
    whole = total(parts.values())
    return {
        "answers": whole.texts,
        "tokens": whole.tokens,
        "forwards": whole.forwards,
        "tokens_per_forward": whole.tokens_per_forward,
        "mean_over_categories": sum(part.tokens_per_forward for part in parts.values()) / len(parts),
        "acceptance": [round(rate, 4) for rate in whole.acceptance],
        "categories": {name: round(part.tokens_per_forward, 4) for name, part in sorted(parts.items())},
    }


if __name__ == "__main__":
    main()
