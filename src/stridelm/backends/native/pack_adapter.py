"""Packs an adapter for the kernels, its matrices in 4 bits. They apply to mask rows only, and what masks propose is
verified, so quantising them changes no answer."""

from pathlib import Path
from typing import Any

import numpy as np

from stridelm.backends.common.slots import SLOTS
from stridelm.backends.native.gate import READ, READ_BIAS, TAIL_DOWN, TAIL_UP, WRITE
from stridelm.backends.native.model_source import DoesNotFit
from stridelm.backends.native.packed_file import Packed, Writer, write
from stridelm.backends.native.quantised_matrix import FOUR, GROUP, quantise
from stridelm.backends.native.weights import MASK_EMBEDDING
from stridelm.models.adapter import SEQUENTIAL, TAIL, Adapter
from stridelm.params import InputError


def pack_adapter(given: Path, adapter: Adapter, base: Packed, folder: Path, lanes: int) -> None:
    """`given`: the adapter's folder, for messages; `adapter`: with numpy arrays; `base`: the packed model that it is
    for."""
    if not adapter.is_gated:
        raise DoesNotFit(f"does not merge adapters, as {given} has to be")
    if adapter.config.width != base.notes["shape"]["width"]:
        raise InputError(f"{given}: is for a model of width {adapter.config.width}: use the adapter of this model")
    shape = base.notes["shape"]
    left = set(adapter.config.targets)
    parts: dict[str, list[tuple[int, int]]] = {}

    def factors(target: str, name: str) -> tuple[np.ndarray, np.ndarray]:
        down_RI, up_OR = adapter.low_rank(target)
        outputs, inputs = _sizes(shape)[name]
        if (up_OR.shape[0], down_RI.shape[1]) != (outputs, inputs):
            raise InputError(
                f"{given}: {target} is {inputs} to {outputs} in this model, and {down_RI.shape[1]} to {up_OR.shape[0]} "
                "there: use the adapter of this model"
            )
        return down_RI, up_OR

    def fill(writer: Writer, _: Path) -> dict[str, Any]:
        for layer in range(shape["layers"]):
            for slot, names in SLOTS.items():
                targets = {place: f"model.layers.{layer}.{name}" for place, name in enumerate(names)}
                used = {place: target for place, target in targets.items() if target in left}
                left.difference_update(used.values())
                places = _places(slot, shape, lanes)
                parts[f"{layer}.{slot}"] = [places[place] for place in used]
                found = [factors(target, names[place]) for place, target in used.items()]
                _write_slot(writer, f"{layer}.{slot}", found)
        if left:
            raise DoesNotFit(f"has no layer {min(left)}, which {given} changes")
        writer.vector(MASK_EMBEDDING, adapter.mask_embedding)
        _write_sequential_head(writer, adapter)
        if adapter.config.tail_heads:
            writer.vector(TAIL_UP, adapter.tensors[f"{TAIL}up_HSC"])
            writer.vector(TAIL_DOWN, adapter.tensors[f"{TAIL}down_HCS"])
        return {
            "parts": parts,
            "masks": adapter.config.masks,
            "sequential_size": adapter.config.sequential_size,
            "tail_heads": adapter.config.tail_heads,
            "tail_size": adapter.config.tail_size,
            "draft_prior": adapter.config.draft_prior,
            "base": adapter.config.base,
            "fingerprint": adapter.config.fingerprint,
        }

    write(folder, lanes, fill)


def _sizes(shape: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of the linear layers, by name."""
    width, inner = shape["width"], shape["inner"]
    queries, keys = (shape[heads] * shape["head_size"] for heads in ("heads", "key_heads"))
    return {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }


def _places(slot: str, shape: dict[str, int], lanes: int) -> list[tuple[int, int]]:
    """For each part of a slot, the panel that it starts at, and the distance to its next panel."""
    if slot == "gate_up":
        return [(0, 2), (1, 2)]
    query, key = (shape[heads] * shape["head_size"] // lanes for heads in ("heads", "key_heads"))
    return [(0, 1), (query, 1), (query + key, 1)] if slot == "query_key_value" else [(0, 1)]


def _write_slot(writer: Writer, name: str, factors: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """The first factors as one matrix, each padded to whole groups, since the second factors read whole groups."""
    if not factors:
        return
    downs = []
    for down_RI, _ in factors:
        filled = np.zeros((-(-down_RI.shape[0] // GROUP) * GROUP, down_RI.shape[1]), np.float32)
        filled[: down_RI.shape[0]] = down_RI
        downs.append(filled)
    writer.matrix(f"{name}.low", quantise(np.concatenate(downs), FOUR))
    for place, (_, up_OR) in enumerate(factors):
        writer.matrix(f"{name}.up{place}", quantise(up_OR, FOUR))


def _write_sequential_head(writer: Writer, adapter: Adapter) -> None:
    if adapter.config.sequential_size:
        read, bias, carry, added = (
            adapter.tensors[f"{SEQUENTIAL}{name}"]
            for name in ("read.weight", "read.bias", "carry.weight", "write.weight")
        )
        writer.matrix(READ, quantise(np.concatenate([read, carry], axis=1), FOUR))
        writer.vector(READ_BIAS, bias)
        writer.matrix(WRITE, quantise(added, FOUR))
