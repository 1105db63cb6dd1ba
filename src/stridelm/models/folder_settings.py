"""The settings of a Hugging Face folder: config, tokenizer and generation config."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from stridelm.params import InputError

_GENERATION = "generation_config.json"
_OF_SAMPLING = (
    "temperature", "top_p", "min_p", "top_h", "typical_p", "top_k", "epsilon_cutoff", "eta_cutoff",
)  # fmt: skip
"""Generation settings that have no effect without `do_sample`."""


def read_config(folder: Path) -> PreTrainedConfig:
    with _reading(folder):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    with _reading(folder):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def read_eos_ids(folder: Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end an answer: those of all of the folder's files together."""
    return _ids(config.get_text_config().eos_token_id) | _generation_eos(folder) | _ids(tokenizer.eos_token_id)


def read_generation_config(folder: Path) -> GenerationConfig | None:
    """A folder's generation config, in a form that transformers can write; None if it has none.

    Folders on the hub often set a temperature without `do_sample`. transformers reads such settings and ignores the
    temperature, but refuses to write them: here they are removed."""
    if not (folder / _GENERATION).is_file():
        return None
    try:
        with quiet():
            config = GenerationConfig.from_pretrained(folder)
            if config.do_sample is not True and not _can_be_written(config):
                for name in _OF_SAMPLING:
                    setattr(config, name, None)
            config.validate(strict=True)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{folder}: {_GENERATION} is not valid ({reason}): mend or delete it") from error
    return config


def _can_be_written(config: GenerationConfig) -> bool:
    try:
        config.validate(strict=True)  # as transformers does before it writes one
    except ValueError:
        return False
    return True


def _generation_eos(folder: Path) -> frozenset[int]:
    file = folder / _GENERATION
    try:
        return _ids(json.loads(file.read_text()).get("eos_token_id")) if file.is_file() else frozenset()
    except (ValueError, AttributeError) as error:
        raise InputError(f"{file}: cannot be read ({error}): mend or delete it") from error


def _ids(value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset(value) if isinstance(value, list) else frozenset([int(value)])


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """While transformers reads a folder's settings: damaged files make its classes raise nearly anything."""
    try:
        with quiet():
            yield
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{folder}: its config or tokenizer cannot be read ({reason})") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' own warnings, which run over twenty lines: our error message is one line."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
