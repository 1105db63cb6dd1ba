"""TensorBoard files, if tensorboard is installed."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def tensorboard_writer(folder: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that takes each entry of metrics.jsonl, from the first on. Without tensorboard it does nothing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield lambda entry: None
        return
    # After a killed run some entries are missing and others will be repeated, so start with an empty folder.
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    with SummaryWriter(str(folder / "tensorboard")) as writer:

        def add(entry: dict[str, Any]) -> None:
            for name, value in entry.items():
                if name == "acceptance":
                    for depth, rate in enumerate(value, 1):
                        writer.add_scalar(f"acceptance/{depth}", rate, entry["step"])
                elif name != "step":
                    writer.add_scalar(name, value, entry["step"])

        yield add
