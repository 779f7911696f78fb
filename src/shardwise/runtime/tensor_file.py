"""The safetensors format: read slices of tensors without their files, write tensors one by one.

Eight bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}, the data
(huggingface/safetensors, README "Format"). The library checks a file; the tensors are read by our
own maps, since `safe_open` has no bfloat16 for NumPy, and `save_file` wants every tensor at once.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path, PureWindowsPath
from typing import Any

import ml_dtypes
import numpy as np

from shardwise.boundary import read_json
from shardwise.errors import BadRequest, MissingPart, shown

DTYPES: Mapping[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
CODES: Mapping[str, str] = {np.dtype(dtype).name: code for code, dtype in DTYPES.items()}
LONGEST_HEADER = 25_000_000
"""Bytes; 200,000 tensors. The library's own limit of 100 MB takes over 1 GB to parse."""
INDEX_BYTES = 64 * 2**20
"""DeepSeek-V3's, of 91,000 tensors, has 9 MB."""
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies."""

    file: Path
    offset: int
    shape: tuple[int, ...]
    dtype: Any

    def open(self) -> np.ndarray:
        """The tensor as a memory map: only the pages that a slice touches are read."""
        if prod(self.shape) == 0:
            return np.zeros(self.shape, self.dtype)
        return np.memmap(self.file, self.dtype, "r", self.offset, self.shape)


METADATA = "__metadata__"
"""The key of the header whose value is the file's own: texts by name."""


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of one file. Raises BadRequest for a file that is cut off or no safetensors, by
    the checks of its own library: each tensor has the bytes of its shape, and they cover the data
    without a hole or an overlap."""
    header, data = _header(path)
    return {
        name: _entry(path, name, about, data) for name, about in header.items() if name != METADATA
    }


def read_metadata(path: Path) -> dict[str, str]:
    """What a file says beside its tensors. Raises BadRequest as `read_header` does."""
    return dict(_header(path)[0].get(METADATA) or {})


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The checked header of a file, and the byte at which its data begins."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if LONGEST_HEADER < length <= path.stat().st_size:
                raise ValueError(
                    f"its header claims {length:,} bytes; the limit is {LONGEST_HEADER:,}"
                )
            _check(path)
            header = json.loads(file.read(length), object_pairs_hook=_once)
    except (OSError, ValueError) as error:
        raise BadRequest(
            f"{path}: not a complete safetensors file ({_quoted(error)}); fetch it again"
        ) from None
    return header, 8 + length


def _check(path: Path) -> None:
    """Raise ValueError for what the library refuses."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingPart("reading safetensors needs `safetensors`: pip install '.[run]'") from None
    try:
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        said = str(error).removeprefix("Error while deserializing header: ")
        if "not fully covered" in said:
            said += ": it is cut off, or has data after its tensors"
        raise ValueError(said) from None


def _quoted(error: Exception) -> str:
    """What the library says, which quotes the header as it is."""
    text = str(error)
    return text if text.isprintable() and len(text) < 300 else shown(text, 300)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are different; the library takes the last of equal ones."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the header names {shown(name)} twice")
        found[name] = value
    return found


def _entry(path: Path, name: str, about: Mapping[str, Any], data: int) -> Entry:
    """Where a tensor lies whose header was checked; the data begins at byte `data`."""
    if about["dtype"] not in DTYPES:
        raise BadRequest(
            f"{path}: tensor {shown(name)} has dtype {about['dtype']}, which is not supported; "
            f"convert it to one of {', '.join(DTYPES)}"
        )
    dtype = np.dtype(DTYPES[about["dtype"]])
    return Entry(path, data + about["data_offsets"][0], tuple(about["shape"]), dtype)


def read_folder(path: Path) -> dict[str, Entry]:
    """The tensors of a checkpoint: one file, or a folder with one or with an index of several."""
    if path.is_file():
        return read_header(path)
    if (path / INDEX).is_file():
        index = _index(path / INDEX)
        held = {name: read_header(path / name) for name in sorted(set(index.values()))}
        wrong = next((t for t, name in index.items() if t not in held[name]), None)
        if wrong is not None:
            raise BadRequest(
                f"{path}: {INDEX} says {shown(wrong)} is in {shown(index[wrong])}; it is not"
            )
        return {tensor: held[name][tensor] for tensor, name in index.items()}
    if (path / SINGLE).is_file():
        return read_header(path / SINGLE)
    raise BadRequest(f"{path}: holds neither {SINGLE} nor {INDEX}; give a checkpoint's folder")


def _index(path: Path) -> dict[str, str]:
    remedy = "fetch the checkpoint again"
    read = read_json(path, "the index of weights", most=INDEX_BYTES, remedy=remedy)
    found = read.get("weight_map") if isinstance(read, dict) else None
    if not isinstance(found, dict) or not all(isinstance(x, str) for x in found.values()):
        raise BadRequest(f"{path}: it has no readable weight_map of tensors to files; {remedy}")
    for name in sorted(set(found.values())):
        if not is_inside(name):
            raise BadRequest(
                f"{path} names {shown(name)}; it may name only files in its own folder; {remedy}"
            )
        if not _is_file(path.parent / name):
            raise BadRequest(
                f"{path.parent}: {INDEX} names {shown(name)}, which does not exist; fetch it"
            )
    return found


def is_inside(name: str) -> bool:
    """Whether the name of a file, joined to a folder, stays in it. Links are followed by whoever
    opens it: in the cache of Hugging Face every file of a model is one.

    >>> [is_inside(x) for x in ("a.bin", "sub/a.bin", "../a.bin", "/a.bin", "", "c:\\a.bin")]
    [True, True, False, False, False, False]
    """
    plain = bool(name) and "\0" not in name and not PureWindowsPath(name).anchor
    return plain and ".." not in PureWindowsPath(name).parts


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for the disk
        return False


Planned = tuple[str, tuple[int, ...], Any]
"""Name, shape and dtype of a tensor to be written."""


def write_file(
    path: Path,
    planned: Iterable[Planned],
    tensor: Callable[[str], np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write one file, calling `tensor(name)` for one at a time; `metadata` is what it says beside
    them."""
    header: dict[str, Any] = {METADATA: {"format": "pt", **(metadata or {})}}
    offset, names = 0, []
    for name, shape, dtype in planned:
        end = offset + prod(shape) * np.dtype(dtype).itemsize
        code = CODES[np.dtype(dtype).name]
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, end]}
        names.append(name)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            value = np.ascontiguousarray(tensor(name))
            entry = header[name]
            assert list(value.shape) == entry["shape"], name
            file.write(value.tobytes())
