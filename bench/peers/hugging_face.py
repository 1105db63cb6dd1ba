"""transformers' `generate` in float32 as a subject of the CPU benchmark: `python hugging_face.py FILE.gguf THREADS`.

The weights are those of the GGUF file, read by our own reader: transformers' needs a package more.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from line_json import Message, serve
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, DynamicCache
from transformers.generation.streamers import BaseStreamer

from stridelm.models.gguf import read_gguf


class FirstToken(BaseStreamer):
    """Notes when the first token came. The prompt is put first, before it is read."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def put(self, value: Any) -> None:
        if len(self.moments) < 2:
            self.moments.append(time.perf_counter())

    def end(self) -> None:
        pass


class HuggingFace:
    def __init__(self, file: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        stored = read_gguf(file)
        family: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(stored.config)]
        network = family.from_pretrained(None, config=stored.config, state_dict=stored.weights, dtype=torch.float32)
        self.network = network.eval()
        self.about: Message = {"version": transformers.__version__, "torch": torch.__version__, "dtype": "float32"}

    @torch.inference_mode()
    def answer(self, request: Message) -> Message:
        first = FirstToken()
        started = time.perf_counter()
        ids = torch.tensor([request["ids"]])
        output = self.network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=request["tokens"],
            suppress_tokens=request["banned"],
            streamer=first,
        )
        written = output[0, ids.shape[1] :].tolist()
        return {
            "ids": written,
            "first_tokens": 1,
            "first_seconds": first.moments[1] - started,
            "seconds": time.perf_counter() - started,
            "forwards": len(written),
        }

    @torch.inference_mode()
    def time_rows(self, request: Message) -> Message:
        context, cache = request["context"], DynamicCache(config=self.network.config)
        self.network(torch.ones(1, context, dtype=torch.long), past_key_values=cache)
        times: dict[str, float] = {}
        for width in request["rows"]:
            rows = torch.ones(1, width, dtype=torch.long)
            started = time.perf_counter()
            self.network(rows, past_key_values=cache)
            times[str(width)] = time.perf_counter() - started
            cache.crop(context)
        return {"times": times}


if __name__ == "__main__":
    file, threads = sys.argv[1:]
    serve(lambda: HuggingFace(Path(file), int(threads)))
