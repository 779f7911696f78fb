"""Checkpoints of the trainer: a manifest, or the header of pieces with sums that agree."""

import json
import tempfile
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random

from fuzz.cases import Case
from fuzz.mutate import Harm

NAMES = tuple(f"shards-{i:05}-of-00002.safetensors" for i in range(2))


@cache
def whole() -> Mapping[str, bytes]:
    """A checkpoint of two processes. What reads it is imported here, so that forks find it."""
    import numpy as np

    from shardwise.runtime.tensor_file import write_file
    from shardwise.runtime.trainer import pieces

    identity = {"model": "a", "lr": 0.1, "init": None}
    halves = [np.arange(8, dtype=np.float32).reshape(2, 4) + 8 * i for i in range(2)]
    shards = [{"params/w@0,0": halves[0], "count@": np.ones(1, np.int32)}]
    shards.append({"params/w@2,0": halves[1]})
    files, about = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for name, held in zip(NAMES, shards, strict=True):
            path = Path(folder) / name
            more = pieces.metadata(3, identity, held)
            write_file(path, pieces.planned(held), held.__getitem__, more)
            files[name] = path.read_bytes()
            size = len(files[name])
            about.append({"name": name, "bytes": size, "crc32": pieces.header_crc(path)})
    tree = {
        "params/w": {"shape": [4, 4], "dtype": "float32"},
        "count": {"shape": [], "dtype": "int32"},
    }
    manifest = {"format": 2, "step": 3, "identity": identity, "tree": tree, "files": about}
    return {**files, "manifest.json": json.dumps(manifest).encode()}


def _manifest(random: Random, harm: Harm) -> Case:
    files = dict(whole())
    if random.random() < 0.6:
        files["manifest.json"] = harm.document(files["manifest.json"])
        return Case(files=files, run=_read)
    name = random.choice(NAMES)
    data = files[name]
    size = int.from_bytes(data[:8], "little")
    header = harm.document(data[8 : 8 + size].rstrip())
    start = len(header).to_bytes(8, "little") + header
    files[name] = start + data[8 + size :]
    manifest = json.loads(files["manifest.json"])
    about = next(f for f in manifest["files"] if f["name"] == name)
    about |= {"bytes": len(files[name]), "crc32": zlib.crc32(start)}
    files["manifest.json"] = json.dumps(manifest).encode()
    return Case(files=files, run=_read)


def _read(folder: Path) -> None:
    from shardwise.runtime.trainer.manifest import damage, read_manifest
    from shardwise.runtime.trainer.pieces import proved

    damage(folder)
    proved(folder, read_manifest(folder))


KINDS: Mapping[str, Callable[[Random, Harm], Case]] = {"manifest": _manifest}
