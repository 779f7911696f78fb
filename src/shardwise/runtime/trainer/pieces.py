"""The pieces of a checkpoint: named by array and place, each with a checksum, and proved to cover.

A file of a process is safetensors; a tensor "ARRAY@START,START,..." is the block of an array that
begins there. The file's metadata holds the step, a digest of the run, and each piece's CRC-32 over
its name, shape, dtype and bytes, so that neither a piece under another's name nor a file of another
step or run passes. The manifest holds the CRC-32 of that header. Before an array is made, `proved`
reads every file once and shows that the pieces of each array are the cells of a grid over it.

Format 1 had one checksum of each whole file and none of its pieces: the same is proved of it, but
for two pieces of equal shape whose names and whose file's checksum were exchanged together.
"""

import hashlib
import json
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shardwise.errors import BadRequest, shown
from shardwise.runtime.tensor_file import Entry, Planned, read_header, read_metadata
from shardwise.runtime.trainer.manifest import Manifest, SavedFile

Shards = dict[str, np.ndarray]
"""Pieces of arrays by "path@start,start,..."."""
Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a piece begins, and its lengths."""
_NUMBER = r"(?:0|[1-9][0-9]{0,17})"
_NAME = re.compile(rf"(.+)@((?:{_NUMBER}(?:,{_NUMBER})*)?)", re.DOTALL)
_CHUNK = 1 << 24
_MOST_HEADER = 1 << 30


@dataclass(frozen=True, slots=True)
class SavedPiece:
    """A block of an array: where it begins, and where its bytes lie."""

    starts: tuple[int, ...]
    entry: Entry

    @property
    def box(self) -> Box:
        """A scalar lies in the file as an array of one."""
        return self.starts, self.entry.shape if self.starts else self.entry.shape[1:]


Saved = dict[str, list[SavedPiece]]
"""The pieces of each array, which cover it."""


def name_of(path: tuple[Any, ...]) -> str:
    """The name of a leaf of the state."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def held(state: Any) -> Shards:
    """The shards of this process, one of each set of equal ones, as copies on the host."""
    found: Shards = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        for shard in leaf.addressable_shards:
            if shard.replica_id == 0:
                starts = [
                    part.indices(n)[0] for part, n in zip(shard.index, leaf.shape, strict=True)
                ]
                # A copy: on a CPU the array would be the device's own buffer, soon donated.
                # The file format's writer knows no scalars: one of them is an array of one.
                value = np.array(shard.data).reshape(shard.data.shape or 1)
                found[f"{name_of(path)}@{','.join(map(str, starts))}"] = value
    return found


def planned(shards: Shards) -> list[Planned]:
    """What the file of a process holds."""
    return [(name, value.shape, value.dtype) for name, value in shards.items()]


def metadata(step: int, identity: Mapping[str, Any], shards: Shards) -> dict[str, str]:
    """What the file says beside its pieces: of which step and run they are, and their checksums."""
    sums = {
        name: str(_checksum(name, value.dtype, value.shape, [_bytes(value)]))
        for name, value in shards.items()
    }
    return {"step": str(step), "run": _digest(identity), **sums}


def header_crc(file: Path) -> int:
    """The CRC-32 of a file's header, its length included; 0 where it has none."""
    with file.open("rb") as opened:
        start = opened.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        return zlib.crc32(opened.read(min(length, _MOST_HEADER)), zlib.crc32(start))


def proved(folder: Path, manifest: Manifest) -> Saved:
    """Every array's pieces, after each file was read and each array found to be covered once.

    Raises BadRequest for a file or a piece that is missing, damaged, another's, doubled or of
    another shape or dtype than the manifest says.
    """
    found: Saved = defaultdict(list)
    for about in manifest.files:
        for name, entry in _entries(folder, manifest, about).items():
            array, starts = _parsed(folder, name)
            if array not in manifest.tree:
                raise _refused(folder, f"'{about.name}' holds {shown(name)}, of no array")
            found[array].append(SavedPiece(starts, entry))
    for array, whole in manifest.tree.items():
        wrong = next((p for p in found[array] if p.entry.dtype.name != whole.dtype), None)
        if wrong is not None:
            raise _refused(
                folder,
                f"a piece of {shown(array)} is {wrong.entry.dtype.name}, its array {whole.dtype}",
            )
        why = flaw(tuple(whole.shape), [p.box for p in found[array]])
        if why is not None:
            raise _refused(folder, f"the pieces of {shown(array)} {whole.shape} {why}")
    return dict(found)


def flaw(shape: tuple[int, ...], boxes: Iterable[Box]) -> str | None:
    """What keeps boxes from covering an array, each element once; None where nothing does.

    The pieces that a sharding leaves are the cells of a grid: dims are cut by themselves.

    >>> flaw((4, 2), [((0, 0), (2, 2)), ((2, 0), (2, 2))])
    >>> flaw((4, 2), [((0, 0), (2, 2)), ((3, 0), (1, 2))])
    'do not cover it: the one at [0, 0] is [2, 2], its place [3, 2]'
    """
    if not prod(shape):
        return None
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for at, size in boxes:
        if len(at) != len(shape) or len(size) != len(shape):
            return "have another number of dims"
        if at in found:
            return f"hold the one at {list(at)} twice"
        found[at] = size
    edges = [sorted({0, *(at[d] for at in found)}) for d in range(len(shape))]
    after = [dict(zip(e, [*e[1:], n], strict=True)) for e, n in zip(edges, shape, strict=True)]
    for at, size in found.items():
        wanted = [after[d][a] - a for d, a in enumerate(at)]
        if list(size) != wanted:
            return f"do not cover it: the one at {list(at)} is {list(size)}, its place {wanted}"
    # At most one more than there are pieces are looked at.
    lost = next((cell for cell in product(*edges) if cell not in found), None)
    return None if lost is None else f"lack the one at {list(lost)}"


def _entries(folder: Path, manifest: Manifest, about: SavedFile) -> dict[str, Entry]:
    file = folder / about.name
    if (
        not file.is_file()
        or file.stat().st_size != about.bytes
        or _crc(file, manifest) != about.crc32
    ):
        raise BadRequest(f"'{file}' is missing or damaged; remove '{folder}' and resume again")
    entries = read_header(file)
    if manifest.format == 1:
        return entries
    said = read_metadata(file)
    for key, wanted in (("step", str(manifest.step)), ("run", _digest(manifest.identity))):
        if said.get(key) != wanted:
            raise _refused(folder, f"'{about.name}' is of another {key}")
    with file.open("rb") as opened:
        for name, entry in entries.items():
            data = _read(opened, entry)
            if said.get(name) != str(_checksum(name, entry.dtype, entry.shape, data)):
                raise _refused(
                    folder, f"{shown(name)} in '{about.name}' is not what was written there"
                )
    return entries


def _crc(file: Path, manifest: Manifest) -> int:
    if manifest.format > 1:
        return header_crc(file)
    value = 0
    with file.open("rb") as opened:
        while data := opened.read(_CHUNK):
            value = zlib.crc32(data, value)
    return value


def _checksum(name: str, dtype: Any, shape: tuple[int, ...], data: Iterable[Any]) -> int:
    value = zlib.crc32(f"{name} {np.dtype(dtype).name} {list(shape)}".encode())
    for part in data:
        value = zlib.crc32(part, value)
    return value


def _bytes(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _read(opened: Any, entry: Entry) -> Iterable[bytes]:
    """The bytes of a piece, a part at a time."""
    opened.seek(entry.offset)
    left = prod(entry.shape) * entry.dtype.itemsize
    while left and (data := opened.read(min(left, _CHUNK))):
        yield data
        left -= len(data)


def _digest(identity: Mapping[str, Any]) -> str:
    text = json.dumps(dict(identity), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parsed(folder: Path, name: str) -> tuple[str, tuple[int, ...]]:
    found = _NAME.fullmatch(name)
    if found is None:
        raise _refused(folder, f"{shown(name)} is not a name of a piece (ARRAY@START,START,...)")
    return found[1], tuple(map(int, found[2].split(","))) if found[2] else ()


def _refused(folder: Path, what: str) -> BadRequest:
    return BadRequest(f"'{folder}' is not whole: {what}; remove it and resume again")
