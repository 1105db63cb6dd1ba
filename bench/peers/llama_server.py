"""llama.cpp's server without a build: `python llama_server.py`, with the options of `llama-server` that are below.

The wheel xllamacpp (PyPI, MIT) holds llama.cpp, its server included, and runs it inside Python. It runs in a virtual
environment of its own, which has nothing of StrideLM's. Ends with its standard input.
"""

import argparse
import importlib
import sys
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--spec-type", choices=("draft-simple",))
    parser.add_argument("--spec-draft-model")
    parser.add_argument("--spec-draft-n-max", type=int)
    parser.add_argument("--ctx-size", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--cache-type-k", choices=("f16", "f32"), default="f16")
    parser.add_argument("--cache-type-v", choices=("f16", "f32"), default="f16")
    options = parser.parse_args()

    # Not by an import statement: where types are checked, this package is not installed.
    llama: Any = importlib.import_module("xllamacpp")
    kinds = {"f16": llama.ggml_type.GGML_TYPE_F16, "f32": llama.ggml_type.GGML_TYPE_F32}
    params = llama.CommonParams()
    params.model.path = options.model
    params.n_ctx, params.n_parallel, params.port = options.ctx_size, options.parallel, options.port
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.cache_type_k, params.cache_type_v = kinds[options.cache_type_k], kinds[options.cache_type_v]
    if options.spec_type:
        params.speculative.types = [llama.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        params.speculative.draft.mparams.path = options.spec_draft_model
        params.speculative.draft.n_max = options.spec_draft_n_max
        params.speculative.draft.cpuparams.n_threads = options.threads
        params.speculative.draft.cpuparams_batch.n_threads = options.threads
    server = llama.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
