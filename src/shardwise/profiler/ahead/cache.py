"""Compiled programs on disk, by content: what was lowered, for what, with which compiler.

`ROOT/entries/KEY` is a folder with `record.json`, `hlo.txt.gz` and their checksums in `sha256`;
`ROOT/requests/KEY` names the entry that a request led to, where the request alone says what will be
lowered. Entries that were not used for longest go first when the cache is larger than its limit.

Several processes use one cache without a lock: whatever appears or goes does so in one rename, and
what vanishes under a reader's hands is a miss. So is any damage: what is not whole, or not what it
should be, is removed, and the next `store` puts it right. Nothing here raises for the disk's sake.
"""

import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from shardwise.boundary import unpacked
from shardwise.errors import BadRequest

FORMAT = 3
"""Goes up when what an entry holds changes."""
LIMIT_BYTES = 2 * 2**30
MOST_RECORD, MOST_TEXT = 2**26, 2**29
"""Bytes of an entry's record and, unpacked, of its text; more is damage."""
STALE_SECONDS = 3600.0
"""Age from which what a killed process left half made, or half removed, is swept."""
PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda12-pjrt")

_DAMAGE = (OSError, ValueError, RecursionError, BadRequest)
_KEY = re.compile(r"[\w-]{1,64}", re.ASCII)


def default_root() -> Path:
    """$XDG_CACHE_HOME/shardwise/compiled, else below ~/.cache (XDG base directories, 0.8)."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "shardwise" / "compiled"


def versions() -> dict[str, str]:
    """Versions of the packages that decide what a compile gives; those installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def key_of(*parts: Any) -> str:
    """A hash of texts and plain values, of this format and of the compilers' versions."""
    text = json.dumps([FORMAT, versions(), *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileCache:
    """A folder of compiled programs of at most `limit` bytes."""

    root: Path
    limit: int = LIMIT_BYTES

    def entry(self, key: str) -> Path:
        """Where a key's files are, or would be."""
        return self.root / "entries" / key

    def has(self, key: str) -> bool:
        """Whether a key is there; an entry appears whole or not at all."""
        return os.path.isfile(self.entry(key) / "record.json")

    def load(self, key: str) -> tuple[dict[str, Any], str] | None:
        """The record and the HLO text of a key, or None; a damaged entry is removed."""
        folder = self.entry(key)
        if not _KEY.fullmatch(key) or not os.path.lexists(folder):
            return None
        try:
            found = _read_checked(folder, key)
        except _DAMAGE:
            _remove(folder)
            return None
        with suppress(OSError):  # another's, or on a read-only disk
            os.utime(folder)
        return found

    def drop(self, key: str) -> None:
        """Remove an entry that turned out to be useless."""
        _remove(self.entry(key))

    def store(self, key: str, record: Mapping[str, Any], hlo: str) -> None:
        """Keep a program, then make room. A folder that cannot be written keeps nothing."""
        try:
            made = self._folder("entries") / _aside("new")
            made.mkdir()
            try:
                write_entry(made, record, hlo)
                (made / "sha256").write_text(_sums(_files(made), key), encoding="ascii")
                _remove(self.entry(key))
                os.rename(made, self.entry(key))
            finally:
                _delete(made)  # where it was not renamed
        except OSError:
            return  # somebody else stored it first, or the disk is full or read-only
        self.prune(keep=key)

    def follow(self, request: str) -> str | None:
        """The entry that a request led to before; one that names none is removed."""
        path = self.root / "requests" / request
        if not os.path.lexists(path):
            return None
        with suppress(OSError, ValueError):
            line = _bytes_of(path, 256).decode("ascii")
            key = line.partition(" ")[0]
            if _KEY.fullmatch(key) and line == _lead(request, key):
                return key
        _remove(path)
        return None

    def remember(self, request: str, key: str) -> None:
        """Note which entry a request leads to."""
        with suppress(OSError):
            path = self._folder("requests") / request
            if os.path.lexists(path) and not _is_file(path):
                _remove(path)
            begun = path.with_name(_aside("new"))
            begun.write_text(_lead(request, key), encoding="ascii")
            os.replace(begun, path)

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(size for _, size, _ in self._used())

    def prune(self, keep: str = "") -> None:
        """Remove the entries that were used longest ago until the limit holds, then the requests
        that lead nowhere, and what a killed process left half made."""
        total = 0
        for _, size, path in self._used():
            total += size
            if total > self.limit and path.name != keep:
                _remove(path)
        for path in _inside(self.root / "requests"):
            if not path.name.startswith("."):
                key = self.follow(path.name)
                if key is None or not self.has(key):
                    _remove(path)
        for folder in ("entries", "requests"):
            for path in _inside(self.root / folder):
                if path.name.startswith((".new-", ".old-")) and _is_stale(path):
                    _delete(path)

    def _folder(self, name: str) -> Path:
        """A folder of the cache, made if need be; what else has its name is removed."""
        path = self.root / name
        if os.path.lexists(path) and not os.path.isdir(path):
            _remove(path)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _used(self) -> list[tuple[float, int, Path]]:
        """(when it was used, bytes, path) of every entry, the last used first."""
        found = []
        for path in _inside(self.root / "entries"):
            if not path.name.startswith("."):
                with suppress(OSError):
                    found.append((path.lstat().st_mtime, _size(path), path))
        return sorted(found, reverse=True)


def write_entry(folder: Path, record: Mapping[str, Any], hlo: str) -> None:
    """The two files of an entry."""
    with gzip.open(folder / "hlo.txt.gz", "wt", compresslevel=6, encoding="utf-8") as file:
        file.write(hlo)
    (folder / "record.json").write_text(json.dumps(record, indent=1), encoding="utf-8")


def read_entry(folder: Path) -> tuple[dict[str, Any], str]:
    """What `write_entry` wrote."""
    return _decoded(_files(folder), folder)


def _read_checked(folder: Path, key: str) -> tuple[dict[str, Any], str]:
    """What `store` wrote, if its checksums still hold. Each file is read once, and nothing is
    unpacked before its checksum holds: what changes after that changes nothing here."""
    files = _files(folder)
    if _bytes_of(folder / "sha256", 1024).decode("ascii") != _sums(files, key):
        raise ValueError(f"'{folder}' is not what was stored")
    return _decoded(files, folder)


_FILES: Mapping[str, int] = {"record.json": MOST_RECORD, "hlo.txt.gz": MOST_TEXT}


def _files(folder: Path) -> dict[str, bytes]:
    """The bytes of an entry's two files."""
    return {name: _bytes_of(folder / name, most) for name, most in _FILES.items()}


def _decoded(files: Mapping[str, bytes], folder: Path) -> tuple[dict[str, Any], str]:
    record = json.loads(files["record.json"])
    if not isinstance(record, dict):
        raise ValueError(f"'{folder}/record.json' is not a mapping")
    packed, path = files["hlo.txt.gz"], folder / "hlo.txt.gz"
    return record, unpacked(packed, path, "the text of an entry", most=MOST_TEXT).decode("utf-8")


def _sums(files: Mapping[str, bytes], key: str) -> str:
    """The checksums of an entry's files as `sha256sum` writes them, below the key."""
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()]
    return "".join([f"# {key}\n", *lines])


def _lead(request: str, key: str) -> str:
    """The line that says where a request leads, with a checksum of both."""
    return f"{key} {hashlib.sha256(f'{request} {key}'.encode()).hexdigest()[:16]}\n"


def _bytes_of(path: Path, most: int) -> bytes:
    """A regular file's bytes, at most so many; a pipe or a link is not opened for long."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            raise ValueError(f"'{path}' is not a file of at most {most} bytes")
        return file.read(most)


def _is_file(path: Path) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


def _inside(folder: Path) -> list[Path]:
    """What is in a folder now, nothing if it is none."""
    try:
        return [folder / name for name in os.listdir(folder)]
    except OSError:
        return []


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder, that are still there."""
    below = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in below if os.path.isdir(path) else [path]:
        with suppress(OSError):
            total += file.lstat().st_size
    return total


def _is_stale(path: Path) -> bool:
    with suppress(OSError):
        return time.time() - path.lstat().st_mtime > STALE_SECONDS
    return False


def _aside(kind: str) -> str:
    """A name that nobody else has, for what is begun ("new") or going ("old")."""
    return f".{kind}-{uuid.uuid4().hex}"


def _remove(path: Path) -> None:
    """Take a file or a folder away, whole and at once; what cannot be taken away stays."""
    aside = path.with_name(_aside("old"))
    with suppress(OSError):
        os.rename(path, aside)
        _delete(aside)


def _delete(path: Path) -> None:
    """Delete a file, or a folder and all that is in it, even where it is write-protected."""

    def insist(call: Callable[[str], object], name: str, _: object) -> None:
        with suppress(OSError):
            os.chmod(os.path.dirname(name), 0o700)
            call(name)

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, onerror=insist)
    else:
        with suppress(OSError):
            path.unlink()
