"""Everything that the plugin imports from vLLM, in one place: check this file when a new version of vLLM comes out.

vLLM is installed in a separate environment, which the type checker does not see: all its names are typed `Any`.
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
