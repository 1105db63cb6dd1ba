"""Several processes that train as one (torchrun, accelerate launch): each takes its share of every batch's texts.

Adapters, heads and draft models are held whole by every process, and gradients are summed (DDP). Of a model that is
tuned in full every process holds its shard of weights, gradients and moments (FSDP2).
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

_PATIENCE = timedelta(hours=24)
"""The first process makes the rollouts while the others wait."""


@dataclass(frozen=True, slots=True)
class Team:
    """This process among all that train together."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this one writes files and speaks."""
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
        """The first process does it, then all others: what is on disk by then they find."""
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
    """The team that the launcher's environment names, on devices of this kind; a team of one without a launcher."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    if ":" in device:
        raise InputError(f"--device {device} names one device for {size} processes: leave its number out")
    on_gpu = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=_PATIENCE)
    try:
        yield Team(distributed.get_rank(), size)
        distributed.barrier()  # the launcher ends all once one has ended badly: nobody leaves before all is written
    finally:
        gc.collect()  # what holds the group goes before it: its threads abort a process that ends around them
        distributed.destroy_process_group()


class Spread:
    """An objective whose loss several processes compute, each for its share of a batch. Weights are read only inside
    `run`: there every process has those that it needs."""

    def __init__(self, objective: nn.Module, team: Team, *, shards: bool) -> None:
        self._loss: nn.Module = objective
        self._root: nn.Module | None = None
        if team.size > 1 and shards:
            network: Any = objective.student.network  # type: ignore[union-attr]
            for layer in network.base_model.layers:
                fully_shard(layer)
            # Embedding, output matrix and last norm stay whole from the loss to its gradient, which reads them.
            self._root = _Root(objective)
            fully_shard(self._root, reshard_after_forward=False)
        elif team.size > 1:
            self._loss = DistributedDataParallel(objective)

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The loss of this process's share. Its gradient is averaged over the processes."""
        return self.run(self._loss, *inputs)

    def run(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Something that runs the network."""
        return function(*inputs) if self._root is None else self._root(function, *inputs)


class _Root(nn.Module):
    """What FSDP2 takes for the whole model: weights are there while it runs, whatever it runs."""

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, function: Callable[..., Any], *inputs: Any) -> Any:
        return function(*inputs)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor, on the CPU; every process must ask."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def gather_state(network: nn.Module) -> dict[str, torch.Tensor]:
    """All of a network's state, on the CPU; what is one parameter under two names is one tensor."""
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
    """A whole tensor where and as another one lies."""
    tensor = tensor.to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements) if isinstance(like, DTensor) else tensor
