"""Runs a function of fixed-shape tensors as a CUDA graph, in one launch: launching thousands of small kernels one by
one takes longer than running them. On a CPU it just calls the function."""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import nn

_WARM_UP = 2
"""Calls before a capture: they compile kernels and allocate lasting buffers, which must not happen in a capture."""


class Graphed:
    """Calls `function(*tensors)`. Calls with the same key have the same shapes and make the same launches.

    Tensors that the function changes in place must keep their memory. Its result is valid until the next call.
    """

    def __init__(
        self,
        function: Callable[..., torch.Tensor],
        network: nn.Module,
        device: torch.device,
        *,
        captures: bool = True,
        pool: Any = None,
    ) -> None:
        """`network`: the network that the function runs; `captures`: whether it may be captured at all; `pool`: memory
        pool, shared with other graphs that never run at the same time."""
        self.function = function
        # How many rows an expert gets depends on the data: a graph cannot have such shapes.
        has_experts = any(weight.dim() == 3 for weight in network.parameters())
        self.captures = captures and device.type == "cuda" and not has_experts
        self._calls: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, tuple[torch.Tensor, ...], torch.Tensor]] = {}
        if self.captures:
            self._stream = torch.cuda.Stream(device)
            self._pool = pool or torch.cuda.graph_pool_handle()

    def __call__(self, key: Hashable, *tensors: torch.Tensor) -> torch.Tensor:
        if not self.captures:
            return self.function(*tensors)
        if key not in self._graphs:
            self._calls[key] += 1
            if self._calls[key] <= _WARM_UP:
                return self._run_aside(*tensors)
            self._capture(key, *tensors)
        graph, places, output = self._graphs[key]
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor)
        graph.replay()
        return output

    def _run_aside(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Warm up on the same stream that will be captured."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            output = self.function(*tensors)
        torch.cuda.current_stream().wait_stream(self._stream)
        return output

    def _capture(self, key: Hashable, *tensors: torch.Tensor) -> None:
        places = tuple(tensor.clone() for tensor in tensors)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            output = self.function(*places)
        self._graphs[key] = graph, places, output


class HostCopy:
    """An asynchronous copy of a tensor to the host. Later work on the device does not change it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        is_cuda = tensor.device.type == "cuda"
        self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_cuda)
        self._copy.copy_(tensor, non_blocking=True)
        self._arrived = torch.cuda.Event() if is_cuda else None
        if self._arrived is not None:
            self._arrived.record()

    def wait(self) -> torch.Tensor:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy
