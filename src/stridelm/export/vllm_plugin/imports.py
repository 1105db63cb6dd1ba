"""All that the plugin takes from vLLM, in one place: what to look at when another version of vLLM comes out.

vLLM lives in an environment of its own, where the type checker does not see it: its names are anything to us.
"""

from importlib import import_module
from typing import Any


def _take(module: str, name: str) -> Any:
    return getattr(import_module(f"vllm.{module}"), name)


CUDAGraphMode = _take("config", "CUDAGraphMode")
DraftModelProposer = _take("v1.spec_decode.draft_model", "DraftModelProposer")
HAS_TRITON = _take("triton_utils", "HAS_TRITON")
LinearBase = _take("model_executor.layers.linear", "LinearBase")
current_platform = _take("platforms", "current_platform")
gpu_model_runner: Any = import_module("vllm.v1.worker.gpu_model_runner")
register_kernels = _take("triton_utils.dispatcher", "register_kernels")
rejection_sampler: Any = import_module("vllm.v1.sample.rejection_sampler")
set_forward_context = _take("forward_context", "set_forward_context")
