"""The tokenizer at run time, without transformers: importing its classes takes longer than a first token should.

A `Tokenizer` gives the same ids and text as transformers' own for the same folder. If it could not, it refuses the
folder.
"""

import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any, Protocol, overload

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from stridelm.models.tokenizer_files import describe
from stridelm.params import InputError

_LONG = 4096
"""A text of this many characters takes longer than a millisecond or two to encode."""


class TextTokenizer(Protocol):
    """What generating and serving need of a tokenizer, ours or transformers'. The latter also takes batches, so its
    return types depend on the arguments: Any here."""

    chat_template: Any

    def __len__(self) -> int: ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...

    def get_vocab(self) -> dict[str, int]: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> Any: ...

    def convert_ids_to_tokens(self, ids: Any) -> Any: ...

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_dict: bool = False,
        **variables: Any,
    ) -> Any: ...


class Tokenizer:
    """Implements `TextTokenizer`."""

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str],
        chat_template: str | dict[str, str] | None = None,
        cleans_up: bool = False,
    ) -> None:
        """`special_tokens`: by their names in chat templates: bos_token, eos_token and so on. `cleans_up`: remove
        spaces before punctuation from decoded text."""
        backend.no_truncation()
        backend.no_padding()
        self.backend_tokenizer = backend
        self.special_tokens_map = dict(special_tokens)
        self.chat_template: Any = chat_template
        # BPE's tokens contain their spaces: those are the text's own.
        self._cleans_up = cleans_up and type(backend.model).__name__ != "BPE"

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Raises an InputError for a folder that only transformers can read, or that cannot be read at all."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise InputError(f"{folder}: no tokenizer.json there: transformers is needed to read its tokenizer")
        try:
            backend = Backend.from_file(str(file))
        except Exception as error:  # the library raises no other type
            raise InputError(f"{file}: cannot be read ({error}): fetch the model again") from error
        found = describe(folder, backend)
        backend.add_tokens(found.added)
        backend.encode_special_tokens = found.splits_special
        return cls(
            backend,
            special_tokens=found.special_tokens,
            chat_template=found.chat_template,
            cleans_up=found.cleans_up,
        )

    def save(self, folder: Path) -> None:
        """Write the files that `from_folder` reads."""
        (folder / "tokenizer.json").write_text(self.backend_tokenizer.to_str())
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **self.special_tokens_map}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
        if self.chat_template is not None:
            (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8")

    def __len__(self) -> int:
        """With added tokens."""
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def vocab_size(self) -> int:
        """Without added tokens."""
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=False)

    def get_vocab(self) -> dict[str, int]:
        """All tokens as the vocabulary spells them, with their ids."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The added tokens by their ids."""
        return self.backend_tokenizer.get_added_tokens_decoder()

    def get_added_vocab(self) -> dict[str, int]:
        return {token.content: index for index, token in sorted(self.added_tokens_decoder.items())}

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens_map.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens_map.get("eos_token")

    @property
    def bos_token_id(self) -> int | None:
        return self._id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._id("eos_token")

    def _id(self, name: str) -> int | None:
        token = self.special_tokens_map.get(name)
        return None if token is None else self.backend_tokenizer.token_to_id(token)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The text's token ids, including those that the tokenizer adds around a text, unless turned off."""
        if len(text) < _LONG:
            return self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        # As a batch of one: batches release the interpreter lock; other threads would stop for seconds otherwise.
        (encoding,) = self.backend_tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def decode(self, token_ids: Items[int], skip_special_tokens: bool = False) -> str:
        """The tokens' text; incomplete characters become replacement characters."""
        text = self.backend_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return _cleaned_up(text) if self._cleans_up else text

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str | None: ...
    @overload
    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str | None]: ...
    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> str | list[str | None] | None:
        """Tokens as the vocabulary spells them; None for an unknown id."""
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        return [self.backend_tokenizer.id_to_token(token) for token in ids]

    def apply_chat_template(
        self,
        conversation: Items[Mapping[str, Any]],
        tools: Items[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_dict: bool = False,
        **variables: Any,
    ) -> Any:
        """The conversation as the model's template writes it: text, or token ids with `tokenize`. `variables` are
        passed to the template. Raises what the template raises, and a ValueError if there is no template or it cannot
        do what was asked."""
        assert not return_dict, "exists only for transformers' signature: ids come as a list"
        from stridelm.models.chat_template import render

        text = render(
            self._template(has_tools=tools is not None),
            conversation,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables={**self.special_tokens_map, **variables},
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def _template(self, *, has_tools: bool) -> str:
        template = self.chat_template
        if isinstance(template, dict):
            template = (template.get("tool_use") if has_tools else None) or template.get("default")
        if not isinstance(template, str):
            raise ValueError("the model has no chat template, or several and none of them is the default")
        return template


_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""Endings that whole-word tokenizers separate by a space."""


def _cleaned_up(text: str) -> str:
    for spaced in _SPACED:
        text = text.replace(spaced, spaced.strip())
    return text
