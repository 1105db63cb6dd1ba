"""What SGLang's UNO would make of our gated adapter: rows of random tokens where the adapter expects its masks.

    python bench/engines/noise_rows.py [--prompts 8] [--tokens 48] [--json bench/results/noise-rows.json]

UNO feeds a draft-only LoRA with tokens drawn at random, and has no sequential head. Here our own decoder does the same:
the adapter's mask embeddings give way to those of tokens drawn at random, three draws, and the head is left out. Tokens
per forward are counted, so the machine's load does not matter.
"""

import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from stridelm.backends.torch.checkpoint import load_checkpoint
from stridelm.models.adapter import MASK_EMBEDDING, load_adapter, save_adapter
from stridelm.models.builtin import builtin_adapter
from stridelm.settings import DEFAULT_MODEL, LoadSettings

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.measured import MATHS, machine, script_parser, write

DRAWS = 3


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    own = builtin_adapter()
    assert own is not None
    with tempfile.TemporaryDirectory() as working:
        prompts = Path(working) / "prompts.jsonl"
        prompts.write_text("".join(MATHS.read_text().splitlines(keepends=True)[: options.prompts]))

        def measure(name: str, adapter: Path, *more: str) -> dict[str, Any]:
            command = [sys.executable, "-m", "stridelm", "acceptance", "--prompts", str(prompts), "--json",
                       "--adapter", str(adapter), "--max-tokens", str(options.tokens), "--device", "cpu",
                       *more]  # fmt: skip
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            print(name, *more, found["tokens_per_forward"], flush=True)
            return found | {"adapter": name, "prompts": MATHS.name}  # in place of where they lie on this machine

        figures = {
            "machine": machine(torch.get_num_threads()),
            "prompts": options.prompts,
            "tokens": options.tokens,
            "own": measure(own.name, own),
            "without head": measure(own.name, own, "--no-sequential-head"),
            "noise": [
                measure(
                    f"{own.name} with random tokens for masks, seed {seed}",
                    noisy(own, Path(working) / str(seed), seed),
                    "--no-sequential-head",
                )
                for seed in range(DRAWS)
            ],
        }
    figures["noise median"] = statistics.median(entry["tokens_per_forward"] for entry in figures["noise"])
    write(options.json, figures)


def noisy(own: Path, folder: Path, seed: int) -> Path:
    """The adapter with tokens drawn at random in place of its masks."""
    adapter = load_adapter(own)
    base = load_checkpoint(DEFAULT_MODEL, LoadSettings(device="cpu"), trainable=True)
    embedding: Any = base.network.get_input_embeddings()
    chance = torch.Generator().manual_seed(seed)
    tokens = torch.randint(base.vocabulary, (adapter.config.masks,), generator=chance)
    tensors = adapter.tensors | {MASK_EMBEDDING: embedding.weight[tokens].clone()}
    shutil.rmtree(folder, ignore_errors=True)
    save_adapter(folder, dataclasses.replace(adapter, tensors=tensors))
    return folder


if __name__ == "__main__":
    main()
