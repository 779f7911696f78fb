"""Files that the page is given: a trace, a plan, a report's folder, kept while this process lives.

A state names them by a digest of what they hold, `given:0f3a...`, so that a link says the same to
everybody who gave the page the same file. A body is one line of JSON, `{"name": "report", "files":
[["compile.json", 1234], ...]}`, then the bytes of the files one after the other; a file alone has
its own name there.
"""

import asyncio
import hashlib
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from shardwise.boundary.documents import parse_json
from shardwise.boundary.outputs import write_bytes
from shardwise.boundary.records import Record
from shardwise.boundary.typed import record_of
from shardwise.errors import BadRequest

GIVEN = "given:"
"""How the word of a state begins that names such files."""
LARGEST, ALL_KEPT, MOST_FILES = 64 * 2**20, 256 * 2**20, 64
"""Bytes of what is given at once, and of all that is kept; files of a folder (ours)."""
HEADING = 16 * 2**10
"""Bytes of the line before the files."""
SECONDS = 60.0
"""In which a body has come."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", re.ASCII)
_DIGEST = re.compile(rf"{GIVEN}[0-9a-f]{{16}}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFiles(Record):
    """What came: the name of a file or of a folder, and its files with their bytes."""

    name: str
    files: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenWord(Record):
    """How a state names what was given."""

    word: str
    name: str


@dataclass(slots=True)
class GivenStore:
    """The folder that holds them, made when it is first needed, with the oldest word first."""

    sizes: dict[str, int] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    made: TemporaryDirectory[str] | None = None

    def folder(self, word: str) -> Path:
        """Where the files of a word are."""
        if self.made is None:
            self.made = TemporaryDirectory(prefix="shardwise-page-", ignore_cleanup_errors=True)
        return Path(self.made.name) / word.removeprefix(GIVEN)


_STORE = GivenStore()


async def body_of(parts: AsyncIterator[bytes], told: str) -> bytes:
    """All bytes of a request that says beforehand how many. Raises BadRequest."""
    if told.isdigit() and (len(told) > 18 or int(told) > LARGEST):
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS):
            async for part in parts:
                body += part
                if len(body) > LARGEST:
                    raise _too_large()
    except TimeoutError:
        raise BadRequest(
            f"the file did not come within {SECONDS:g} s; name it by its path on the machine of "
            "this page"
        ) from None
    return bytes(body)


def _too_large() -> BadRequest:
    return BadRequest(
        f"what is given has over {LARGEST >> 20} MiB; give less, or name it by its path on the "
        "machine of this page"
    )


def keep(body: bytes) -> GivenWord:
    """Keep the files of a body. Raises BadRequest for what is no such body."""
    heading, rest = _parted(body)
    word = f"{GIVEN}{hashlib.sha256(body).hexdigest()[:16]}"
    with _STORE.lock:
        if word not in _STORE.sizes:
            _drop_oldest(ALL_KEPT - len(body))
            _write(_STORE.folder(word), heading, rest)
            _STORE.sizes[word] = len(body)
    return GivenWord(word=word, name=heading.name)


def _parted(body: bytes) -> tuple[GivenFiles, bytes]:
    line, newline, rest = body[:HEADING].partition(b"\n")
    remedy = "choose the files in the page"
    if not newline:
        raise BadRequest(f"what is given begins with no line of its files; {remedy}")
    try:
        said = parse_json(line.decode("utf-8", "replace"), "the line of files", remedy=remedy)
        heading = record_of(GivenFiles, said)
    except ValueError:
        raise BadRequest(f"what is given begins with no line of its files; {remedy}") from None
    names = [heading.name, *(name for name, _ in heading.files)]
    for name in names:
        if not _NAME.fullmatch(name):
            rule = "a name has letters, digits and . _ + - alone"
            raise BadRequest(f"the file {name[:100]!r} cannot be given; {rule}; rename it")
    if not 0 < len(heading.files) <= MOST_FILES or len(set(names[1:])) < len(names[1:]):
        rule = f"a folder has 1 to {MOST_FILES} files, each name once"
        raise BadRequest(f"'{heading.name}' cannot be given; {rule}; give those that are needed")
    rest = body[len(line) + 1 :]
    if sum(size for _, size in heading.files) != len(rest) or min(s for _, s in heading.files) < 0:
        raise BadRequest(f"'{heading.name}' did not come whole; give it again")
    return heading, rest


def _drop_oldest(room: int) -> None:
    while _STORE.sizes and sum(_STORE.sizes.values()) > room:
        oldest = next(iter(_STORE.sizes))
        del _STORE.sizes[oldest]
        shutil.rmtree(_STORE.folder(oldest), ignore_errors=True)


def _write(folder: Path, heading: GivenFiles, rest: bytes) -> None:
    """A file below the digest, or a folder of files there."""
    alone = [name for name, _ in heading.files] == [heading.name]
    place = folder if alone else folder / heading.name
    place.mkdir(parents=True, exist_ok=True)
    at = 0
    for name, size in heading.files:
        write_bytes(place / name, rest[at : at + size])
        at += size


def path_of(control: str, word: str) -> str:
    """The path that a control's word names: that of what was given, or the word itself. Raises
    BadRequest for what is not there any more."""
    if not word.startswith(GIVEN):
        return word
    with _STORE.lock:
        folder = _STORE.folder(word) if word in _STORE.sizes else None
        if folder is not None and folder.is_dir():
            return str(next(folder.iterdir()))
        _STORE.sizes.pop(word, None)  # of a folder that was removed: it may be given again
    rule = "this page was not given it, or does not keep it any more"
    what = word if _DIGEST.fullmatch(word) else f"{word[:40]}..."
    raise BadRequest(f"control '{control}' is {what}; {rule}; choose the file again")


def as_named(text: str) -> str:
    """A text with files that were given by their own names, as they lie at who gave them."""
    if _STORE.made is None:
        return text
    return re.sub(rf"{re.escape(_STORE.made.name)}/[0-9a-f]{{16}}/", "", text)
