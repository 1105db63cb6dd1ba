"""Structured output: JSON schemas and Lark grammars become matchers (llguidance) that say which tokens may follow.

Grammars are compiled in separate threads, off the event loop and with a time limit; a compilation that exceeds it goes
on until llguidance's own limits end it. A matcher belongs to one answer and is used in the engine's thread only.
"""

import asyncio
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

from stridelm.api import LanguageModel
from stridelm.contracts import Grammar
from stridelm.serve.errors import ApiError, Uncompilable
from stridelm.serve.grammars.matcher import Compiled, Matcher, Vocabulary
from stridelm.serve.settings import ServeSettings

Start = Callable[[], Grammar]
"""Creates the grammar of one answer, in its initial state."""

WHITE_SPACE = r"( |\n {0,16})"
"""Between the parts of a JSON text: nothing, a space, or a new line and its indentation. If any amount were allowed,
small models would write white space forever."""
SPACING: "JsonCompileOptions" = {"whitespace_pattern": WHITE_SPACE, "coerce_one_of": True}
_LIMITS = LLParserLimits(verbose_errors=False)
"""llguidance's own limits: a mask takes at most 20 ms, and a lexer at most a few MB."""
_KEPT = 64
"""Number of compiled grammars that are kept for later requests."""
_THREADS = 2
_MAX_MESSAGE = 300


class Grammars:
    """Compiles grammars for requests, and keeps those that were used most recently."""

    def __init__(self, model: LanguageModel, settings: ServeSettings) -> None:
        self._seconds = settings.grammar_seconds
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="stridelm-grammar")
        self._compiled: dict[str, Compiled] = {}
        """By the grammar in llguidance's notation; the most recently used come last."""
        self._vocabulary: Vocabulary | None = None
        self._refusal = ""
        try:
            self._vocabulary = Vocabulary.of(model.target)
        except ValueError as error:
            self._refusal = f"structured output is not supported for this model: {_shown(str(error))}"

    async def json_schema(self, schema: dict[str, Any]) -> Start:
        """A grammar for JSON that matches a schema. Properties come in the order in which the schema names them."""
        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema, allow_nan=False), overrides=SPACING)
        except (ValueError, TypeError, RecursionError) as error:
            raise ApiError(400, f"the schema cannot be used: {_shown(str(error))}") from None
        return await self._start(grammar, "schema")

    async def lark(self, text: str) -> Start:
        """A grammar in llguidance's variant of Lark."""
        return await self._start(LLMatcher.grammar_from_lark(text), "grammar")

    def close(self) -> None:
        """Accept no more grammars. Compilations that are running end by themselves."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _start(self, grammar: str, noun: str) -> Start:
        vocabulary = self._vocabulary
        if vocabulary is None:
            raise ApiError(400, self._refusal)
        compiled = self._compiled.pop(grammar, None)
        if compiled is None or compiled.is_spent:
            compiled = await self._compile(vocabulary, grammar, noun)
        self._compiled[grammar] = compiled
        while len(self._compiled) > _KEPT:
            del self._compiled[next(iter(self._compiled))]
        return lambda: Matcher(compiled)

    async def _compile(self, vocabulary: Vocabulary, grammar: str, noun: str) -> Compiled:
        future = self._pool.submit(_compile, vocabulary, grammar)
        try:
            compiled, message = await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError:
            if future.cancelled():  # it never started
                message = f"too many others are being compiled to get to this {noun}: come again"
                raise ApiError(503, message, retry_after=5) from None
            raise ApiError(400, f"the {noun} takes longer than {self._seconds:g} s to compile: simplify it") from None
        if message:
            raise Uncompilable(400, f"the {noun} cannot be used: {_shown(message)}")
        return compiled


def _compile(vocabulary: Vocabulary, grammar: str) -> tuple[Compiled, str]:
    """A compiled grammar, and its error message or "". Some errors show only when a matcher is first used."""
    compiled = Compiled(LLMatcher(vocabulary.tokenizer, grammar, limits=_LIMITS, log_level=0), vocabulary)
    message = compiled.beginning.get_error()
    if not message and not Matcher(compiled).allowed(()).any():
        return compiled, "no text keeps to it"
    return compiled, message


def _shown(message: str) -> str:
    """An error message's first line and its reason, without paths and URLs. A drawing of the location between the two
    is left out."""
    first, *others = message.strip().split("\n")
    reasons = [line.removeprefix("error: ") for line in others if line.startswith("error: ")]
    line = re.sub(r"\S*://\S*|(?<![\w#])(/[\w.$-]+){2,}", "...", " ".join([first, *reasons[:1]]))
    return line if len(line) <= _MAX_MESSAGE else line[:_MAX_MESSAGE] + "..."
