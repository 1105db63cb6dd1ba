"""Compare what two runs of lm-eval with --log_samples got for the same requests: python compare.py FOLDER FOLDER."""

import json
import sys
from pathlib import Path
from typing import Any


def samples(folder: Path, task: str) -> dict[int, list[Any]]:
    """The newest replies to each document's requests."""
    newest = max(folder.rglob(f"samples_{task}_*.jsonl"))
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    return {line["doc_id"]: line["resps"] for line in lines}


def main(first: Path, second: Path) -> None:
    one, other = samples(first, "stride_choices"), samples(second, "stride_choices")
    pairs = [
        (float(a[0][0]), float(b[0][0])) for number in one for a, b in zip(one[number], other[number], strict=True)
    ]
    largest = max(abs(a - b) for a, b in pairs)
    print(f"{len(pairs)} loglikelihoods from {min(a for a, _ in pairs):.2f} on, largest difference {largest:.2g}")
    texts, others = samples(first, "stride_answers"), samples(second, "stride_answers")
    same = sum(texts[number] == others[number] for number in texts)
    print(f"{same} of {len(texts)} texts are the same")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
