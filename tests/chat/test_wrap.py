"""Answers in a terminal break between words, however their pieces are cut."""

import random

from stridelm.chat.wrap import WordWrap

WIDTH = 10


def shown(pieces: list[str], width: int = WIDTH) -> list[str]:
    """The lines of a terminal that is one cell wider than what is used of it, and breaks behind its last cell."""
    wrap, lines = WordWrap(width), [""]
    for number, piece in enumerate(pieces):
        for each in wrap.add(piece, "odd" if number % 2 else "even"):
            if isinstance(each, int):
                assert 0 < each <= len(lines[-1]) <= width  # the cursor is in a column
                lines[-1] = lines[-1][:-each]
                continue
            for letter in each[0]:
                if letter == "\n":
                    lines.append("")
                elif len(lines[-1]) > width:
                    lines.append(letter)
                else:
                    lines[-1] += letter
    return [line.rstrip(" ") for line in lines]


def test_a_word_that_outgrows_its_line_begins_the_next() -> None:
    assert shown(["one two th", "ree four"]) == ["one two", "three four"]
    assert shown(["one two thr", "ee"]) == ["one two", "three"]


def test_a_full_line_is_followed_by_no_empty_one() -> None:
    full = "1234567890"
    assert shown([full, " ", "\n", "x"]) == shown([full, "\n", "x"]) == shown([full, " ", "x"]) == [full, "x"]


def test_a_word_longer_than_a_line_is_broken_by_the_terminal() -> None:
    assert shown(["x" * 25 + " end"]) == ["x" * 11, "x" * 11, "xxx end"]


def test_moved_words_keep_their_colours() -> None:
    wrap = WordWrap(WIDTH)
    wrap.add("one two ", "even")
    assert wrap.add("th", "odd") == [("th", "odd")]
    assert wrap.add("ree", "even") == [2, ("\n", ""), ("th", "odd"), ("ree", "even")]


def test_letters_of_two_cells_break_anywhere() -> None:
    wrap = WordWrap(4)
    assert wrap.add("日本語", "s") == [("日本語", "s")]  # the last one is in the next line by now
    assert wrap.add(" ab", "s") == [(" a", "s"), 1, ("\n", ""), ("ab", "s")]


def test_lines_are_the_same_however_pieces_are_cut() -> None:
    chance = random.Random(0)
    for _ in range(200):
        words = ["".join(chance.choices("abc", k=chance.randint(1, 9))) for _ in range(12)]
        text = "".join(word + chance.choice([" ", " ", " ", "\n"]) for word in words).rstrip()
        cuts = sorted(chance.sample(range(1, len(text)), 5))
        pieces = [text[first:last] for first, last in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        lines = shown(pieces)
        assert lines == shown([text]) and max(map(len, lines)) <= WIDTH
        assert " ".join(lines).split() == words
