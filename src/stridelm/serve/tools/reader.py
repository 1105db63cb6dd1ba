"""Finds calls in text while it is being written: text is passed on at once, and so are a call's arguments.

A call is recognised as soon as the name of a known function and the opening brace of its arguments are there. What
follows belongs to the call, even if it is not JSON or the answer ends within it: the client has to check it, as with
any model. A call whose keys are in another order is passed on when it is complete, if it is valid.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field

import orjson

from stridelm.engine.detokenize import overlap
from stridelm.serve.tools.forms import Call, ToolFormat


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_refuse)


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a call."""

    index: int
    """The call's position among those of the answer."""
    name: str | None
    """The function's name, in the call's first piece only."""
    arguments: str
    """A piece of JSON, as the model wrote it."""


@dataclass(slots=True)
class Found:
    """The text and calls found in a piece of an answer, in order."""

    pieces: list[str | CallPart] = field(default_factory=list)

    def add(self, *pieces: str | CallPart) -> None:
        self.pieces += [piece for piece in pieces if piece != ""]

    @property
    def text(self) -> str:
        return "".join(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def calls(self) -> list[CallPart]:
        return [piece for piece in self.pieces if isinstance(piece, CallPart)]


class _Arguments:
    """Finds the end of a JSON object in text that comes piece by piece."""

    def __init__(self) -> None:
        self.is_whole = False
        self.in_string = self._is_escaped = False
        self._depth = 0

    def take(self, text: str) -> int:
        """Read on; returns how many of these characters are still part of the object."""
        for at, letter in enumerate(text):
            if self.is_whole:
                return at
            if self._is_escaped:
                self._is_escaped = False
            elif self.in_string:
                self.in_string, self._is_escaped = letter != '"', letter == "\\"
            elif letter == '"':
                self.in_string = True
            else:
                self._depth += (letter in "{[") - (letter in "}]")
                self.is_whole = self._depth <= 0
        return len(text)


class CallReader:
    """Reads an answer's text piece by piece. Text that only looks like a call of a known function stays text."""

    def __init__(self, form: ToolFormat, names: Collection[str], *, many: bool) -> None:
        """`names`: the functions that may be called; `many`: whether more than one call is allowed."""
        self.form = form
        self.names = names
        self.many = many
        self.calls = 0
        """Number of calls found so far."""
        self._held = ""
        self._space = ""
        """White space before a possible call: if it is a call, the white space is not part of the text."""
        self._is_open = False
        self._arguments: _Arguments | None = None
        """The arguments of the call that is being written."""
        self._is_text = False
        """Whether the answer began with something other than calls, in a format where calls are the whole answer."""
        key = re.escape(form.arguments)
        self._beginning = re.compile(rf'\s*\{{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"{key}"\s*:\s*(?=\{{)')

    @property
    def is_done(self) -> bool:
        """Whether only one call is allowed and it is complete. What follows it is not read."""
        return not self.many and self.calls > 0 and (self._arguments is None or self._arguments.is_whole)

    def push(self, text: str) -> Found:
        self._held += text
        found = Found()
        advance = self._advance if self.form.opens_anywhere else self._advance_list
        while not self.is_done and advance(found):
            pass
        if self.is_done:
            self._held = ""
        return found

    def flush(self) -> Found:
        """The rest, at the end of the answer."""
        rest, self._held = self._held, ""
        if self.is_done:
            return Found()
        if self._arguments is not None and self._arguments.is_whole:
            rest = _after_arguments(rest)
            return _found("" if rest.startswith(",") or self.form.after.strip().startswith(rest) else rest)
        if self._arguments is not None:
            certain = rest[: len(rest) - overlap(rest, self.form.after.strip())]
            mine = self._arguments.take(certain)
            if self._arguments.in_string:  # what looked like the end of the call is part of a string
                mine += self._arguments.take(rest[len(certain) :])
            return _found(*self._piece(rest[:mine]))
        if self.form.opens_anywhere:
            # All or part of the closing tag may be missing: it was a stop string, or there was no room for it.
            body = rest[: len(rest) - overlap(rest, self.form.after.strip())].removeprefix(self.form.openings[0])
            call = self._call(body) if self._is_open else None
            calls = [] if call is None else [call]
        else:
            inner = self._after_calls(rest)
            calls = [] if self._is_text else self._all_calls(inner)
            rest = inner if self.calls else rest
        parts = [self._whole(call) for call in calls]
        if parts or (self.calls and not rest.strip()):
            return _found(*parts)
        return _found(self._space + rest)

    def _advance(self, found: Found) -> bool:
        """Process the next part of the held text; False: more text is needed."""
        opening, closing = self.form.openings[0], self.form.after.strip()
        if self._is_open:
            if self._arguments is None and self._begins(self._held.removeprefix(opening), found):
                return True
            if self._arguments is not None:
                return self._advance_arguments(found)
            body, closed, behind = self._held.partition(closing)
            if not closed:
                return False
            self._is_open, self._held = False, behind
            call = self._call(body.removeprefix(opening))
            if call is None:
                found.add(self._space + body + closed)
            else:
                found.add(self._whole(call))
            self._space = ""
            return True
        before, opened, _ = self._held.partition(opening)
        if opened:
            # White space before a call belongs neither to the text nor to the call.
            certain = before.rstrip()
            found.add(certain)
            self._space, self._is_open = before[len(certain) :], True
            self._held = self._held[len(before) :]
            return True
        # If a call is about to begin, the white space before it is not text.
        certain = self._held[: len(self._held) - overlap(self._held, opening)].rstrip()
        found.add(certain)
        self._held = self._held[len(certain) :]
        return False

    def _advance_arguments(self, found: Found) -> bool:
        """As `_advance`, within a call's arguments: they end with their object, or where the call is closed."""
        assert self._arguments is not None
        closing = self.form.after.strip()
        if not self._arguments.is_whole:
            at = self._held.find(closing)
            certain = self._held[: at if at >= 0 else len(self._held) - overlap(self._held, closing)]
            mine = self._arguments.take(certain)
            if self._arguments.in_string and at >= 0:  # the tag is part of a string
                mine += self._arguments.take(closing)
            found.add(*self._piece(self._held[:mine]))
            self._held = self._held[mine:]
            if mine:
                return True
            if at < 0:
                return False
        return self._close(_after_arguments(self._held))

    def _close(self, rest: str) -> bool:
        """End a call whose arguments have ended. Models sometimes forget the closing tag."""
        opening, closing = self.form.openings[0], self.form.after.strip()
        if rest.startswith(","):  # the call's object has further keys, which are ignored
            rest = rest[min((at for at in (rest.find(opening), rest.find(closing)) if at >= 0), default=len(rest)) :]
        if any(tag.startswith(rest) and tag != rest for tag in (opening, closing)):
            return False
        self._held, self._is_open, self._arguments = rest.removeprefix(closing), False, None
        return True

    def _advance_list(self, found: Found) -> bool:
        """As `_advance`, in a format where calls are the whole answer."""
        if self._arguments is not None:
            mine = self._arguments.take(self._held)
            found.add(*self._piece(self._held[:mine]))
            self._held = self._held[mine:]
            if self._arguments.is_whole:
                self._arguments = None
                return True
            return False
        if self._is_text or not (self.calls or self._may_be_calls()):
            self._is_text = True
            found.add(self._held)
            self._held = ""
            return False
        return self._begins(self._after_calls(self._held), found)

    def _begins(self, text: str, found: Found) -> bool:
        """Whether a call begins here whose arguments can be passed on as they come."""
        beginning = self._beginning.match(text)
        if beginning is None:
            return False
        try:
            name = _JSON.decode(beginning[1])
        except ValueError:
            return False
        if name not in self.names:
            return False
        found.add(CallPart(self.calls, name, ""))
        self.calls += 1
        self._held, self._space, self._arguments = text[beginning.end() :], "", _Arguments()
        return True

    def _piece(self, text: str) -> list[CallPart]:
        return [CallPart(self.calls - 1, None, text)] if text else []

    def _after_calls(self, text: str) -> str:
        """The text without what separates the next call from the one before, or from the answer's beginning."""
        text = text.lstrip()
        if not self.calls:
            text = text.removeprefix(self.form.openings[0]).lstrip()
            return text.removeprefix("[") if self.form.end else text
        text = text.removeprefix("}").lstrip().removeprefix(self.form.between.strip()).lstrip()
        if self.form.end:
            text = text.removeprefix(self.form.end).lstrip()
        return text

    def _may_be_calls(self) -> bool:
        begun = self._held.lstrip()
        return any(begun.startswith(opening) or opening.startswith(begun) for opening in self.form.openings)

    def _call(self, text: str) -> Call | None:
        """The call that this text is, or None if it is not a call of a known function."""
        try:
            value = _JSON.decode(text)
        except (ValueError, RecursionError):
            return None
        return self._known(value)

    def _known(self, value: object) -> Call | None:
        try:
            orjson.dumps(value)  # lone surrogates, numbers beyond 64 bits, deep nesting: clients could not parse them
        except orjson.JSONEncodeError:
            return None
        call = self.form.parse(value)
        return call if call is not None and call.name in self.names else None

    def _whole(self, call: Call) -> CallPart:
        self.calls += 1
        return CallPart(self.calls - 1, call.name, json.dumps(call.arguments, ensure_ascii=False))

    def _all_calls(self, text: str) -> list[Call]:
        """The calls that make up a whole answer; none if any part of it is not a call."""
        values: list[object] = []
        if not text.strip():
            return []
        try:
            if self.form.end:
                listed = _JSON.decode("[" + text)
                values = listed if isinstance(listed, list) else []
                text = ""
            while text:
                value, end = _JSON.raw_decode(text)
                values.append(value)
                text = text[end:].lstrip().removeprefix(self.form.between.strip()).lstrip()
        except (ValueError, RecursionError):
            return []
        calls = [self._known(value) for value in values]
        known = [call for call in calls if call is not None]
        return known[: None if self.many else 1] if len(known) == len(calls) else []


def _found(*pieces: str | CallPart) -> Found:
    found = Found()
    found.add(*pieces)
    return found


def _after_arguments(text: str) -> str:
    """What follows a call's object, without further closing braces: models sometimes write too many."""
    return text.lstrip(" \t\r\n}")
