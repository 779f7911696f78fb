"""Checkpoints that were tampered with: pieces changed, and the manifest's sums made to agree."""

import json
import struct
import zlib
from dataclasses import dataclass, field

META = "__metadata__"


@dataclass
class Piece:
    """A tensor of a file: its dtype's code, shape and bytes."""

    dtype: str
    shape: list
    data: bytes


@dataclass
class Shard:
    """A file of a checkpoint: pieces by name, and what it says beside them."""

    pieces: dict = field(default_factory=dict)
    meta: dict = field(default_factory=dict)


def read_shard(file):
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    meta = header.pop(META, {})
    pieces = {
        name: Piece(x["dtype"], x["shape"], body[slice(*x["data_offsets"])])
        for name, x in header.items()
    }
    return Shard(pieces, meta)


def write_shard(file, shard):
    header, body = {META: shard.meta}, b""
    for name, piece in shard.pieces.items():
        end = len(body) + len(piece.data)
        header[name] = {
            "dtype": piece.dtype,
            "shape": piece.shape,
            "data_offsets": [len(body), end],
        }
        body += piece.data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


def forge(folder, change):
    """Let `change(shards, manifest)` change a checkpoint in place; sizes and sums then agree."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    shards = [read_shard(folder / f["name"]) for f in manifest["files"]]
    change(shards, manifest)
    for shard, about in zip(shards, manifest["files"], strict=False):
        path = folder / about["name"]
        write_shard(path, shard)
        data = path.read_bytes()
        size = 8 + struct.unpack("<Q", data[:8])[0]
        summed = data if manifest["format"] == 1 else data[:size]
        about["bytes"], about["crc32"] = len(data), zlib.crc32(summed)
    file.write_text(json.dumps(manifest))


def older(folder):
    """Make it what the first format was: no sums of pieces."""

    def change(shards, manifest):
        manifest["format"] = 1
        for shard in shards:
            shard.meta = {"format": "pt"}

    forge(folder, change)
