"""StrideLM as a subject of the CPU benchmark: `python ours.py MODEL ADAPTER BACKEND ACTIVATIONS THREADS`.

ADAPTER is a folder, or `-` for the model's own. BACKEND is `native` or `torch`; ACTIVATIONS is
`int16` or `int8`, or `-` for torch, which has no such choice. A request's mode is a decoder.
"""

import sys
import time
from typing import Any

from line_json import Message, serve

from stridelm import LoadSettings, SamplingParams, __version__, load
from stridelm.layout import lay_out, make_block
from stridelm.types import Stride

NOT_CHOSEN = "-"


class Ours:
    def __init__(self, model: str, adapter: str, backend: str, activations: str, threads: int) -> None:
        choice: dict[str, Any] = {"backend": backend}
        if activations != NOT_CHOSEN:
            choice["activations"] = activations
        settings = LoadSettings(device="cpu", threads=threads, **choice)
        self.model = load(model, adapter=None if adapter == NOT_CHOSEN else adapter, settings=settings)
        self.about: Message = {"version": __version__, "backend": backend, "activations": activations}

    def answer(self, request: Message) -> Message:
        """One step after the other, as `generate` does, but from token ids."""
        model, engine = self.model, self.model.engine
        decoder = model.check(request["mode"])
        params = SamplingParams(
            max_tokens=request["tokens"], logit_bias=dict.fromkeys(request["banned"], float("-inf"))
        )
        model.forget()
        started = time.perf_counter()
        sequence = model.sequence(list(request["ids"]), params, decoder)
        engine.add(sequence)
        first_tokens, first_seconds = 0, 0.0
        while sequence.finish_reason is None:
            for _, event in engine.step():
                if not isinstance(event, Stride):
                    raise event
            if not first_tokens and sequence.stats.tokens:
                first_tokens, first_seconds = sequence.stats.tokens, time.perf_counter() - started
        return {
            "ids": sequence.tokens[len(request["ids"]) :],
            "first_tokens": first_tokens,
            "first_seconds": first_seconds,
            "seconds": time.perf_counter() - started,
            "forwards": sequence.stats.forwards,
        }

    def time_rows(self, request: Message) -> Message:
        forward, context = self.model.engine.forward, request["context"]
        times: dict[str, float] = {}
        for width in request["rows"]:
            rows = lay_out([make_block(context, [1] * width, reads_all=True)])
            table = forward.cache.open(context + width)
            table.length = context  # nothing was read: for timing, any keys will do
            started = time.perf_counter()
            forward(rows, [table])
            times[str(width)] = time.perf_counter() - started
            forward.cache.free(table)
        return {"times": times}


if __name__ == "__main__":
    model, adapter, backend, activations, threads = sys.argv[1:]
    serve(lambda: Ours(model, adapter, backend, activations, int(threads)))
