"""Set 300 of GSM8K's training questions aside for measuring; the rest may be trained on.

python bench/prompts/split_gsm8k.py gsm8k_train.jsonl [--train FILE]
"""

import argparse
import json
import random
from collections.abc import Iterable
from pathlib import Path

from stridelm.train.near_duplicates import Sieve

HELD_OUT = 300
OUTPUT = Path(__file__).with_name("gsm8k_heldout.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="GSM8K's training questions, JSON lines with `question` and `answer`")
    parser.add_argument("--train", type=Path, help="also write the remaining questions there")
    options = parser.parse_args()
    with options.source.open(encoding="utf-8") as source:
        entries = [json.loads(line) for line in source]
    questions = [entry["question"] for entry in entries]
    # In the order of the draw, so that the first few are a fair sample, too.
    held_out = random.Random(0).sample(range(len(questions)), HELD_OUT)
    write(OUTPUT, ({"category": "gsm8k", "question": questions[line], "line": line} for line in held_out))
    if options.train:
        sieve = Sieve()
        for line in held_out:
            sieve.admit(questions[line])
        # What is nearly a held-out question, or one before it, is left out as well.
        rest = [line for line in range(len(questions)) if line not in set(held_out) and sieve.admit(questions[line])]
        write(options.train, ({"question": questions[line], "answer": entries[line]["answer"]} for line in rest))


def write(file: Path, entries: Iterable[dict[str, object]]) -> None:
    file.write_text("".join(f"{json.dumps(entry, ensure_ascii=False)}\n" for entry in entries), encoding="utf-8")


if __name__ == "__main__":
    main()
