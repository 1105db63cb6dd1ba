"""The settings of a GGUF file, checked when they are asked for."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np

from stridelm.models.vocabulary.fields import special_id
from stridelm.params import InputError


class GgufConfig(SimpleNamespace):
    """The settings, by the names of a transformers config."""

    def get_text_config(self) -> "GgufConfig":
        return self


class Metadata:
    """What a file says about its model. Names are those behind the architecture's: `block_count` is
    `llama.block_count`."""

    def __init__(self, path: Path, fields: dict[str, Any], tensors: Mapping[str, gguf.ReaderTensor]) -> None:
        self.path, self.fields, self.tensors = path, fields, tensors
        self.architecture: str = fields["general.architecture"]

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting; without a default it must be there."""
        value = self.fields.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise InputError(f"{self.path}: the setting {self.architecture}.{name} is missing: fetch the file again")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number above 0."""
        return self.checked_count(name, self.setting(name, default))

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        return self.checked_number(name, self.setting(name, default))

    def checked_count(self, name: str, value: Any) -> int:
        if type(value) is not int or value < 1:
            raise InputError(
                f"{self.path}: says {value!r} for {name}, which must be a whole number above 0: fetch the file again"
            )
        return value

    def checked_number(self, name: str, value: Any) -> float:
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise InputError(f"{self.path}: says {value!r} for {name}, which must be above 0: fetch the file again")
        return value

    def factors(self, name: str, count: int) -> list[float] | None:
        """The numbers of a small tensor that belongs to the settings; None if it is not there."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        numbers = tensor.data
        if numbers.dtype != np.float32 or numbers.shape != (count,):
            raise InputError(f"{self.path}: {name} does not hold {count} numbers in float32: fetch the file again")
        if not (np.isfinite(numbers).all() and (numbers > 0).all()):
            raise InputError(f"{self.path}: {name} holds numbers that are not above 0: fetch the file again")
        return numbers.tolist()

    def token_id(self, name: str) -> int | None:
        return special_id(self.path, self.fields, name, len(self.fields["tokenizer.ggml.tokens"]))

    def unsupported(self, what: str) -> InputError:
        return InputError(f"{self.path}: {what} not supported from GGUF: use the model's Hugging Face folder instead")
