"""Write the token ids that real llama.cpp gives for SentencePiece vocabularies: `llama_cpp_spm_ids.json`.

    python make_spm_ids.py --lib-dir .../bins/linux-x64 --out-dir tests/data \\
        --gguf tinyllama.gguf --gguf gemma3-270m.gguf

(see make_llama_cpp_ids.py for llama.cpp itself). The small vocabulary in it was trained here. It has what real ones
have: pieces by score, runs of spaces with one score for all, tokens for bytes, tokens of every type. It is read in two
ways, as Llama's files say (a space before each text) and as Gemma's do (none, runs of spaces as tokens of their own).
Ids of many made-up texts are kept as one hash, and of real files nothing else: so nothing of a model's vocabulary is
here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gguf import GGUFWriter
from make_llama_cpp_ids import CHATML, LONG, PLAIN_TEXTS, PYTHON, LlamaCpp, describe_library
from tokenizers import Tokenizer, models, trainers

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
from odd_texts import odd_texts

MADE_UP = 2000
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
TRAINING_TEXTS = [LONG, PYTHON, CHATML, "banana abababab aaaaaaa aabaab ---- ====== anan the then other these "] * 2
SPACES = [" " * size for size in range(2, 9)] + ["\n", "\n\n", "\n\n\n"]
SETTINGS: dict[str, dict[str, bool]] = {
    "llama": {},
    "gemma": {"add_space_prefix": False, "add_bos_token": True, "add_eos_token": True},
}
TEXTS = [*PLAIN_TEXTS, *("<s>a</s> <tool> b<tool>c  <|end|> d<gone>e", "<unk>", " <tool>", "<s> <s>", "▁▁a ▁")]

Vocabulary = list[tuple[str, float, int]]


def train() -> Vocabulary:
    """Tokens with scores and types."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=420, min_frequency=2, show_progress=False)
    lines = [line.replace(" ", "▁") for text in TRAINING_TEXTS for line in text.splitlines()]
    tokenizer.train_from_iterator(lines, trainer)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = [
        piece for piece in sorted(vocabulary, key=vocabulary.__getitem__) if set(piece) != {"▁"} and piece != "\n"
    ]
    pieces.sort(key=lambda piece: len(piece) == 1)  # letters have the lowest scores, as in Llama's vocabulary
    return [
        *(("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)),
        *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
        *(("▁" * size, -1e9, NORMAL) for size in (2, 3, 4, 5, 6, 7, 8, 12, 16)),
        # Unused tokens are merged like others.
        *((piece, -float(rank), UNUSED if rank % 20 == 10 else NORMAL) for rank, piece in enumerate([*pieces, "▁"])),
        *(("<tool>", -1000.0, USER_DEFINED), ("<|end|>", -1000.0, CONTROL), ("<gone>", -2000.0, UNUSED)),
        ("qzj", -3000.0, NORMAL),  # from no merge
    ]


def as_gemma(vocabulary: Vocabulary) -> Vocabulary:
    return [*(entry for entry in vocabulary if entry[1] != -1e9), *((run, -4000.0, USER_DEFINED) for run in SPACES)]


def write(vocabulary: Vocabulary, settings: dict[str, bool], path: Path) -> None:
    writer = GGUFWriter(path, arch="llama")
    writer.add_tokenizer_model("llama")
    tokens, scores, kinds = zip(*vocabulary, strict=True)
    writer.add_token_list(list(tokens))
    writer.add_token_scores(list(scores))
    writer.add_token_types(list(kinds))
    for name, value in settings.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def digest(lists: Iterable[list[int]]) -> str:
    return hashlib.sha256(json.dumps(list(lists), separators=(",", ":")).encode()).hexdigest()


def synthetic(llama: LlamaCpp, name: str, vocabulary: Vocabulary) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spm.gguf"
        write(vocabulary, SETTINGS[name], path)
        with llama.vocab(path) as vocab:
            return {
                "settings": SETTINGS[name],
                "tokens": [entry[0] for entry in vocabulary],
                "scores": [entry[1] for entry in vocabulary],
                "token_type": [entry[2] for entry in vocabulary],
                "whole": llama.tokenize(vocab, "banana", True, add_special=True),
                "cases": [[text, llama.tokenize(vocab, text, True)] for text in TEXTS],
                "made_up": digest(llama.tokenize(vocab, text, True) for text in odd_texts(MADE_UP)),
            }


def real(llama: LlamaCpp, gguf: Path) -> dict[str, Any]:
    with llama.vocab(gguf) as vocab:
        return {
            "sha256": hashlib.sha256(gguf.read_bytes()).hexdigest(),
            "texts": digest(llama.tokenize(vocab, text, True) for text in TEXTS),
            "made_up": digest(llama.tokenize(vocab, text, True) for text in odd_texts(MADE_UP)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lib-dir", type=Path, required=True, help="folder of libllama.*.so")
    parser.add_argument("--gguf", type=Path, action="append", default=[], help="GGUF with a SentencePiece vocabulary")
    parser.add_argument("--out-dir", type=Path, required=True, help="folder to write the JSON file to")
    args = parser.parse_args()

    llama = LlamaCpp(args.lib_dir)
    vocabulary = train()
    result = {
        "library": describe_library(llama.path),
        "synthetic": {
            "llama": synthetic(llama, "llama", vocabulary),
            "gemma": synthetic(llama, "gemma", as_gemma(vocabulary)),
        },
        "made_up": MADE_UP,
        "files": {gguf.name: real(llama, gguf) for gguf in args.gguf},
    }
    text = json.dumps(result, separators=(",", ":")).replace('],["', '],\n["').replace('"files"', '\n"files"')
    (args.out_dir / "llama_cpp_spm_ids.json").write_text(text + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
