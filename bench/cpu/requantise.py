"""A Q4_0 file of the built-in model's weights: the format that llama.cpp has repacked kernels for on x86. The built-in
file is Q4_1, for which it has none.

    python bench/cpu/requantise.py          makes it, if it is not there yet, and prints its path

The 4-bit matrices are quantised anew by the gguf package; everything else is copied.
"""

import os
import sys
from pathlib import Path

import gguf
from gguf import GGMLQuantizationType as Stored

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.cpu import setup as cpu_setup

_NOT_COPIED = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture", "general.file_type")
"""The writer adds these by itself, but for the last, which is another one."""


def q4_0_file() -> Path:
    """The file; made when it is not there yet."""
    file = cpu_setup.peers_folder() / "smollm2-135m-instruct.q4_0.gguf"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        working = file.with_suffix(f".{os.getpid()}")
        write_q4_0(cpu_setup.builtin_gguf(), working)
        working.replace(file)
    return file


def weights_of(file: Path) -> str:
    """For tables: our two files by their kind."""
    return {cpu_setup.builtin_gguf(): "Q4_1", q4_0_file(): "Q4_0"}.get(file, file.name)


def write_q4_0(source: Path, to: Path) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(to, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name not in _NOT_COPIED:
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, inner[0] if inner else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    for tensor in reader.tensors:
        if tensor.tensor_type is Stored.Q4_1:
            blocks = gguf.quantize(gguf.dequantize(tensor.data, Stored.Q4_1), Stored.Q4_0)
            writer.add_tensor(tensor.name, blocks, raw_dtype=Stored.Q4_0)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    print(q4_0_file())
