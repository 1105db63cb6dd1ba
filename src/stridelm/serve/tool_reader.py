"""Calls out of text while it is being written: text goes on at once, each call is given whole."""

import json
from collections.abc import Collection
from dataclasses import dataclass, field

import orjson

from stridelm.engine.detokenize import overlap
from stridelm.serve.tools import Call, ToolFormat


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_refuse)


@dataclass(slots=True)
class Found:
    """What a piece of text brought."""

    text: str = ""
    calls: list[Call] = field(default_factory=list)


class CallReader:
    """Feed it an answer's text piece by piece. What looks like a call of a known function and is none stays text."""

    def __init__(self, form: ToolFormat, names: Collection[str], *, many: bool) -> None:
        """`names`: of the functions that may be called; `many`: whether more than one call may be."""
        self.form = form
        self.names = names
        self.many = many
        self.calls = 0
        """How many calls were given so far."""
        self._held = ""
        self._is_open = False
        self._is_text = False
        """The answer has begun with something else than calls, in a form where they are the whole answer."""

    def push(self, text: str) -> Found:
        self._held += text
        found = Found()
        if self.form.opens_anywhere:
            while self._advance(found):
                pass
        elif self._is_text or not self._may_be_calls():
            self._is_text = True
            found.text, self._held = self._held, ""
        return found

    def flush(self) -> Found:
        """The rest, at the end of the answer."""
        rest, self._held = self._held, ""
        if self.form.opens_anywhere:
            # The end may be missing, all of it or a part: it was a stop string, or there was no room for it.
            body = rest[: len(rest) - overlap(rest, self.form.after.strip())].removeprefix(self.form.openings[0])
            call = self._call(body) if self._is_open else None
            calls = [] if call is None else [call]
        else:
            calls = [] if self._is_text else self._all_calls(rest)
        self.calls += len(calls)
        if calls or (self.calls and not rest.strip()):
            return Found(calls=calls)
        return Found(rest)

    def _advance(self, found: Found) -> bool:
        """Take one step through what is held; False: more text is needed."""
        opening, closing = self.form.openings[0], self.form.after.strip()
        if self._is_open:
            body, closed, behind = self._held.partition(closing)
            if not closed:
                return False
            self._is_open, self._held = False, behind
            call = self._call(body.removeprefix(opening))
            if call is None:
                found.text += body + closed
            else:
                self.calls += 1
                found.calls.append(call)
            return True
        before, opened, _ = self._held.partition(opening)
        if opened:
            # White space before a call is part of neither.
            found.text += before.rstrip()
            self._held, self._is_open = self._held[len(before) :], True
            return True
        # A call may be about to begin; the white space before it is not text then.
        certain = self._held[: len(self._held) - overlap(self._held, opening)].rstrip()
        found.text += certain
        self._held = self._held[len(certain) :]
        return False

    def _may_be_calls(self) -> bool:
        begun = self._held.lstrip()
        return any(begun.startswith(opening) or opening.startswith(begun) for opening in self.form.openings)

    def _call(self, text: str) -> Call | None:
        """A call of a function that there is, if this is one and one more may be."""
        try:
            value = _JSON.decode(text)
        except (ValueError, RecursionError):
            return None
        return self._known(value) if self.many or not self.calls else None

    def _known(self, value: object) -> Call | None:
        try:
            orjson.dumps(value)  # lone surrogates, numbers beyond 64 bits, great depth: nobody could read them back
        except orjson.JSONEncodeError:
            return None
        call = self.form.parse(value)
        return call if call is not None and call.name in self.names else None

    def _all_calls(self, text: str) -> list[Call]:
        """The calls that make up a whole answer; none if any of it is something else."""
        text = text.strip().removeprefix(self.form.openings[0]).strip()
        values: list[object] = []
        try:
            if self.form.end:
                listed = _JSON.decode(text)
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
