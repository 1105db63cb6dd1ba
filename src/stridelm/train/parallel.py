"""Training with several processes (torchrun, accelerate launch): each takes its share of every batch's texts.

Every process holds adapters, heads and draft models completely, and gradients are averaged (DDP). If a whole model is
tuned, every process holds its shard of weights, gradients and moments (FSDP2).
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from stridelm.params import InputError

_TIMEOUT = timedelta(hours=24)
"""Long, because the other processes wait while the first one makes the rollouts."""


@dataclass(frozen=True, slots=True)
class Team:
    """This process's rank among the processes that train together."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def check(self, texts: int) -> None:
        if texts % self.size:
            raise InputError(f"--texts ({texts}) must be a multiple of the number of processes ({self.size})")

    def share(self, array: np.ndarray) -> np.ndarray:
        """This process's part of an array over the texts of a batch."""
        rows = len(array) // self.size
        return array[self.rank * rows : (self.rank + 1) * rows]

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """The first process runs the body, then all others do: these find on disk what the first one has written."""
        if self.size > 1 and not self.is_first:
            distributed.barrier()
        yield
        if self.size > 1 and self.is_first:
            distributed.barrier()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor


ALONE = Team()


@contextmanager
def joined(device: str) -> Iterator[Team]:
    """The team described by the launcher's environment variables, on devices of this kind; without a launcher, a team
    of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    if ":" in device:
        raise InputError(f"--device {device} names one device for {size} processes: leave its number out")
    on_gpu = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=_TIMEOUT)
    try:
        yield Team(distributed.get_rank(), size)
        # The launcher kills all processes once one has failed: no process leaves before everything is written.
        distributed.barrier()
    finally:
        # Objects that hold the process group must be freed before it: its threads abort a process that exits earlier.
        gc.collect()
        distributed.destroy_process_group()


class Spread:
    """An objective whose loss is computed by several processes, each for its share of a batch. Weights may be read only
    inside `run`: there FSDP2 has gathered the weights that the process needs."""

    def __init__(self, objective: nn.Module, team: Team, *, shards: bool) -> None:
        self._loss: nn.Module = objective
        self._root: nn.Module | None = None
        if team.size > 1 and shards:
            network: Any = objective.student.network  # type: ignore[union-attr]
            for layer in network.base_model.layers:
                fully_shard(layer)
            # Embedding, output matrix and last norm stay gathered after the forward pass: the backward pass reads them.
            self._root = _Root(objective)
            fully_shard(self._root, reshard_after_forward=False)
        elif team.size > 1:
            self._loss = DistributedDataParallel(objective)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The loss of this process's share of the batch. Gradients are averaged over the processes."""
        return self.run(self._loss, *inputs)

    def run(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Call a function that runs the network."""
        return function(*inputs) if self._root is None else self._root(function, *inputs)


class _Root(nn.Module):
    """The root module for FSDP2: weights are gathered while its forward runs any given function."""

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, function: Callable[..., Any], *inputs: Any) -> Any:
        return function(*inputs)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """The complete tensor, on the CPU; every process must call this."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def gather_state(network: nn.Module) -> dict[str, torch.Tensor]:
    """The complete state of a network, on the CPU. A parameter with two names (tied weights) is one tensor."""
    parameters = dict(network.named_parameters(remove_duplicate=False))
    gathered: dict[int, torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    for name, tensor in network.state_dict().items():
        key = id(parameters.get(name, tensor))
        if key not in gathered:
            gathered[key] = gather(tensor)
        state[name] = gathered[key]
    return state


def scatter(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A complete tensor, moved to the device of `like` and sharded as `like` is."""
    tensor = tensor.to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements) if isinstance(like, DTensor) else tensor
