"""GGUF files of other kinds, made by llama.cpp's own quantiser of one file's weights.

    python bench/cpu/k_quants.py FILE.gguf --kinds Q4_K_M Q6_K [--to FOLDER]

The file is dequantised to half precision first, tensor by tensor: of a file that is quantised already, the new ones are
no better than it. They are for measuring speed, and answers that must be the same. Prints their paths; needs llama.cpp
(`python bench/cpu/run.py --setup`), of which `llama-quantize` is built when it is not there yet.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.cpu import setup as cpu_setup
from bench.measured import script_parser

NOT_COPIED = (
    *("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"),
    *("general.architecture", "general.file_type", "general.quantization_version"),
)
"""The writer adds the first four by itself; the others are of the old file's kind."""


def write_halves(source: Path, to: Path) -> None:
    """Matrices in half precision, all else in float32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(to, str(reader.fields["general.architecture"].contents()), use_temp_file=True)
    for name, field in reader.fields.items():
        if name not in NOT_COPIED:
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, inner[0] if inner else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        floats = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        writer.add_tensor(tensor.name, floats.astype(np.float16) if floats.ndim == 2 else floats)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantise(halves: Path, kind: str, to: Path) -> None:
    working = to.with_suffix(f".{os.getpid()}")
    # Output heads and embeddings of 8 bits and less are llama.cpp's own choice by kind.
    subprocess.run([cpu_setup.llama_quantize(), str(halves), str(working), kind], check=True, stdout=subprocess.DEVNULL)
    working.replace(to)


def main(arguments: list[str] | None = None) -> None:
    parser: argparse.ArgumentParser = script_parser(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["Q4_K_M", "Q6_K"], help="as llama-quantize names them")
    parser.add_argument("--to", type=Path, default=cpu_setup.peers_folder())
    options = parser.parse_args(arguments)
    made = {kind: options.to / f"{options.file.stem}.{kind.lower()}.gguf" for kind in options.kinds}
    missing = {kind: file for kind, file in made.items() if not file.exists()}
    if missing:
        options.to.mkdir(parents=True, exist_ok=True)
        halves = options.to / f"{options.file.stem}.f16.{os.getpid()}"
        try:
            write_halves(options.file, halves)
            for kind, file in missing.items():
                quantise(halves, kind, file)
        finally:
            halves.unlink(missing_ok=True)
    print(*made.values(), sep="\n")


if __name__ == "__main__":
    main()
