"""All that the plugin takes from vLLM, in one place: what to look at when another version of vLLM comes out.

vLLM lives in an environment of its own, so the type checker does not see it.
"""
# pyright: reportMissingImports=false

from vllm.config import CUDAGraphMode
from vllm.forward_context import set_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import LinearBase
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.worker import gpu_model_runner

__all__ = ["CUDAGraphMode", "DraftModelProposer", "LinearBase", "gpu_model_runner", "init_logger", "set_forward_context"]
