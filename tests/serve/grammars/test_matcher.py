"""Matchers by themselves, and what becomes of the schemas and grammars that strangers send."""

import asyncio
import json
import random
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from assembly import assembled
from grammars import BYTES, EOS_ID, GRAMMARS, PERSON, VOCABULARY, compiled, naive
from stridelm.api import LanguageModel
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.contracts import Grammar
from stridelm.serve.errors import ApiError
from stridelm.serve.grammars import compile as serve_grammar
from stridelm.serve.grammars.compile import Grammars, Start
from stridelm.serve.grammars.matcher import Compiled, Matcher, Vocabulary
from stridelm.serve.settings import ServeSettings
from stridelm.settings import LoadSettings


def tokens_of(text: str) -> list[int]:
    return [BYTES.index(byte) for byte in text.encode()]


def writes(start: Start, text: str) -> bool:
    """Whether the text, and then an end, keeps to a grammar."""
    tokens = [*tokens_of(text), EOS_ID]
    return start().accepts([], tokens) == len(tokens)


def walk_randomly(grammar: Grammar, choose: random.Random, length: int) -> list[int]:
    written: list[int] = []
    while len(written) < length and (options := np.flatnonzero(grammar.allowed(written)).tolist()):
        written.append(choose.choice(options))
    return written


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_are_those_of_the_pattern(name: str, language_model: LanguageModel) -> None:
    start, allowed = compiled(language_model, GRAMMARS[name].source), naive(GRAMMARS[name].pattern)
    choose = random.Random(1)
    for _ in range(6):
        grammar = start()
        written = walk_randomly(grammar, choose, 30)
        for length in range(len(written)):
            assert grammar.allowed(written[:length]).tolist() == allowed(written[:length]).tolist()


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_matcher_that_went_elsewhere_says_what_a_fresh_one_says(name: str, language_model: LanguageModel) -> None:
    """Forth, back, and onto paths that are not allowed: it depends on the question alone."""
    start, choose = compiled(language_model, GRAMMARS[name].source), random.Random(2)
    grammar = start()
    paths = [walk_randomly(start(), choose, 24) for _ in range(5)]
    for _ in range(150):
        path = choose.choice(paths)
        path = path[: choose.randint(0, len(path))]
        if choose.random() < 0.2:
            path = [*path, choose.randrange(VOCABULARY)]
        assert np.array_equal(grammar.allowed(path), start().allowed(path))
        proposed = [*choose.choice(paths)[len(path) :], choose.randrange(VOCABULARY)]
        assert grammar.accepts(path, proposed) == accepted_in_turn(start(), path, proposed)


def test_a_rejected_draft_leaves_no_trace(language_model: LanguageModel) -> None:
    """llguidance 1.9.1's own rollback leaves one: after this draft its mask behind "]" and a new line allowed another
    number."""
    start = compiled(language_model, PERSON)
    text = '{"name"\n:\n "0"\n  , "kind":3,\n "sizes" :\n  [0 '
    grammar = start()
    assert grammar.allowed(tokens_of(f"{text},\n")).any()
    path = tokens_of(f"{text}]\n")
    assert np.array_equal(grammar.allowed(path), start().allowed(path))


def accepted_in_turn(grammar: Grammar, written: list[int], tokens: list[int]) -> int:
    for count, token in enumerate(tokens):
        if not grammar.allowed([*written, *tokens[:count]])[token]:
            return count
    return len(tokens)


def test_nothing_follows_an_end_or_what_is_forbidden(language_model: LanguageModel) -> None:
    grammar = compiled(language_model, GRAMMARS["choice"].source)()
    yes, no = tokens_of("yes"), tokens_of("no")
    assert np.flatnonzero(grammar.allowed(yes)).tolist() == sorted([*tokens_of("t"), EOS_ID])
    for path in ([*yes, EOS_ID], [*yes, *no], [EOS_ID], [VOCABULARY - 1]):
        assert not grammar.allowed(path).any() and grammar.accepts(path, yes) == 0
    assert grammar.accepts([], [*yes, EOS_ID, EOS_ID]) == 4
    assert grammar.accepts(yes, [EOS_ID]) == 1 and grammar.accepts(yes[:2], [EOS_ID]) == 0


def test_all_ends_may_stand_where_one_may(language_model: LanguageModel) -> None:
    """Also one that is an ordinary letter, and one that the tokenizer does not know."""
    letter = tokens_of("z")[0]
    ends = frozenset({EOS_ID, letter, VOCABULARY - 1})
    target = replace(language_model.target, eos_ids=ends)
    vocabulary = Vocabulary.of(target)
    grammar = Matcher(Compiled(LLMatcher(vocabulary.tokenizer, LLMatcher.grammar_from_regex("az?")), vocabulary))
    assert np.flatnonzero(grammar.allowed([])).tolist() == tokens_of("a")
    assert np.flatnonzero(grammar.allowed(tokens_of("a"))).tolist() == sorted(ends)
    assert [grammar.accepts(tokens_of("a"), [end]) for end in ends] == [1, 1, 1]


@pytest.mark.parametrize("source", ["start: <[256]> /a*/", "start: <eos> /a*/", f"start: <[{VOCABULARY - 1}]> /a*/"])
def test_special_tokens_are_no_text(source: str, language_model: LanguageModel) -> None:
    with pytest.raises(ApiError, match="no text keeps to it"):
        compiled(language_model, source)
    grammar = compiled(language_model, f'start: "b" | {source.removeprefix("start: ")}')()
    assert np.flatnonzero(grammar.allowed([])).tolist() == tokens_of("b")


def test_special_tokens_of_a_real_tokenizer_are_no_text(builtin_checkpoint: Checkpoint) -> None:
    model = assembled(builtin_checkpoint, None, LoadSettings(cache_tokens=1024))
    tokenizer, start = builtin_checkpoint.tokenizer, compiled(model, {"type": "string"})
    inside = start().allowed(tokenizer.encode('"a'))
    assert inside.sum() > 40_000 and not inside[tokenizer.all_special_ids].any()
    done = start().allowed(tokenizer.encode('"a"'))
    assert np.flatnonzero(done).tolist() == sorted(builtin_checkpoint.eos_ids)
    tokens = [*tokenizer.encode('"née 日本 🙂"'), *builtin_checkpoint.eos_ids]
    assert start().accepts([], tokens) == len(tokens)


def test_white_space_is_bounded(language_model: LanguageModel) -> None:
    start = compiled(language_model, PERSON)
    person = {"name": "a", "kind": 3, "sizes": [1, 2]}
    for text in (json.dumps(person), json.dumps(person, indent=2), json.dumps(person, separators=(",", ":"))):
        assert writes(start, text)
    for text in ('{  "name"', '{\n\n"name"', "{" + "\n" + 17 * " ", "\n{", "{\t", json.dumps(person) + " "):
        assert start().accepts([], tokens_of(text)) < len(text)


def test_properties_come_in_the_order_of_the_schema(language_model: LanguageModel) -> None:
    grammars = Grammars(language_model, ServeSettings())
    numbers = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    schema = {"type": "object", "properties": numbers, "required": ["a", "b"], "additionalProperties": False}
    other = {**schema, "properties": {name: numbers[name] for name in "ba"}}
    for each, text in ((schema, '{"a":1,"b":2}'), (other, '{"b":2,"a":1}')):
        assert writes(asyncio.run(grammars.json_schema(each)), text)


def test_any_object_will_do(language_model: LanguageModel) -> None:
    start = asyncio.run(Grammars(language_model, ServeSettings()).json_schema({"type": "object"}))
    assert writes(start, '{"a": [1, {"b": null}], "c": "d"}')
    assert not writes(start, "[1]") and not writes(start, '{"a": }')


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "nonsense"}, "Invalid type"),
        ({"not": {"type": "string"}}, "Unimplemented"),
        ({"$ref": "file:///etc/passwd"}, "not present"),
        ({"$ref": "http://127.0.0.1:80/x"}, "not present"),
        ({"enum": []}, "Unsatisfiable"),
        ({"$ref": "#"}, "no text keeps to it"),
        ({"minLength": float("nan")}, "not JSON compliant"),
        ({"type": "string", "pattern": "(?<=a)b"}, "cannot be used"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_words(
    schema: dict[str, Any], message: str, language_model: LanguageModel
) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        compiled(language_model, schema)
    assert refused.value.status == 400
    assert not any(part in refused.value.message for part in ("://", "/etc", ".rs", "\n"))


def test_a_grammar_with_an_error_is_refused(language_model: LanguageModel) -> None:
    for source in ("", "start: nothing", "start: /[/", 'start: "a'):
        with pytest.raises(ApiError, match="the grammar cannot be used") as refused:
            compiled(language_model, source)
        assert refused.value.status == 400


def references(join: Callable[[dict[str, str]], dict[str, Any]], depth: int = 30) -> dict[str, Any]:
    """Written out, twice as large with every level."""
    parts: dict[str, Any] = {f"a{level}": join({"$ref": f"#/$defs/a{level + 1}"}) for level in range(depth)}
    return {"$ref": "#/$defs/a0", "$defs": {**parts, f"a{depth}": {"type": "string"}}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "minItems": 20, "maxItems": 30}
    return schema


HOSTILE = {
    "unions": references(lambda part: {"anyOf": [part, {"type": "array", "items": part}]}),
    "intersections": references(lambda part: {"allOf": [part, part]}),
    "objects": references(lambda part: {"type": "object", "properties": {"l": part, "r": part}, "required": ["l"]}),
    "enum": {"enum": [f"value {number}" for number in range(4000)]},
    "properties": {"type": "object", "properties": {f"p{number}": {"type": "number"} for number in range(1000)}},
    "plus": {"type": "string", "pattern": "^(a+)+$"},
    "repeats": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
    "far back": {"type": "string", "pattern": "^(.*a.{20}|.*b.{30}){1,50}$"},
    "long": {"type": "string", "minLength": 10**8, "maxLength": 10**9},
    "many": {"type": "array", "items": {"type": "integer"}, "minItems": 10**8, "maxItems": 10**9},
    "multiple": {"type": "integer", "multipleOf": 999_999_937, "minimum": 0, "maximum": 10**18},
    "deep": nested(30),
    "too deep": nested(400),
    "far too deep": nested(900),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_end_and_hold_nobody_up(
    name: str, language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a matcher or with an error; the event loop goes on meanwhile."""
    loop, real = Ticking(), serve_grammar._compile
    during: list[int] = []

    def watched(vocabulary: Vocabulary, grammar: str) -> tuple[Compiled, str]:
        assert loop.came_round.wait(60), "the loop waits for what is compiled"
        before = loop.rounds
        compiled = real(vocabulary, grammar)
        during.append(loop.rounds - before)
        return compiled

    monkeypatch.setattr(serve_grammar, "_compile", watched)
    grammars = Grammars(language_model, ServeSettings(grammar_seconds=60.0))
    (outcome,) = asyncio.run(loop.run(grammars.json_schema(HOSTILE[name])))
    if isinstance(outcome, ApiError):
        assert outcome.status == 400 and len(outcome.message) < 500
    else:
        assert 0 < len(walk_randomly(outcome(), random.Random(4), 20)) <= 20
    assert during or "too deep" in name
    if name == "properties":  # this one takes long enough
        assert during[0] > 0
    grammars.close()


class Ticking:
    """Counts how often the event loop comes round while it works."""

    def __init__(self) -> None:
        self.rounds = 0
        self.came_round = threading.Event()

    async def run(self, work: Coroutine[Any, Any, Start]) -> list[Any]:
        """What the work gives, or what it raises."""
        task = asyncio.gather(work, return_exceptions=True)
        while not task.done():
            await asyncio.sleep(0)
            self.rounds += 1
            self.came_round.set()
        return list(task.result())


def test_what_takes_too_long_is_given_up(language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are compiled at the limit are refused; one that was not even begun may come again."""
    finish, real = threading.Event(), serve_grammar._compile

    def slow(vocabulary: Vocabulary, grammar: str) -> tuple[Compiled, str]:
        finish.wait()
        return real(vocabulary, grammar)

    monkeypatch.setattr(serve_grammar, "_compile", slow)
    grammars = Grammars(language_model, ServeSettings(grammar_seconds=0.05))

    async def ask() -> list[Any]:
        asked = [grammars.json_schema({"const": number}) for number in range(3)]
        return await asyncio.gather(*asked, return_exceptions=True)

    refused = asyncio.run(ask())
    assert all(isinstance(error, ApiError) for error in refused)
    assert sorted(error.status for error in refused) == [400, 400, 503]
    assert [error.retry_after > 0 for error in refused if error.status == 503] == [True]
    finish.set()
    grammars.close()


def test_what_was_compiled_is_kept_for_a_while(language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_grammar, "_KEPT", 2)
    made, real = [], serve_grammar._compile

    def counted(vocabulary: Vocabulary, grammar: str) -> tuple[Compiled, str]:
        made.append(grammar)
        return real(vocabulary, grammar)

    monkeypatch.setattr(serve_grammar, "_compile", counted)

    async def ask() -> None:
        grammars = Grammars(language_model, ServeSettings())
        for number in (1, 2, 1, 3, 1, 2):
            start = await grammars.json_schema({"const": number})
            assert writes(start, str(number)) and start() is not start()

    asyncio.run(ask())
    assert [json.loads(grammar)["grammars"][0]["json_schema"]["const"] for grammar in made] == [1, 2, 3, 2]


def test_answers_to_one_request_do_not_share_a_place(language_model: LanguageModel) -> None:
    start = compiled(language_model, GRAMMARS["forced"].source)
    first, second = start(), start()
    assert first.accepts([], tokens_of("abra")) == 4 and first.allowed(tokens_of("abra")).any()
    assert np.flatnonzero(second.allowed([])).tolist() == tokens_of("a")


def test_a_model_without_a_usable_tokenizer_or_end_is_told_so(language_model: LanguageModel) -> None:
    class Slow:
        added_tokens_decoder: dict[int, Any] = {}  # noqa: RUF012

        def __len__(self) -> int:
            return 257

    target = language_model.target
    for changed in (replace(target, tokenizer=Slow()), replace(target, eos_ids=frozenset())):  # type: ignore[arg-type]
        model = language_model.twin()
        model.target = changed
        with pytest.raises(ApiError, match="structured output is not supported for this model") as refused:
            compiled(model, PERSON)
        assert refused.value.status == 400


def test_a_grammar_that_met_a_limit_allows_nothing_and_is_compiled_anew(
    language_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llguidance would let the text end there."""
    monkeypatch.setattr(serve_grammar, "_LIMITS", LLParserLimits(max_lexer_states=60, verbose_errors=False))
    grammars = Grammars(language_model, ServeSettings())
    schema = {"type": "string", "pattern": "^(.*a.{6}|.*b.{9})$"}
    grammar = asyncio.run(grammars.json_schema(schema))()
    stuck = walk_randomly(grammar, random.Random(5), 60)
    assert 2 < len(stuck) < 60 and EOS_ID not in stuck
    assert not grammar.allowed(stuck).any() and grammar.accepts(stuck, [EOS_ID]) == 0
    assert asyncio.run(grammars.json_schema(schema))().allowed(stuck[:1]).any()
