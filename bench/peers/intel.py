"""OpenVINO GenAI as a subject of the CPU benchmark: `python intel.py FILE.gguf THREADS`.

It reads the GGUF file itself. Runs in a virtual environment of its own, which has nothing of StrideLM's.
"""

import importlib
import sys
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import Any

from line_json import Message, serve

LONGEST_PROMPT = 8192
"""In tokens: read in one pass, as the pipeline does by default."""


class OpenVino:
    def __init__(self, file: Path, threads: int) -> None:
        # Not by an import statement: where types are checked, these packages are not installed.
        self.genai: Any = importlib.import_module("openvino_genai")
        self.openvino: Any = importlib.import_module("openvino")
        self.numpy: Any = importlib.import_module("numpy")
        self.threads = threads
        # It stores what it made of the file beside it, for `time_rows`: not in the user's folder.
        self.folder = tempfile.TemporaryDirectory()
        link = Path(self.folder.name) / "model.gguf"
        link.symlink_to(file.resolve())
        # By default it keeps the prompts that it has read. Here everybody reads them anew, at the first token's cost.
        scheduling = self.genai.SchedulerConfig()
        scheduling.enable_prefix_caching = False
        scheduling.max_num_batched_tokens = LONGEST_PROMPT
        self.pipeline = self.genai.LLMPipeline(
            str(link), "CPU", scheduler_config=scheduling, INFERENCE_NUM_THREADS=threads, enable_save_ov_model=True
        )
        self.about: Message = {
            "version": self.genai.get_version(),
            "capabilities": self.openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
        }

    def answer(self, request: Message) -> Message:
        settings = self.genai.GenerationConfig()
        settings.do_sample = False
        # The ends of a text have no chance before the least number of tokens is written.
        settings.max_new_tokens = settings.min_new_tokens = request["tokens"]
        settings.stop_token_ids = set(request["banned"])
        settings.eos_token_id = request["banned"][0]
        started = time.perf_counter()
        ids = self.numpy.array([request["ids"]], dtype="int64")
        tensors = [self.openvino.Tensor(each) for each in (ids, self.numpy.ones_like(ids))]
        result = self.pipeline.generate(self.genai.TokenizedInputs(*tensors), settings)
        seconds = time.perf_counter() - started
        written = [int(token) for token in result.tokens[0]]
        return {
            "ids": written,
            "first_tokens": 1,
            "first_seconds": result.perf_metrics.get_ttft().mean / 1e3,
            "seconds": seconds,
            "forwards": len(written),
        }

    def time_rows(self, request: Message) -> Message:
        """Its state cannot be shortened, so the text is read anew before every width, off the clock."""
        forward, context = self._forward, request["context"]
        times: dict[str, float] = {}
        for width in request["rows"]:
            forward.reset_state()
            self._infer(context, 0)
            started = time.perf_counter()
            self._infer(width, context)
            times[str(width)] = time.perf_counter() - started
        return {"times": times}

    @cached_property
    def _forward(self) -> Any:
        settings = {"INFERENCE_NUM_THREADS": self.threads, "PERFORMANCE_HINT": "LATENCY"}
        stored = Path(self.folder.name) / "openvino_model.xml"
        return self.openvino.Core().compile_model(stored, "CPU", settings).create_infer_request()

    def _infer(self, rows: int, context: int) -> None:
        numpy = self.numpy
        self._forward.infer(
            {
                "input_ids": numpy.ones((1, rows), dtype="int64"),
                "attention_mask": numpy.ones((1, context + rows), dtype="int64"),
                "position_ids": numpy.arange(context, context + rows, dtype="int64")[None],
                "beam_idx": numpy.zeros(1, dtype="int32"),
            }
        )


if __name__ == "__main__":
    file, threads = sys.argv[1:]
    serve(lambda: OpenVino(Path(file), int(threads)))
