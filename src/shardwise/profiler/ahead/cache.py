"""Compiled programs on disk, by content: what was lowered, for what, with which compiler.

`ROOT/entries/KEY` is a folder with `record.json` and `hlo.txt.gz`; `ROOT/requests/KEY` names the
entry that a request led to, where the request alone says what will be lowered. Entries that were
not used for longest go first when the cache is larger than its limit.
"""

import gzip
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import shardwise

FORMAT = 2
"""Goes up when what an entry holds changes."""
LIMIT_BYTES = 2 * 2**30
PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda12-pjrt")


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


@lru_cache(maxsize=1)
def source_hash() -> str:
    """A hash of this package's own source: what a plan's program is made by."""
    digest = hashlib.sha256()
    root = Path(shardwise.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A folder of compiled programs of at most `limit` bytes."""

    root: Path
    limit: int = LIMIT_BYTES

    def entry(self, key: str) -> Path:
        """Where a key's files are, or would be."""
        return self.root / "entries" / key

    def has(self, key: str) -> bool:
        """Whether a key is there; an entry appears whole or not at all."""
        return (self.entry(key) / "record.json").is_file()

    def load(self, key: str) -> tuple[dict[str, Any], str] | None:
        """The record and the HLO text of a key, or None; a damaged entry is removed."""
        folder = self.entry(key)
        try:
            found = read_entry(folder)
            os.utime(folder)
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError):
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return found

    def store(self, key: str, record: Mapping[str, Any], hlo: str) -> None:
        """Keep a program, then make room. A folder that cannot be written keeps nothing."""
        try:
            (self.root / "entries").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".new-", dir=self.root / "entries") as made:
                inside = Path(made) / "entry"
                inside.mkdir()
                write_entry(inside, record, hlo)
                inside.rename(self.entry(key))
        except OSError:
            return  # somebody else stored it first, or the disk is full or read-only
        self.prune(keep=key)

    def follow(self, request: str) -> str | None:
        """The entry that a request led to before."""
        path = self.root / "requests" / request
        return path.read_text().strip() if path.is_file() else None

    def remember(self, request: str, key: str) -> None:
        """Note which entry a request leads to."""
        try:
            (self.root / "requests").mkdir(parents=True, exist_ok=True)
            (self.root / "requests" / request).write_text(key)
        except OSError:
            return

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(_bytes(folder) for folder in self._folders())

    def prune(self, keep: str = "") -> None:
        """Remove the entries that were used longest ago until the limit holds, then the requests
        that lead nowhere."""
        folders = sorted(self._folders(), key=lambda f: f.stat().st_mtime, reverse=True)
        total = 0
        for folder in folders:
            total += _bytes(folder)
            if total > self.limit and folder.name != keep:
                shutil.rmtree(folder, ignore_errors=True)
        for path in (self.root / "requests").glob("*"):
            if not self.has(path.read_text().strip()):
                path.unlink(missing_ok=True)

    def _folders(self) -> list[Path]:
        return [f for f in (self.root / "entries").glob("*") if not f.name.startswith(".new-")]


def write_entry(folder: Path, record: Mapping[str, Any], hlo: str) -> None:
    """The two files of an entry."""
    with gzip.open(folder / "hlo.txt.gz", "wt", compresslevel=6, encoding="utf-8") as file:
        file.write(hlo)
    (folder / "record.json").write_text(json.dumps(record, indent=1), encoding="utf-8")


def read_entry(folder: Path) -> tuple[dict[str, Any], str]:
    """What `write_entry` wrote."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    with gzip.open(folder / "hlo.txt.gz", "rt", encoding="utf-8") as file:
        return record, file.read()


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*"))
