"""Streaming text: whole characters only, the same text as decoding at once, stop strings wherever tokens end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stridelm.engine.detokenize import Detokenizer, TextStream
from tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
DECODE = Detokenizer(TOKENIZER)


def pushed(stream: TextStream, ids: list[int]) -> list[str]:
    """What each token releases, up to a stop; then the rest."""
    pieces = []
    for token in ids:
        pieces.append(stream.push(token))
        if stream.stopped_by:
            break
    return [*pieces, stream.flush()]


@given(st.text(max_size=40))
def test_pieces_make_up_the_text(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert "".join(pushed(TextStream(DECODE), ids)) == TOKENIZER.decode(ids)


@given(st.text(alphabet="aé漢🙂", min_size=1, max_size=12))
def test_no_piece_is_half_a_character(text: str) -> None:
    for piece in pushed(TextStream(DECODE), TOKENIZER.encode(text)):
        assert "\N{REPLACEMENT CHARACTER}" not in piece


def test_a_broken_character_at_the_end_is_shown_as_such() -> None:
    ids = TOKENIZER.encode("ok🙂")[:-1]
    assert "".join(pushed(TextStream(DECODE), ids)) == TOKENIZER.decode(ids) == "ok\N{REPLACEMENT CHARACTER}"


def test_broken_bytes_in_the_middle_do_not_hold_up_what_follows() -> None:
    broken = TOKENIZER.encode("é")[:1]
    ids = [*broken, *TOKENIZER.encode("abc")]
    pieces = pushed(TextStream(DECODE), ids)
    assert "".join(pieces) == TOKENIZER.decode(ids)
    assert pieces[-2:] == ["c", ""]


@given(st.text(alphabet="ab.", max_size=30), st.lists(st.text(alphabet="ab.", min_size=1, max_size=4), max_size=3))
def test_stop_strings_cut_where_the_whole_text_has_them_first(text: str, stops: list[str]) -> None:
    stream = TextStream(DECODE, stops)
    got = "".join(pushed(stream, TOKENIZER.encode(text)))
    # One token is one letter here: the answer ends with the first letter that completes a stop string.
    for end in range(len(text) + 1):
        found = [text[:end].find(stop) for stop in stops if stop in text[:end]]
        if found:
            assert stream.stopped_by in stops and text[min(found) :].startswith(stream.stopped_by)
            assert got == text[: min(found)]
            return
    assert stream.stopped_by is None
    assert got == text


def test_of_two_stop_strings_that_end_together_the_earlier_one_cuts() -> None:
    assert "".join(pushed(TextStream(DECODE, ["b", "ab"]), TOKENIZER.encode("xab"))) == "x"


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_none() -> None:
    stream = TextStream(DECODE, ["END"])
    assert [stream.push(token) for token in TOKENIZER.encode("aENxEN")] == ["a", "", "", "ENx", "", ""]
    assert stream.flush() == "EN"


@pytest.mark.parametrize("special", ["<eos>"])
def test_special_tokens_have_no_text(special: str) -> None:
    assert "".join(pushed(TextStream(DECODE), TOKENIZER.encode(f"a{special}"))) == "a"


def test_what_was_decoded_of_late_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_tokenizer()
    decode, ids = Detokenizer(tokenizer), tokenizer.encode("a text that is written twice, ü")
    first = pushed(TextStream(decode), ids)
    asked: list[list[int]] = []
    plain = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids, **options: asked.append(ids) or plain(ids, **options))
    assert pushed(TextStream(decode), ids) == first
    # The "ü" is two tokens behind another one: who remembers any number of tokens remembers whole texts.
    assert asked == [ids[-3:]]
