"""What a GGUF file holds: settings, weights (dequantised to float32) and tokenizer, under transformers' names. Imports
neither transformers nor torch; `models/gguf.py` makes their objects of it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stridelm.models.gguf_format.architecture import Architecture, all_shapes, read_config
from stridelm.models.gguf_format.metadata import GgufConfig, Metadata
from stridelm.models.gguf_format.reader import Reader
from stridelm.models.gguf_format.table import ARCHITECTURES
from stridelm.models.gguf_format.weights import GgufWeights, check_kinds, check_weights, find_weights
from stridelm.models.gguf_tokenizer import tokenizer_from_gguf
from stridelm.models.tokenizer import Tokenizer
from stridelm.params import InputError

# The reader follows offsets and sizes found in the file: damage shows as any of these.
_DAMAGE = (ValueError, LookupError, TypeError, ArithmeticError, MemoryError, OSError, RuntimeError)


@dataclass(frozen=True, slots=True)
class GgufContent:
    """The content of a GGUF file; `StoredModel` without torch and transformers."""

    config: GgufConfig
    weights: GgufWeights
    """Converted one by one, when they are asked for."""
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    """The tokens that end an answer: end of text, of turn, of message."""


def read_content(path: Path) -> GgufContent:
    """Read a whole file, but for the values of its weights. Raises InputError if it is damaged or of a kind that is not
    supported."""
    try:
        reader = Reader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        architecture = _architecture(path, fields["general.architecture"])
        config = read_config(architecture, Metadata(path, fields, tensors))
        weights = find_weights(path, architecture, config, tensors)
        check_weights(path, config, weights, all_shapes(architecture, config))
        check_kinds(path, tensors)
        tokenizer = tokenizer_from_gguf(path, fields)
    except InputError:
        raise
    except _DAMAGE as error:
        raise damaged(path, error) from error
    ends = {tokenizer.eos_token_id, *(fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom"))}
    return GgufContent(config, GgufWeights(weights), tokenizer, frozenset(end for end in ends if end is not None))


def damaged(path: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split())
    return InputError(
        f"{path}: cannot be read as a GGUF file ({type(error).__name__}: {reason}). It may be cut off or damaged: "
        "fetch it again"
    )


def _architecture(path: Path, name: str) -> Architecture:
    if name not in ARCHITECTURES:
        raise InputError(
            f"{path}: architecture {name!r} is not supported from GGUF ({', '.join(ARCHITECTURES)} are): use the "
            "model's Hugging Face folder instead"
        )
    return ARCHITECTURES[name]


def read_blocks(path: Path, config: GgufConfig) -> dict[str, tuple[str, np.ndarray]]:
    """The matrices as they are stored, by transformers' names: the kind of their blocks, and rows of bytes. For a file
    that `read_content` accepts. They are views of the file, except those whose rows are reordered."""
    reader = Reader(path)
    architecture = _architecture(path, reader.fields["general.architecture"].contents())
    weights = find_weights(path, architecture, config, {tensor.name: tensor for tensor in reader.tensors})
    return {
        name: (weight.kind.name, weight.rows.view(np.uint8))
        for name, weight in weights.items()
        if len(weight.shape) == 2
    }
