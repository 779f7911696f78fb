"""A long list of a JSON file, item by item: what is not kept takes no memory.

The text is decoded a window at a time. A window begins at an item and grows until the item ends, so
that an item takes what it needs and no more than `ITEM_BYTES`.
"""

import json
import re
from codecs import utf_8_decode
from collections.abc import Iterator
from typing import Any, NoReturn

from shardwise.boundary.documents import DEEPEST, STRICT, RefusedError, check_value
from shardwise.boundary.files import decode
from shardwise.errors import BadRequest, shown
from shardwise.units import format_bytes

WINDOW_BYTES = 2**18
ITEM_BYTES = 2**21
"""One item, or one value beside the list."""
MOST_KEYS = 1000
"""Values beside the list."""
_TAIL = 16
"""Characters before the end of a window in which what is only cut off may seem wrong."""
_SPACE = re.compile(r"[ \t\n\r]*+")
_DECODER = json.JSONDecoder(**STRICT)


def json_items(data: bytes, key: str, path: object, what: str, *, remedy: str) -> Iterator[Any]:
    """The items of a document that is a list, or of the list under `key` of an object.

    Raises BadRequest for what `parse_json` refuses, for a document without the list, and for an
    item or another value of more than `ITEM_BYTES`.
    """
    reader = _ItemReader(data, f"{what} '{path}'", remedy)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data:
        decode(data, str(path), what)
    opening = reader.sign()
    if opening == "[":
        yield from reader.parts("]")
    elif opening == "{":
        yield from _of_object(reader, key)
    else:
        reader.value()
        reader.refuse(f" has no list '{key}'")
    if reader.sign():
        reader.fail("Extra data", reader.at)


def _of_object(reader: "_ItemReader", key: str) -> Iterator[Any]:
    seen: set[str] = set()
    listed = False
    for name in reader.parts("}"):
        if not isinstance(name, str) or reader.sign() != ":":
            reader.fail("Expecting a name in quotes and ':'", reader.at)
        if name in seen or len(seen) >= MOST_KEYS:
            twice = f": the key {shown(name)} appears twice; keep one"
            reader.refuse(twice if name in seen else f" has more than {MOST_KEYS:,} keys")
        seen.add(name)
        reader.at += 1
        if reader.sign() == "[" and name == key:
            listed = True
            yield from reader.parts("]")
        else:
            reader.value()
    if not listed:
        reader.refuse(f" has no list '{key}'")


class _ItemReader:
    """A place in a JSON text: `at` in the window `text`, which begins at byte `start`."""

    def __init__(self, data: bytes, what: str, remedy: str) -> None:
        self.data, self.what, self.remedy = data, what, remedy
        self.start = 3 if data.startswith(b"\xef\xbb\xbf") else 0
        self.at, self.size = 0, WINDOW_BYTES
        self._fill()

    def parts(self, closing: str) -> Iterator[Any]:
        """The values from an opening bracket to its end; of an object only the names, whose
        values are the caller's to read."""
        self.at += 1
        if self.sign() == closing:
            self.at += 1
            return
        while True:
            yield self.value()
            sign = self.sign()
            if sign not in (",", closing) or not sign:
                self.fail(f"Expecting ',' or '{closing}'", self.at)
            self.at += 1
            if sign == closing:
                return
            self.sign()

    def sign(self) -> str:
        """The next character that is no space; none at the end."""
        while True:
            self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text):
                return self.text[self.at]
            if self.last:
                return ""
            self._more()

    def value(self) -> Any:
        """The value that begins here."""
        while True:
            try:
                found, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos > len(self.text) - _TAIL
                if self.last or not cut:
                    self.fail(error.msg, error.pos)
            except RefusedError as error:
                self.refuse(f": {error}")
            except RecursionError:
                self.refuse(f" nests deeper than {DEEPEST} levels")
            else:
                if self.last or end < len(self.text) - _TAIL:
                    begun, self.at = self.at, end
                    return self._checked(found, begun)
            self._more()

    def _checked(self, found: Any, begun: int) -> Any:
        """A value that was decoded from `begun` on, whose numbers and keys are checked by then."""
        text, end = self.text, self.at
        brackets = text.count("{", begun, end) + text.count("[", begun, end)
        if brackets <= DEEPEST and not self.pairs:
            return found
        try:
            check_value(found, self.what, self.pairs)
        except BadRequest as error:
            raise BadRequest(f"{error}; {self.remedy}") from None
        return found

    def fail(self, reason: str, at: int) -> NoReturn:
        """Refuse what is not JSON, with its line and column."""
        place = self.start + len(self.text[:at].encode())
        line = self.data.count(b"\n", 0, place) + 1
        column = place - self.data.rfind(b"\n", 0, place)
        self.refuse(f" is not JSON at line {line} column {column}: {reason}")

    def refuse(self, rule: str) -> NoReturn:
        """Refuse the document, with the remedy."""
        raise BadRequest(f"{self.what}{rule}; {self.remedy}")

    def _more(self) -> None:
        """A window from here, or a longer one."""
        if self.at:
            self.start += len(self.text[: self.at].encode())
            self.at, self.size = 0, WINDOW_BYTES
        elif self.size >= ITEM_BYTES:
            self.refuse(f" holds a value of more than {format_bytes(ITEM_BYTES)}")
        else:
            self.size *= 2
        self._fill()

    def _fill(self) -> None:
        piece = self.data[self.start : self.start + self.size]
        self.last = self.start + self.size >= len(self.data)
        try:
            self.text, _ = utf_8_decode(piece, "strict", self.last)
        except UnicodeDecodeError as error:
            place = self.start + error.start
            line = self.data.count(b"\n", 0, place) + 1
            raise BadRequest(
                f"{self.what} is not text in UTF-8 (byte {place}, line {line}); save it as UTF-8"
            ) from None
        self.pairs = "\\ud" in self.text.lower()
