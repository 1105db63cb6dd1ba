"""The gated adapter on disk: a named, versioned format of safetensors shards and a JSON file (docs/adapter-format.md).

It is applied to mask rows only, so it is not a LoRA that may be merged: names and format are of its own, so that no
loader of plain LoRA takes it for one.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from stridelm.model.sequential_head import SequentialHead
from stridelm.model.store import read_weights
from stridelm.params import InputError

FORMAT = "stridelm-gated-adapter"
VERSION = 1
CONFIG = "adapter.json"
SHARD_BYTES = 15_000_000
"""Small enough for every code host and mail gateway."""
MASK_EMBEDDING = "mask_embedding"
_SEQUENTIAL = "sequential_head."


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What `adapter.json` holds beside the format's name and version."""

    base: str
    """The base model's name when the adapter was trained."""
    fingerprint: str
    """Of the base model's weights: `stridelm.model.load.fingerprint`."""
    width: int
    """The base model's hidden size."""
    rank: int
    masks: int
    """The longest chain of masks that was trained: k - 1."""
    mask_token: str
    mask_token_id: int
    extends_vocabulary: bool
    """Whether the mask token's id lies behind the base model's vocabulary, as no slot in it was unused."""
    targets: tuple[str, ...]
    """The linear layers that have a low-rank part, by their names in the base model."""
    unadapted: tuple[str, ...]
    """Layers with weights that have none: the experts of a mixture."""
    sequential_size: int
    """The sequential head's state size; 0 where there is no such head."""

    @property
    def k(self) -> int:
        return self.masks + 1


@dataclass(frozen=True, slots=True)
class Adapter:
    """Settings and tensors, as they are on disk.

    `mask_embedding`: masks x width, one row per depth. `<target>.down`: rank x in. `<target>.up`: out x rank.
    `sequential_head.*`: the state of a SequentialHead.
    """

    config: AdapterConfig
    tensors: dict[str, torch.Tensor]

    @property
    def mask_embedding(self) -> torch.Tensor:
        return self.tensors[MASK_EMBEDDING]

    def low_rank(self, target: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The two factors of a target: down (rank x in) and up (out x rank)."""
        return self.tensors[f"{target}.down"], self.tensors[f"{target}.up"]

    def sequential_head(self) -> SequentialHead | None:
        """The head in float32, on the CPU, without gradients; None where the adapter has none."""
        if not self.config.sequential_size:
            return None
        head = SequentialHead(self.config.width, self.config.sequential_size)
        prefix = len(_SEQUENTIAL)
        head.load_state_dict(
            {name[prefix:]: tensor.float() for name, tensor in self.tensors.items() if name.startswith(_SEQUENTIAL)}
        )
        return head.requires_grad_(False)


def sequential_tensors(head: SequentialHead) -> dict[str, torch.Tensor]:
    return {f"{_SEQUENTIAL}{name}": tensor for name, tensor in head.state_dict().items()}


def save_adapter(folder: Path, adapter: Adapter) -> None:
    """Write an adapter in bfloat16 into a folder, the JSON file last: without it there is no adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, torch.Tensor]] = [{}]
    room = SHARD_BYTES
    for name, tensor in adapter.tensors.items():
        stored = tensor.detach().to("cpu", torch.bfloat16).contiguous()
        if stored.nbytes > room and shards[-1]:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = stored
        room -= stored.nbytes
    names = [f"adapter-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    entry = {"format": FORMAT, "version": VERSION, **asdict(adapter.config), "shards": names}
    # All that can fail happens beside the folder's files: a full disk leaves them as they were.
    working = folder / ".writing"
    shutil.rmtree(working, ignore_errors=True)  # of a run that was killed here
    working.mkdir()
    try:
        for name, shard in zip(names, shards, strict=True):
            try:
                save_file(shard, working / name, metadata={"format": FORMAT, "version": str(VERSION)})
            except SafetensorError as error:
                raise OSError(28, "No space left on device, or it cannot be written", str(folder / name)) from error
        (working / CONFIG).write_text(json.dumps(entry, indent=2) + "\n")
        for name in (*names, CONFIG):
            os.replace(working / name, folder / name)
            (folder / name).chmod(0o644)
    finally:
        shutil.rmtree(working, ignore_errors=True)


def load_adapter(folder: Path) -> Adapter:
    file = folder / CONFIG
    if not file.is_file():
        hint = " (adapter_config.json is a PEFT adapter's: plain LoRA does not draft)" if _is_peft(folder) else ""
        raise InputError(f"{folder}: no {CONFIG} there, so it is not a StrideLM adapter{hint}")
    try:
        entry: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        found = entry["format"], entry["version"]
        if found != (FORMAT, VERSION):
            raise InputError(
                f"{file}: is of format {found[0]} version {found[1]}, but this version of StrideLM reads {FORMAT} "
                f"version {VERSION}"
            )
        known: dict[str, Any] = {field.name: entry[field.name] for field in fields(AdapterConfig)}
        known |= {name: tuple(known[name]) for name in ("targets", "unadapted")}
        config = AdapterConfig(**known)
        shards = [folder / name for name in entry["shards"]]
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: cannot be read ({type(error).__name__}: {error}): copy the adapter again") from error
    if any(Path(name).name != name for name in entry["shards"]):
        raise InputError(f"{file}: names a shard outside its folder: do not use it")
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise InputError(f"{folder}: {missing[0]} is missing: copy the adapter again")
    adapter = Adapter(config, read_weights(shards))
    _check_tensors(file, adapter)
    return adapter


def _is_peft(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file()


def _check_tensors(file: Path, adapter: Adapter) -> None:
    """The very tensors that the settings promise, in their shapes."""
    config = adapter.config
    expected: dict[str, tuple[int | None, int | None] | None] = {MASK_EMBEDDING: (config.masks, config.width)}
    for target in config.targets:
        expected |= {f"{target}.down": (config.rank, None), f"{target}.up": (None, config.rank)}
    if config.sequential_size:
        head = SequentialHead(config.width, config.sequential_size)
        for name, tensor in sequential_tensors(head).items():
            expected[name] = tuple(tensor.shape) if tensor.dim() == 2 else None  # type: ignore[assignment]
    if expected.keys() != adapter.tensors.keys():
        wrong = sorted(expected.keys() ^ adapter.tensors.keys())[0]
        raise InputError(f"{file}: the tensor {wrong} is missing or one too many: copy the adapter again")
    for name, shape in expected.items():
        actual = adapter.tensors[name].shape
        if shape is not None and any(want not in (None, is_) for want, is_ in zip(shape, actual, strict=True)):
            raise InputError(f"{file}: the tensor {name} is of shape {tuple(actual)}: copy the adapter again")
        if not adapter.tensors[name].isfinite().all():
            raise InputError(f"{file}: the tensor {name} is not finite: the adapter is damaged")


def check_base(folder: Path, adapter: Adapter, name: str, fingerprint: str) -> None:
    """An adapter is of use with the weights that it was trained on, and with no others."""
    if adapter.config.fingerprint != fingerprint:
        raise InputError(
            f"{folder}: this adapter is for {adapter.config.base} (fingerprint {adapter.config.fingerprint[:12]}), but "
            f"{name} has other weights ({fingerprint[:12]}): use the adapter of this model, or train one with "
            f"`stridelm train --model {name}`"
        )
