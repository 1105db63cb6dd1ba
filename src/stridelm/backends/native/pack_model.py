"""Packs a model once: everything that takes seconds happens here, so that later starts need none of it. A GGUF file
needs neither torch nor transformers, a Hugging Face folder both."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stridelm.backends.native.drift import TEXT, measure_drift
from stridelm.backends.native.model_source import DoesNotFit, Source, check_fits, head_size, window
from stridelm.backends.native.packed_file import Writer, write
from stridelm.backends.native.quantised_matrix import (
    EIGHT,
    FOUR,
    Groups,
    by_pieces,
    concatenate,
    interleave_panels,
    quantise,
)
from stridelm.backends.native.rotary import frequencies
from stridelm.backends.native.stored_blocks import StoredBlocks
from stridelm.backends.native.weights import EMBEDDING, FREQUENCIES, HEAD, LAST_NORM, MASK_EMBEDDING, part_name
from stridelm.models.fingerprint import as_floats, fingerprint
from stridelm.models.gguf_content import GgufContent, read_content
from stridelm.models.mask_token import own_masks
from stridelm.models.support import check_config
from stridelm.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stridelm.models.stored import StoredModel

Weights = Mapping[str, Any]
"""Torch's tensors or numpy arrays."""
Read = Callable[[str], Groups]
_CLASS_SETTINGS = ("auto_map", "fix_mistral_regex", "add_bos_token", "add_eos_token", "add_prefix_space", "backend")
"""Entries of tokenizer_config.json that configure transformers' classes: their effect is part of the saved
tokenizer.json already."""


def pack(source: Source, folder: Path, lanes: int) -> None:
    """Pack a model into a folder. Raises DoesNotFit before anything is written."""
    stored = _read(source)
    weights, tokenizer, eos_ids = stored.weights, stored.tokenizer, stored.eos_ids
    config: Any = stored.config
    check_config(config)
    check_fits(config)
    read, numbers = _reader(source, config, weights)
    text_config = config.get_text_config()

    def fill(writer: Writer, working: Path) -> dict[str, Any]:
        _write_weights(writer, config, weights, read, advance)
        _save_tokenizer(tokenizer, working)
        return {
            "fingerprint": fingerprint(weights),
            "eos_ids": sorted(eos_ids),
            "context_length": int(text_config.max_position_embeddings),
            "vocabulary": int(text_config.vocab_size),
            "family": config.model_type,
            "shape": _shape(config),
            "tied": HEAD not in writer.entries,
            **numbers,
            **_own_masks(writer, source.name, config, weights, tokenizer),
        }

    # Written layer by layer, then read again layer by layer, for the drift.
    with _progress(2 * config.num_hidden_layers) as advance:
        write(folder, lanes, fill, lambda working: measure_drift(working, lanes, config, weights, tokenizer, advance))


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[], None]]:
    """A bar, in a terminal: packing a model of a billion weights takes a minute."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("Packing", total=steps)
        yield lambda: progress.advance(task)


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Save the tokenizer: transformers' as it is in memory, since its classes may replace parts of the file by their
    own."""
    if isinstance(tokenizer, Tokenizer):
        tokenizer.save(folder)
        return
    if not getattr(tokenizer, "is_fast", False):
        raise DoesNotFit("needs a tokenizer.json")
    tokenizer.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.backend_tokenizer.to_str())
    file = folder / "tokenizer_config.json"
    kept = {name: value for name, value in json.loads(file.read_text()).items() if name not in _CLASS_SETTINGS}
    file.write_text(json.dumps({**kept, "tokenizer_class": "PreTrainedTokenizerFast"}))
    if Tokenizer.from_folder(folder).encode(TEXT) != tokenizer.encode(TEXT):
        raise DoesNotFit("cannot do without transformers' tokenizer here, which does more than its file says")


def _own_masks(writer: Writer, name: str, config: Any, weights: Weights, tokenizer: Any) -> dict:
    """A converted model without an adapter is packed with its own mask embeddings."""
    found = own_masks(name, config, tokenizer)
    if found is None:
        return {"masks": 0}
    _, ids = found
    writer.vector(MASK_EMBEDDING, as_floats(weights["model.embed_tokens.weight"][ids]))
    return {"masks": len(ids), "sequential_size": 0, "parts": {}}


def _read(source: Source) -> "StoredModel | GgufContent":
    if source.path.is_file():
        return read_content(source.path)
    from stridelm.models.find import read_folder

    return read_folder(source.path)


def _shape(config: Any) -> dict[str, Any]:
    return {
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "key_heads": config.num_key_value_heads,
        "head_size": head_size(config),
        "inner": config.intermediate_size,
        "window": window(config, 0),
        "epsilon": config.rms_norm_eps,
    }


def _reader(source: Source, config: Any, weights: Weights) -> tuple[Read, dict[str, Any]]:
    """How a matrix is read, quantised here or from the file's own blocks, and what is noted about its numbers. Says
    what will be done."""
    doing = f"stridelm: packing {source.name} for this processor, once ..."
    if source.quantize:
        kind = EIGHT if source.quantize == "q8" else FOUR

        def read_quantised(name: str) -> Groups:
            # The embedding and the output head stay in 8 bits: as in GGUF files, 4 bits show there first.
            edge = name.startswith(("model.embed_tokens", "lm_head"))
            floats, bits = as_floats(weights[name]), EIGHT if edge else kind
            return by_pieces(floats, lambda piece: quantise(piece, bits))

        print(doing, file=sys.stderr)
        return read_quantised, {"numbers": f"{source.quantize} weights", "requantised": []}
    blocks = StoredBlocks(source.path, config)
    source.check_requantised(blocks.requantised)
    print(doing, file=sys.stderr)
    if blocks.message:
        print(f"stridelm: {blocks.message}: the kernels do not have it otherwise", file=sys.stderr)
    numbers = "the file's own weights" + (f" ({blocks.message})" if blocks.message else "")
    return blocks.read, {"numbers": numbers, "requantised": blocks.requantised}


def _write_weights(writer: Writer, config: Any, weights: Weights, read: Read, advance: Callable[[], None]) -> None:
    for number in range(config.num_hidden_layers):
        _write_layer(writer, number, weights, read)
        advance()
    writer.matrix(EMBEDDING, read("model.embed_tokens.weight"))
    if "lm_head.weight" in weights and not config.tie_word_embeddings:
        writer.matrix(HEAD, read("lm_head.weight"))
    writer.vector(LAST_NORM, as_floats(weights["model.norm.weight"]))
    writer.vector(FREQUENCIES, frequencies(head_size(config), config.rope_parameters))


def _write_layer(writer: Writer, number: int, weights: Weights, read: Read) -> None:
    of = f"model.layers.{number}"

    def matrix(name: str) -> Groups:
        return read(f"{of}.{name}.weight")

    def vector(name: str, to: str) -> None:
        if f"{of}.{name}" in weights:
            writer.vector(f"{number}.{to}", as_floats(weights[f"{of}.{name}"]))

    joined = _join([matrix(f"self_attn.{each}_proj") for each in "qkv"])
    for part, groups in enumerate(joined):
        writer.matrix(part_name(f"{number}.query_key_value", part), groups)
    writer.matrix(f"{number}.attention_output", matrix("self_attn.o_proj"))
    gate_up = interleave_panels(matrix("mlp.gate_proj"), matrix("mlp.up_proj"), writer.lanes)
    writer.matrix(f"{number}.gate_up", gate_up)
    writer.matrix(f"{number}.down", matrix("mlp.down_proj"))
    vector("input_layernorm.weight", "attention_norm")
    vector("post_attention_layernorm.weight", "mlp_norm")
    vector("self_attn.q_norm.weight", "query_norm")
    vector("self_attn.k_norm.weight", "key_norm")
    biases = [weights.get(f"{of}.self_attn.{each}_proj.bias") for each in "qkv"]
    given = [as_floats(bias) for bias in biases if bias is not None]
    if given:
        writer.vector(f"{number}.bias", np.concatenate(given))


def _join(parts: list[Groups]) -> list[Groups]:
    """Parts of one product: neighbours of one kind as one matrix."""
    joined = parts[:1]
    for part in parts[1:]:
        if part.kind == joined[-1].kind:
            joined[-1] = concatenate([joined[-1], part])
        else:
            joined.append(part)
    return joined
