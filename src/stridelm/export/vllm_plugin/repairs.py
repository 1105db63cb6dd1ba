"""Bug fixes in vLLM without which drafts are not lossless under sampling.

vLLM 0.32 on a CPU, without Triton, expands the requests' temperatures, top-k and top-p to the drafted rows with a
routine that rounds them to integers and then writes them into a copy: the rows are sampled with uninitialised values.
Greedy decoding does not use it. vLLM lets platforms replace its routines, and so do we. The second bug: if a step has
nothing to verify, which may happen in the last step of an answer, top-k takes the maximum of an empty tensor.
"""

from typing import Any

import torch

from stridelm.export.vllm_plugin.imports import HAS_TRITON, current_platform, register_kernels, rejection_sampler

EXPAND = "vllm.v1.sample.rejection_sampler.expand_kernel"


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    ends: torch.Tensor,
    replace_from: float,
    replace_to: float,
    *_: Any,
) -> None:
    """Repeat every request's value for each of its rows; `ends`: number of rows up to and including each request."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    replaced = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    output.copy_(replaced.repeat_interleave(counts))


def constrained(logits: torch.Tensor, *arguments: Any) -> torch.Tensor:
    return _apply_sampling_constraints(logits, *arguments) if len(logits) else logits


_apply_sampling_constraints = rejection_sampler.apply_sampling_constraints


def mend_sampling() -> None:
    if current_platform.is_cpu() and not HAS_TRITON:
        register_kernels({EXPAND: expand})
        rejection_sampler.apply_sampling_constraints = constrained
