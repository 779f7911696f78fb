"""The safetensors format: read slices of tensors without their files, write tensors one by one.

Eight bytes of header length, a JSON header {name: {dtype, shape, data_offsets}}, the data
(huggingface/safetensors, README "Format"). Our own reader, since `safe_open` has no bfloat16 for
NumPy and `save_file` wants every tensor at once.
"""

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from shardwise.errors import BadRequest

DTYPES: Mapping[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
CODES: Mapping[str, str] = {np.dtype(dtype).name: code for code, dtype in DTYPES.items()}
LONGEST_HEADER = 100_000_000
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


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of one file. Raises BadRequest for a file that is cut off or no safetensors."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if not 2 <= length <= min(LONGEST_HEADER, size - 8):
                raise ValueError(f"its header claims {length} bytes")
            header = json.loads(file.read(length))
        found = {}
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                shape, dtype = tuple(entry["shape"]), np.dtype(DTYPES[entry["dtype"]])
                if end - begin != prod(shape) * dtype.itemsize:
                    raise ValueError(f"'{name}' has {end - begin} bytes for shape {list(shape)}")
                if 8 + length + end > size:
                    raise ValueError(f"'{name}' ends beyond the file: it is cut off")
                found[name] = Entry(path, 8 + length + begin, shape, dtype)
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRequest(
            f"{path}: not a whole safetensors file ({error}); fetch it again"
        ) from None
    return found


def read_folder(path: Path) -> dict[str, Entry]:
    """The tensors of a checkpoint: one file, or a folder with one or with an index of several."""
    if path.is_file():
        return read_header(path)
    if (path / INDEX).is_file():
        try:
            index = json.loads((path / INDEX).read_text(encoding="utf-8"))["weight_map"]
            files = sorted(set(index.values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRequest(f"{path / INDEX}: no weight_map can be read ({error!r})") from None
        missing = [name for name in files if not (path / name).is_file()]
        if missing:
            raise BadRequest(f"{path}: {INDEX} names '{missing[0]}', which is not there; fetch it")
        held = {name: read_header(path / name) for name in files}
        wrong = next((t for t, name in index.items() if t not in held[name]), None)
        if wrong is not None:
            raise BadRequest(f"{path}: {INDEX} says '{wrong}' is in {index[wrong]}; it is not")
        return {tensor: held[name][tensor] for tensor, name in index.items()}
    if (path / SINGLE).is_file():
        return read_header(path / SINGLE)
    raise BadRequest(f"{path}: holds neither {SINGLE} nor {INDEX}; give a checkpoint's folder")


Planned = tuple[str, tuple[int, ...], Any]
"""Name, shape and dtype of a tensor to be written."""


def write_file(path: Path, planned: Iterable[Planned], tensor: Callable[[str], np.ndarray]) -> None:
    """Write one file, calling `tensor(name)` for one at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
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
