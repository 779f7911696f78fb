"""Text while tokens come: whole characters, the text of all, cut at stop strings."""

import pytest
from hypothesis import strategies as st
from tests.apps.server.made import tokenizer
from tests.drawn import on_drawn
from tokenizers import Tokenizer, decoders, models

from shardwise.runtime.text.answer_text import AnswerText, Detokenizer, StopStrings

BYTES = tokenizer()
WORDS = "the quick brown fox — naïve 你好 🙂🏽 mat"


def decode(ids):
    return BYTES.decode(ids, skip_special_tokens=True)


def pieces_of(ids, before=(), decode=decode):
    made = Detokenizer(decode, before)
    return [*(made.add(token) for token in ids), made.rest()]


@on_drawn(300, st.text(max_size=60).filter(lambda text: "<" not in text), st.integers(0, 20))
def test_pieces_are_the_text_and_never_half_a_character(text, cut):
    """Without "<", which begins the special tokens, whose text is left out."""
    ids = BYTES.encode(text, add_special_tokens=False).ids
    before, answer = ids[:cut], ids[cut:]
    pieces = pieces_of(answer, before)
    start = len(decode(before).rstrip("\ufffd"))
    assert "".join(pieces) == text[start:]


@on_drawn(300, st.lists(st.integers(0, 302), max_size=150))
def test_pieces_of_any_tokens_are_their_text(ids):
    """Among them broken bytes without end, and special tokens."""
    assert "".join(pieces_of(ids)) == decode(ids)


def test_characters_of_several_tokens_come_whole():
    ids = [t for byte in "🙂".encode() for t in [byte_token(byte)]]
    assert pieces_of(ids) == ["", "", "", "🙂", ""]


def test_tokens_without_a_text_after_half_a_character_cost_no_more():
    """They were all decoded again with each: an answer of a thousand held up the server."""
    lengths = []

    def counted(ids):
        lengths.append(len(ids))
        return decode(ids)

    ids = [byte_token(0xF0), *[BYTES.token_to_id("</s>")] * 1000, byte_token(ord("a"))]
    assert "".join(pieces_of(ids, decode=counted)) == decode(ids)
    assert sum(lengths) < 10 * len(ids)


def byte_token(byte):
    from tokenizers.pre_tokenizers import ByteLevel

    (shown,) = (
        c for c in ByteLevel.alphabet() if BYTES.token_to_id(c) is not None and raw(c) == byte
    )
    return BYTES.token_to_id(shown)


def raw(character):
    """The byte that a character of a byte-level vocabulary stands for."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    code = ord(character)
    return code if code in plain else [b for b in range(256) if b not in plain][code - 256]


def sentence_pieces():
    """Spaces belong to words and bytes fall back, as in the tokenizers of Llama 2 and Gemma."""
    vocabulary = {"<unk>": 0, "▁the": 1, "▁cat": 2, "s": 3, "▁": 4}
    vocabulary |= {f"<0x{b:02X}>": 5 + b for b in range(256)}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return made


def test_spaces_between_words_stay_and_the_first_does_not():
    made = sentence_pieces()
    assert pieces_of([1, 2, 3], decode=made.decode) == ["the", " cat", "s", ""]
    assert pieces_of([2, 3], before=[1], decode=made.decode) == [" cat", "s", ""]
    ids = [1, *(5 + b for b in "é".encode()), 2]
    assert pieces_of(ids, decode=made.decode) == ["the", "", "é", " cat", ""]


STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3)


@on_drawn(400, st.text("abc", max_size=40), STOPS, st.booleans())
def test_text_ends_at_the_first_stop_string_that_is_whole(text, stops, keep):
    made = StopStrings(stops, keep=keep)
    shown = "".join(made.add(character) for character in text) + made.rest()
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
    if ends:
        end, start, stop = min(ends)
        assert (shown, made.found) == (text[: end if keep else start], stop)
    else:
        assert (shown, made.found) == (text, None)


@on_drawn(200, st.lists(st.text("abc", max_size=5), max_size=12), STOPS)
def test_nothing_that_was_shown_is_taken_back(parts, stops):
    made = StopStrings(stops)
    shown = "".join(made.add(part) for part in parts) + made.rest()
    assert "".join(parts).startswith(shown)
    assert not any(stop in shown for stop in stops)
    assert (made.found is None) == (shown == "".join(parts))


def test_a_stop_string_counts_the_tokens_up_to_it():
    ids = BYTES.encode("the fox and the cat", add_special_tokens=False).ids
    made = AnswerText(decode, (), [" and"])
    assert made.add(ids) == "the fox"
    assert made.stopped == " and"
    assert decode(ids[: made.count]) == "the fox and"
    late = AnswerText(decode, (), [" and"], least=len(ids))
    assert late.add(ids) + late.end() == "the fox and the cat"


@pytest.mark.parametrize("keep", [False, True])
def test_a_stop_string_may_come_in_parts(keep):
    made = StopStrings(["</end>"], keep=keep)
    assert [made.add(part) for part in ("a <", "/e", "nd> b", "c")][:2] == ["a ", ""]
    assert made.found == "</end>"
