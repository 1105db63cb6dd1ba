"""Record llama.cpp's logits for the small files of tests/models/gguf_recorded.py, and what it dequantises blocks to.

llama.cpp itself comes prebuilt from npm:

    npm install @node-llama-cpp/linux-x64@3.22.1
    PYTHONPATH=src:tests/models:tests/helpers python tests/data/make_llama_cpp_logits.py \\
        --lib-dir node_modules/@node-llama-cpp/linux-x64/bins/linux-x64

Each file is recorded in float32, as K-quants, and as the same K-quants dequantised by this very library: llama.cpp
rounds what it multiplies by quantised weights to 8 bits, so only the last says whether the weights were read right.
Then our own logits are compared with them, for the table of docs/models.md (`make tables`); without --lib-dir nothing
is recorded anew.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from gguf_compared import largest_differences
from gguf_recorded import (
    CONTEXT,
    IDS,
    PLACES,
    RECORDED,
    RECORDED_FILES,
    SCALES,
    VOCABULARY,
    RecordedFile,
    random_blocks,
    values_digest,
)
from stridelm.files import write_json

Log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_F32 = 0


class Params(ctypes.Structure):
    """llama_model_params or llama_context_params: larger than either in the build above. Passed and returned in memory,
    so the spare bytes at the end do no harm."""

    _fields_ = (("raw", ctypes.c_ubyte * 1024),)


class Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


# Places of int32 in llama_context_params, with what llama_context_default_params sets there.
_CONTEXT_SIZE, _OUTPUTS, _FLASH, _KEYS, _VALUES = (0, 512), (6, 1), (13, -1), (26, 1), (27, 1)
_THREADS, _THREADS_OF_PROMPTS = (7, 4), (8, 4)


class LlamaCpp:
    """llama.cpp on one thread, with a cache in float32 and without flash attention."""

    def __init__(self, lib_dir: Path) -> None:
        (path,) = (path for path in lib_dir.glob("libllama.*so") if "common" not in path.name)
        self.lib: Any = ctypes.CDLL(str(path.resolve()))
        (ggml,) = lib_dir.glob("libggml.*so")
        self.base: Any = ctypes.CDLL(str((lib_dir / "libggml-base.so").resolve()))
        self.log: list[str] = []
        self._on_log = Log(lambda _level, text, _data: self.log.append(text.decode("utf-8", "replace")))
        self.lib.llama_log_set(self._on_log, None)
        ctypes.CDLL(str(ggml.resolve())).ggml_backend_load_all_from_path(str(lib_dir.resolve()).encode())
        for name, result in (
            ("llama_model_default_params", Params), ("llama_context_default_params", Params),
            ("llama_model_load_from_file", ctypes.c_void_p), ("llama_init_from_model", ctypes.c_void_p),
            ("llama_batch_init", Batch), ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float)),
        ):  # fmt: skip
            getattr(self.lib, name).restype = result
        self.lib.llama_decode.argtypes = [ctypes.c_void_p, Batch]

    def logits(self, file: Path, ids: list[int], places: tuple[int, ...]) -> np.ndarray:
        """Rows of the vocabulary's size, one per place."""
        self.log.clear()
        model = self.lib.llama_model_load_from_file(str(file).encode(), self.lib.llama_model_default_params())
        if not model:
            raise RuntimeError("llama.cpp could not load the file:\n" + "".join(self.log))
        context = self.lib.llama_init_from_model(ctypes.c_void_p(model), self._context_params())
        if not context:
            raise RuntimeError("llama.cpp made no context:\n" + "".join(self.log))
        batch = self.lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for number, token in enumerate(ids):
            batch.token[number], batch.pos[number], batch.n_seq_id[number] = token, number, 1
            batch.seq_id[number][0] = 0
            batch.logits[number] = number in places
        if self.lib.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed:\n" + "".join(self.log))
        vocabulary = len(gguf.GGUFReader(file).fields["tokenizer.ggml.tokens"].data)
        rows = [self.lib.llama_get_logits_ith(ctypes.c_void_p(context), place)[:vocabulary] for place in places]
        self.lib.llama_free(ctypes.c_void_p(context))
        self.lib.llama_model_free(ctypes.c_void_p(model))
        return np.array(rows, np.float32)

    def _context_params(self) -> Params:
        params = self.lib.llama_context_default_params()
        numbers = np.frombuffer(params.raw, np.int32)
        wanted = {_CONTEXT_SIZE: CONTEXT // 2, _OUTPUTS: 0, _FLASH: 0, _KEYS: _F32, _VALUES: _F32}
        wanted |= {_THREADS: 1, _THREADS_OF_PROMPTS: 1}
        for (place, default), value in wanted.items():
            if numbers[place] != default:
                raise RuntimeError(f"llama_context_params has another layout: {numbers[place]} at {place}")
            numbers[place] = value
        return params

    def values(self, blocks: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
        """What ggml dequantises blocks to."""
        weights, size = gguf.GGML_QUANT_SIZES[kind]
        values = np.empty(blocks.size // size * weights, np.float32)
        name = kind.name.lower().replace("_k", "_K")
        dequantise = getattr(self.base, f"dequantize_row_{name}")
        dequantise(
            ctypes.c_void_p(blocks.ctypes.data), ctypes.c_void_p(values.ctypes.data), ctypes.c_int64(values.size)
        )
        return values

    def dequantised(self, file: RecordedFile) -> RecordedFile:
        """The same file in float32, by llama.cpp's own functions."""
        tensors = {}
        for name, (array, kind) in file.tensors.items():
            values = array if kind.name == "F32" else self.values(array, kind).reshape(*array.shape[:-1], -1)
            tensors[name] = values, gguf.GGMLQuantizationType.F32
        return RecordedFile(file.architecture, file.settings, tensors)


def record(llama: LlamaCpp, folder: Path) -> None:
    recorded: dict[str, Any] = {}
    path = folder / "small.gguf"
    for name, made in RECORDED_FILES.items():
        plain, blocks = made.file(blocks=False), made.file(blocks=True)
        for kind, file in (("F32", plain), ("K", blocks), ("K in F32", llama.dequantised(blocks))):
            recorded[f"{name}: {kind}"] = llama.logits(file.write(path), IDS, PLACES)
        recorded[f"{name}: digests"] = np.array([plain.digest, blocks.digest])
    for kind in SCALES:
        count = VOCABULARY * 256 // gguf.GGML_QUANT_SIZES[kind][0]
        blocks = random_blocks(kind, count, np.random.RandomState(int(kind)))
        recorded[f"values: {kind.name}"] = np.array(values_digest(llama.values(blocks, kind)))
    np.savez_compressed(RECORDED, **recorded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib-dir", type=Path)
    lib_dir = parser.parse_args().lib_dir
    with tempfile.TemporaryDirectory() as folder:
        if lib_dir is not None:
            record(LlamaCpp(lib_dir), Path(folder))
        figures = {"engine": "node-llama-cpp 3.22.1 (llama.cpp v0.5.0)", "files": largest_differences(Path(folder))}
    write_json(Path(__file__).parent.parent.parent / "bench" / "results" / "gguf-logits.json", figures)


if __name__ == "__main__":
    main()
