"""Damage to bytes, text and documents, drawn from a random generator.

Values are replaced by those that programs stumble over: numbers that are not finite or too long,
text that is code, a path or half a character, other types, nothing at all.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

NUMBERS = (
    *("nan", "inf", "-inf", "NaN", "Infinity", ".nan", ".inf", "1e400", "-1e400", "1e-400"),
    *("0", "-0", "-1", "1", "0.5", "-0.5", "1e308", "1e25", "1e18", "1e12", "1e9", "1e-9"),
    *("9223372036854775808", "18446744073709551616", "99999999999999999999", "9" * 50, "9" * 5000),
    *("0x10", "1_000", "1,5", "1,500", "1.500,0", "٣", "½", "1e", "--1", "+1", "1/0", "007"),
    *("1000000", "1000000000", "16385", "3", "7", "4294967296", "100%", "200%", "-3%", "nan%"),
    *("1ms", "-1ms", "1e300s", "4Mi", "1e30Mi", "1GiB", "1e300GB"),
)
TEXTS = (
    *("", " ", "null", "true", "false", "~", "None", "{}", "[]", "''", '"', "%s%n", "*a", "&a"),
    *("../x", "../../../../etc/passwd", "/etc/passwd", "/dev/zero", "file:///etc/passwd", "."),
    *("a" * 300, "a" * 200_000, "\x1b[31mred", "\n", "\t", "\r\n", "\x00", "\ufeff", "\u202e"),
    *("$(touch PWNED)", "`touch PWNED`", "'; touch PWNED; '", '"; touch PWNED #', "| touch PWNED"),
    "__import__('os').system('touch PWNED')",
    "!!python/object/apply:os.system ['touch PWNED']",
    *("{{7*7}}", "${jndi:x}", "<script>", "é", "😀", "\\ud800", "\\u0000", "\\N{BULLET}"),
    *("I_XY", "A[I_X, J_X]", "v5p:99999x99999x99999", "999999999*h100:8", "v5e", "h100:0"),
    *("bf16", "int3", "train", "serve", "fsdp", "__class__", "constructor", "-h", "--json"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, -0.0, 10**30, 10**400, 2**63, 1e308, 1e18, 7, 3),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "x", "nan", "12", [], {}, [None], [0]),
    *([[[]]], {"": 0}, {"a": 1}, [1, 2, 3], ["a"] * 50, "a" * 300, "../x", "$(touch PWNED)"),
)


@dataclass(frozen=True, slots=True)
class Harm:
    """Damage by a random generator."""

    random: Random

    def document(self, data: bytes) -> bytes:
        """One to four kinds of damage, two thirds of it to values and the rest to the text."""
        for _ in range(self.random.choice((1, 1, 1, 1, 2, 4))):
            change = _document if self.random.random() < 0.66 else self.random.choice(_TEXT)
            data = change(data, self.random)
        return data

    def text(self, data: bytes) -> bytes:
        """Damage to a text, whatever it means."""
        return self.random.choice(_TEXT)(data, self.random)

    def word(self, word: str) -> str:
        """A word of a command line: another value, or its text changed."""
        draw = self.random.random()
        if draw < 0.45:
            return self.random.choice(NUMBERS)
        if draw < 0.65:
            return _argument(self.random.choice(TEXTS).encode())
        return _argument(self.text(word.encode("utf-8", "surrogateescape")))

    def notation(self, text: str) -> str:
        """A character of a formula changed, or anything."""
        if self.random.random() < 0.3:
            return self.word(text)
        at = self.random.randrange(len(text) + 1)
        put = self.random.choice("IJKLXYZ_,[]{}*->U AB1248=")
        return text[:at] + put + text[at + self.random.randrange(2) :]


class _Whole(Harm):
    """No damage."""

    def document(self, data: bytes) -> bytes:
        return data

    def text(self, data: bytes) -> bytes:
        return data

    def word(self, word: str) -> str:
        return word

    def notation(self, text: str) -> str:
        return text


WHOLE = _Whole(Random(0))


def _argument(data: bytes) -> str:
    """Bytes as a shell hands them over: no NUL, any other byte."""
    return data[:100_000].replace(b"\0", b"").decode("utf-8", "surrogateescape")


def _span(data: bytes, random: Random) -> tuple[int, int]:
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.choice((1, 1, 2, 8, 64, 1024)))


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _delete(data: bytes, random: Random) -> bytes:
    a, b = _span(data, random)
    return data[:a] + data[b:]


def _repeat(data: bytes, random: Random) -> bytes:
    a, b = _span(data, random)
    times = random.choice((2, 2, 10, 1000)) if b - a < 100 else 2
    return data[:a] + data[a:b] * times + data[b:]


def _flip(data: bytes, random: Random) -> bytes:
    if not data:
        return b"\xff"
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def _insert(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    word = random.choice(NUMBERS + TEXTS).encode("utf-8", "surrogatepass")
    return data[:at] + word + data[at:]


def _lines(data: bytes, random: Random) -> bytes:
    """A line left out, doubled, moved, or shared out."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return b"\n"
    i, j = random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(4):
        case 0:
            del lines[i]
        case 1:
            lines.insert(j, lines[i])
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case _:
            lines[i] = lines[i][: len(lines[i]) // 2]
    return b"".join(lines)


def _number(data: bytes, random: Random) -> bytes:
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", data[:200_000]))
    if not found:
        return _insert(data, random)
    at = random.choice(found)
    return data[: at.start()] + random.choice(NUMBERS).encode() + data[at.end() :]


def _word(data: bytes, random: Random) -> bytes:
    found = list(re.finditer(rb"[A-Za-z_][A-Za-z_0-9.-]*", data[:200_000]))
    if not found:
        return _insert(data, random)
    at = random.choice(found)
    if random.random() < 0.4:
        other = random.choice(found).group()
    else:
        other = random.choice(TEXTS).encode("utf-8", "surrogatepass")
    return data[: at.start()] + other + data[at.end() :]


def _encoding(data: bytes, random: Random) -> bytes:
    text = data.decode("utf-8", "replace")
    return random.choice(
        (
            lambda: b"\xef\xbb\xbf" + data,
            lambda: text.encode("utf-16"),
            lambda: text.encode("latin-1", "replace") + b"\xe9",
            lambda: data.replace(b"\n", b"\r\n"),
            lambda: data.replace(b"\n", b"\r"),
            lambda: data + b"\x00",
            lambda: b"\x1f\x8b" + data,
            lambda: b"",
            lambda: b" \n",
        )
    )()


def _deep(data: bytes, random: Random) -> bytes:
    depth = random.choice((60, 1100, 30_000))
    opening = random.choice((b"[", b'{"a":', b"- ", b"(", b"a.", b"[["))
    at = random.choice((0, len(data), random.randrange(len(data) + 1)))
    return data[:at] + opening * depth + data[at:]


_TEXT: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(_cut, _delete, _delete, _repeat, _flip, _insert, _insert, _lines, _lines, _lines),
    *(_number, _number, _number, _word, _word, _encoding, _deep),
)


def _document(data: bytes, random: Random) -> bytes:
    """A value of a JSON or YAML document replaced, left out, doubled or put under another key."""
    held = _load(data)
    if held is None:
        return _cell(data, random)
    document, dump = held
    places = list(_places(document))
    if not places:
        return dump(random.choice(VALUES))
    holder, key = random.choice(places)
    match random.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[random.choice(TEXTS[:30])] = holder.pop(key)
        case 2:
            holder[key] = [holder[key]]
        case 3:
            other, at = random.choice(places)
            holder[key] = json.loads(json.dumps(other.get(at) if isinstance(other, dict) else None))
        case _:
            holder[key] = random.choice(VALUES)
    return dump(document)


def _cell(data: bytes, random: Random) -> bytes:
    """A cell of a table replaced, or a row made longer or shorter."""
    lines = data.split(b"\n")
    at = min(random.randrange(len(lines)), random.randrange(len(lines)))
    cells = lines[at].split(b",")
    i = random.randrange(len(cells))
    match random.randrange(5):
        case 0:
            del cells[i]
        case 1:
            cells.insert(i, b"")
        case 2:
            cells[i] = random.choice(cells)
        case _:
            cells[i] = random.choice(NUMBERS + TEXTS).encode("utf-8", "surrogatepass")
    lines[at] = b",".join(cells)
    return b"\n".join(lines)


def _load(data: bytes) -> tuple[Any, Callable[[Any], bytes]] | None:
    """A JSON document, or a YAML mapping, with the way to write it again."""
    import yaml

    if len(data) > 200_000:
        return None
    try:
        return json.loads(data), lambda value: json.dumps(value).encode()
    except (ValueError, RecursionError):
        pass
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, OverflowError):
        return None
    if not isinstance(document, dict):
        return None
    return document, lambda value: yaml.safe_dump(value, sort_keys=False).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every holder with each of its keys, at any depth."""
    found: list[tuple[Any, Any]] = []
    waiting = [value] if isinstance(value, dict | list) else []
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])
    return found
