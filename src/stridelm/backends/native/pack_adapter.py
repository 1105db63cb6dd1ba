"""An adapter, packed for the kernels: its matrices in 4 bits. They are on mask rows only, and what masks say is
verified, so this changes no answer."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from stridelm.backends.common.slots import SLOTS
from stridelm.backends.native.gate import READ, READ_BIAS, WRITE
from stridelm.backends.native.model_source import DoesNotFit
from stridelm.backends.native.packed_file import Packed, Writer, write
from stridelm.backends.native.quantised_matrix import FOUR, GROUP, quantised
from stridelm.backends.native.weights import MASK_EMBEDDING
from stridelm.models.adapter import Adapter
from stridelm.params import InputError


def pack_adapter(given: Path, adapter: Adapter, base: Packed, folder: Path, lanes: int) -> None:
    """`given` is where the adapter is, `base` what it is for."""
    if not adapter.is_gated:
        raise DoesNotFit(f"does not merge adapters, as {given} has to be")
    if adapter.config.width != base.notes["shape"]["width"]:
        raise InputError(f"{given}: is for a model of width {adapter.config.width}: use the adapter of this model")
    shape = base.notes["shape"]
    left = set(adapter.config.targets)
    parts: dict[str, list[tuple[int, int]]] = {}

    def fill(writer: Writer, _: Path) -> dict[str, Any]:
        for layer in range(shape["layers"]):
            for slot, names in SLOTS.items():
                targets = {place: f"model.layers.{layer}.{name}" for place, name in enumerate(names)}
                used = {place: target for place, target in targets.items() if target in left}
                left.difference_update(used.values())
                places = _places(slot, shape, lanes)
                parts[f"{layer}.{slot}"] = [places[place] for place in used]
                _write_slot(writer, f"{layer}.{slot}", [adapter.low_rank(target) for target in used.values()])
        if left:
            raise DoesNotFit(f"has no layer {min(left)}, which {given} changes")
        writer.vector(MASK_EMBEDDING, adapter.mask_embedding.float().numpy())
        _write_sequential_head(writer, adapter)
        return {
            "parts": parts,
            "masks": adapter.config.masks,
            "sequential_size": adapter.config.sequential_size,
            "base": adapter.config.base,
            "fingerprint": adapter.config.fingerprint,
        }

    write(folder, lanes, fill)


def _places(slot: str, shape: dict[str, int], lanes: int) -> list[tuple[int, int]]:
    """Per part of a slot, the panel that it starts at, and how far on its next panel is."""
    if slot == "gate_up":
        return [(0, 2), (1, 2)]
    query, key = (shape[heads] * shape["head_size"] // lanes for heads in ("heads", "key_heads"))
    return [(0, 1), (query, 1), (query + key, 1)] if slot == "query_key_value" else [(0, 1)]


def _write_slot(writer: Writer, name: str, factors: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """The first factors one behind the other, each filled up to whole groups: the second ones read groups."""
    if not factors:
        return
    downs = []
    for down_RI, _ in factors:
        filled = np.zeros((-(-down_RI.shape[0] // GROUP) * GROUP, down_RI.shape[1]), np.float32)
        filled[: down_RI.shape[0]] = down_RI.float().numpy()
        downs.append(filled)
    writer.matrix(f"{name}.low", quantised(np.concatenate(downs), FOUR))
    for place, (_, up_OR) in enumerate(factors):
        writer.matrix(f"{name}.up{place}", quantised(up_OR.float().numpy(), FOUR))


def _write_sequential_head(writer: Writer, adapter: Adapter) -> None:
    head = adapter.sequential_head()
    if head is not None:
        both = torch.cat([head.read.weight, head.carry.weight], dim=1)
        writer.matrix(READ, quantised(both.numpy(), FOUR))
        writer.vector(READ_BIAS, head.read.bias.numpy())
        writer.matrix(WRITE, quantised(head.write.weight.numpy(), FOUR))
