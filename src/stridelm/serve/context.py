"""What every request is answered with: the model, its engine, what the operator chose."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from stridelm.api import LanguageModel
from stridelm.contracts import Grammar
from stridelm.engine.worker import Worker
from stridelm.params import InputError
from stridelm.serve.errors import ApiError
from stridelm.serve.settings import ServeSettings

Start = Callable[[], Grammar]
"""Gives a grammar at its beginning, for one answer."""


class Grammars(Protocol):
    """Compiles grammars off the event loop. What cannot be compiled is an Uncompilable without a `param`."""

    async def json_schema(self, schema: dict[str, Any]) -> Start: ...

    async def lark(self, text: str) -> Start: ...


@dataclass(frozen=True, slots=True)
class Context:
    """One served model."""

    model: LanguageModel
    worker: Worker
    settings: ServeSettings
    grammars: Grammars
    names: tuple[str, ...]
    """The model's in requests."""

    @property
    def name(self) -> str:
        """Its first, which it goes by where nobody asked for another."""
        return self.names[0]

    def named(self, asked: str | None) -> str:
        """The model's name in the reply to a request."""
        return asked if asked in self.names else self.name

    @property
    def exact_to(self) -> str:
        """What a claim of exactness is with respect to, under the served name: the loaded one may be a path."""
        return self._shown(self.model.target.description)

    def refusal(self, error: InputError, param: str | None = None) -> ApiError:
        return ApiError(400, self._shown(str(error)), param=param)

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.names and not self.settings.any_model_name:
            message = f"there is no model {name!r} here: this is {' or '.join(self.names)}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _shown(self, text: str) -> str:
        return text.replace(self.model.target.name, self.name)
