"""The text of one answer while its tokens come: whole characters only, and cut at stop strings."""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

CONTEXT = 6
"""Tokens before the first one of an answer that decide whether it begins with a space."""
WINDOW = 32
"""Tokens that are decoded together at most while their characters stay broken."""
BROKEN = "\N{REPLACEMENT CHARACTER}"
HELD = 3
"""A character of UTF-8 has at most 4 bytes: so many broken ones at the end may yet become one."""


class Detokenizer:
    """Tokens to text, piece by piece; the pieces together are the text of all.

    Tokens are not characters: a tokenizer joins them with spaces or bytes, so a few of the last
    ones are decoded again with each new one, and what their text has more is new. Characters that
    are broken at the end wait for their other bytes. `begins` says how far behind the text given so
    far that of the last token begins.
    """

    def __init__(self, decode: Decode, before: Sequence[int] = ()) -> None:
        self._decode = decode
        count, most = CONTEXT, min(len(before), CONTEXT + HELD)
        while decode(before[-count:]).startswith(BROKEN) and count < most:
            count += 1  # it began within a character
        self._ids = list(before[-count:])
        self._text = decode(self._ids)
        self._sent = len(_whole(self._text))  # characters of the text of `_ids`
        self._next = len(self._ids)  # where the window begins once all of it is whole
        self.begins = 0

    def add(self, token: int) -> str:
        """The text that is certain now and was not before."""
        self._ids.append(token)
        text = self._decode(self._ids)
        silent = text == self._text and not self._decode([token])
        same = _alike(self._text, text)
        continues = same == len(text) and text.endswith(BROKEN) and not silent
        self.begins = same - continues - self._sent
        if silent:
            self._ids.pop()  # one without a text is to complete nothing
            return ""
        self._text, whole = text, _whole(text)
        new, self._sent = whole[self._sent :], max(self._sent, len(whole))
        if len(whole) == len(text):
            if self._next:
                del self._ids[: self._next]
                self._text = self._decode(self._ids)
                self._sent = len(self._text)
            self._next = len(self._ids)
        elif len(self._ids) > WINDOW:
            self._shorten(text)
        return new

    def rest(self) -> str:
        """What was held back, now that nothing follows."""
        return self._decode(self._ids)[self._sent :]

    def _shorten(self, text: str) -> None:
        """Drop tokens in front whose text does not depend on the others."""
        for cut in range(len(self._ids) - HELD - 1, 0, -1):
            front, back = self._decode(self._ids[:cut]), self._decode(self._ids[cut:])
            if front + back == text and len(front) <= self._sent:
                del self._ids[:cut]
                self._text = back
                self._sent -= len(front)
                self._next = 0
                return


def _alike(text: str, other: str) -> int:
    """Characters at the beginning of both."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(other)))


def _whole(text: str) -> str:
    """A text without the broken characters at its end that more bytes could make whole."""
    cut = len(text)
    while cut > len(text) - HELD and cut and text[cut - 1] == BROKEN:
        cut -= 1
    return text[:cut]


class StopStrings:
    """Text on its way to a reader, cut before the first of `stops` (after it with `keep`).

    The end of what has come is held back while it may be the beginning of a stop string.
    """

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        self.found: str | None = None
        self._stops = stops
        self._keep = keep
        self._held = ""

    def add(self, text: str) -> str:
        """What may be shown now."""
        if self.found is not None or not self._stops:
            return "" if self.found is not None else text
        held = self._held + text
        places = [(held.find(stop), stop) for stop in self._stops]
        at, stop = min(((at, s) for at, s in places if at >= 0), default=(-1, ""))
        if at >= 0:
            self.found, self._held = stop, ""
            return held[: at + len(stop) * self._keep]
        cut = min(begun(held, stop) for stop in self._stops)
        self._held = held[cut:]
        return held[:cut]

    def rest(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held


def begun(text: str, stop: str) -> int:
    """Where the end of a text begins that is the beginning of a stop string."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return len(text) - size
    return len(text)


class AnswerText:
    """The text of one answer: tokens in, text out. `stopped` once a stop string has come; tokens
    after that are not taken (`count` are). Below `least` tokens no stop string counts. `offsets`
    says of each token taken where its text begins; a part of a character begins where the character
    does."""

    def __init__(
        self,
        decode: Decode,
        prompt: Sequence[int] = (),
        stops: Sequence[str] = (),
        *,
        keep_stop: bool = False,
        least: int = 0,
    ) -> None:
        self.offsets: list[int] = []
        self._letters = 0  # of what has come, shown or held back
        self._tokens = Detokenizer(decode, prompt)
        self._stops = StopStrings(stops, keep=keep_stop)
        self._least = least

    @property
    def count(self) -> int:
        """Tokens taken."""
        return len(self.offsets)

    @property
    def stopped(self) -> str | None:
        """The stop string that ended it."""
        return self._stops.found

    def add(self, tokens: Sequence[int]) -> str:
        """The text that may be shown now, of these tokens and of what was held back."""
        shown = ""
        for token in tokens:
            if self.stopped is not None:
                break
            text = self._tokens.add(token)
            self.offsets.append(self._letters + self._tokens.begins)
            self._letters += len(text)
            shown += self._through(text)
        return shown

    def end(self) -> str:
        """What was held back, now that the answer has ended."""
        return self._through(self._tokens.rest()) + self._stops.rest()

    def drop(self) -> None:
        """Count a token that has no text: the one that ended the answer."""
        self.offsets.append(self._letters)

    def _through(self, text: str) -> str:
        if self.count < self._least:
            return self._stops.rest() + text
        return self._stops.add(text)
