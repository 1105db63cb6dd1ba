"""What all requests share: the model, its engine and the server's settings."""

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
"""Creates the grammar of one answer, in its initial state."""


class Grammars(Protocol):
    """Compiles grammars off the event loop. If one cannot be compiled, raises an Uncompilable without a `param`."""

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
    """The model's names in requests."""

    @property
    def name(self) -> str:
        """The model's first name, which is used unless a request names another."""
        return self.names[0]

    def named(self, asked: str | None) -> str:
        """The model's name in the reply to a request."""
        return asked if asked in self.names else self.name

    @property
    def exact_to(self) -> str:
        """What answers are exact with respect to, by the served name: the name it was loaded by may be a path."""
        return self._shown(self.model.target.description)

    def refusal(self, error: InputError, param: str | None = None) -> ApiError:
        return ApiError(400, self._shown(str(error)), param=param)

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.names and not self.settings.any_model_name:
            message = f"there is no model {name!r} here: this is {' or '.join(self.names)}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _shown(self, text: str) -> str:
        return text.replace(self.model.target.name, self.name)
