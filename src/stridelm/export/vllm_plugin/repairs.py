"""What must be mended in vLLM for drafts to be lossless under sampling.

vLLM 0.32 on a CPU, without Triton, spreads the requests' temperatures, top-k and top-p over the drafted rows by a
routine that rounds them to whole numbers and then writes them into a copy: the rows are sampled with whatever lay in
memory. Greedy decoding does not pass there. vLLM lets platforms replace its routines, and so do we. And where a step
has nothing to verify, as the last one of an answer may, top-k asks for the largest of no numbers.
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
    """Every request's value once for each of its rows; `ends`: how many rows there are up to and with each request."""
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
