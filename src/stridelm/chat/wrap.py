"""Lines that break between words, although a word may go on after its beginning was shown."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from rich.cells import cell_len

Piece = tuple[str, str]
"""Text and its style."""


@dataclass(slots=True)
class WordWrap:
    """Where the cursor is, and the word before it. A terminal by itself breaks lines in the middle of words."""

    width: int
    """Cells that are used of a line: fewer than it has, because a cursor behind the last cell is in no column."""
    _column: int = 0
    _word: list[Piece] = field(default_factory=list)

    def add(self, text: str, style: str) -> list[Piece | int]:
        """What to write: pieces, or a number of cells to erase before the cursor."""
        pieces: list[Piece | int] = []
        for each in chain.from_iterable(self._add(letter, style) for letter in text):
            last = pieces[-1] if pieces else 0
            if isinstance(last, tuple) and isinstance(each, tuple) and last[1] == each[1]:
                pieces[-1] = last[0] + each[0], each[1]
            else:
                pieces.append(each)
        return pieces

    def _add(self, letter: str, style: str) -> Iterator[Piece | int]:
        size = cell_len(letter)
        if letter == "\n":
            self._column, self._word = 0, []
            yield letter, style
            return
        if letter == " " and self._column >= self.width:  # the line's end takes its place, if anything follows
            self._word = []
            return
        if letter.isspace() or size > 1:  # scripts with wide letters have no spaces: they break anywhere
            self._word = []
        else:
            if self._column >= self.width and self._length < self._column:
                yield from self._move_word()
            self._word.append((letter, style))
        if letter == "\t":
            size = 8 - self._column % 8
        self._column = self._column + size if self._column + size <= self.width + 1 else size
        yield letter, style

    def _move_word(self) -> Iterator[Piece | int]:
        """The word goes to the next line."""
        if self._length:
            yield self._length
        yield "\n", ""
        yield from self._word
        self._column = self._length

    @property
    def _length(self) -> int:
        return sum(cell_len(letter) for letter, _ in self._word)
