"""Checkpoints of a run: sharded, written in the background, whole or not there at all.

A save copies the shards of this process to the host and returns; a thread writes them to a hidden
folder, forces them to the disk, and says so with a small file. When every process has said so,
process 0 adds the manifest and renames the folder: only then does `step-00000100` exist, so a kill
at any moment leaves the last good checkpoint as it was. Older ones are removed after that. Shards
carry their place, so that another mesh can read them.
"""

import errno
import json
import shutil
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shardwise.errors import BadRequest, ShardwiseError
from shardwise.runtime.tensor_file import Entry, is_inside, read_header, write_file
from shardwise.runtime.trainer.disk import force, write_text
from shardwise.units import format_bytes

MANIFEST = "manifest.json"
FORMAT = 1
_PATIENCE = 1800.0
_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Shards = dict[str, np.ndarray]
"""Pieces of arrays by "path@start,start,..."."""


@dataclass(kw_only=True)
class Keeper:
    """The checkpoints of a run in one folder, the newest `keep` of them; one save at a time.

    `identity` says what the run is; a checkpoint of another run is refused.
    """

    folder: Path
    identity: Mapping[str, Any]
    process: int = 0
    processes: int = 1
    keep: int = 2
    _thread: threading.Thread | None = field(default=None, init=False)
    _error: Exception | None = field(default=None, init=False)

    def clean(self) -> None:
        """Remove what a killed run left half written; for process 0, before anyone saves."""
        for left in self.folder.glob(".step-*"):
            shutil.rmtree(left, ignore_errors=True)

    def newest(self) -> int | None:
        """The step of the newest checkpoint that is whole, None where there is none."""
        return max((s for s in steps_in(self.folder) if whole(self.path(s))), default=None)

    def damaged(self) -> dict[int, str]:
        """The checkpoints after the newest whole one, and what is wrong with each."""
        newest = self.newest() or 0
        later = [step for step in steps_in(self.folder) if step > newest]
        return {step: damage(self.path(step)) or "" for step in later}

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.folder / f"step-{step:08}"

    def save(self, step: int, state: Any) -> None:
        """Copy the state and write it in the background; waits for the save before, and raises its
        error."""
        self.wait()
        shards = held(state)
        # A daemon: a second signal must not wait for it at the end of the interpreter.
        args = (step, shards, _tree(state))
        self._thread = threading.Thread(target=self._write, args=args, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written; raises ShardwiseError where writing failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def settle(self) -> None:
        """Until nothing is being written, whatever becomes of it; for a run that ends early."""
        if self._thread is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise the error of a save in the background, if there is one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, step: int, shards: Shards, tree: dict[str, Any]) -> None:
        begun = self.folder / f".step-{step:08}"
        try:
            begun.mkdir(parents=True, exist_ok=True)
            self._write_own(begun, shards)
            if self.process == 0:
                self._finish(begun, step, tree)
        except OSError as error:
            if self.processes == 1:
                shutil.rmtree(begun, ignore_errors=True)
            self._error = self._failed(step, error, sum(x.nbytes for x in shards.values()))
        except Exception as error:  # raised where the loop asks; a thread's own would be lost
            self._error = error

    def _write_own(self, begun: Path, shards: Shards) -> None:
        """This process's shards, on the disk, and a file that says so."""
        file = begun / f"shards-{self.process:05}-of-{self.processes:05}.safetensors"
        planned = [(name, value.shape, value.dtype) for name, value in shards.items()]
        write_file(file, planned, shards.__getitem__)
        force(file)
        said = {"name": file.name, "bytes": file.stat().st_size, "crc32": _crc(file)}
        write_text(begun / f"written-{self.process:05}.json", json.dumps(said))

    def _finish(self, begun: Path, step: int, tree: dict[str, Any]) -> None:
        """The manifest, the rename, and the end of older checkpoints."""
        files = [self._said(begun, process) for process in range(self.processes)]
        manifest = {
            "format": FORMAT,
            "step": step,
            "identity": dict(self.identity),
            "tree": tree,
            "files": files,
        }
        write_text(begun / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        for said in begun.glob("written-*.json"):
            said.unlink()
        force(begun)
        final = self.path(step)
        if final.exists():  # of a run that went further and then was rolled back
            shutil.rmtree(final)
        begun.rename(final)
        force(self.folder)
        self._prune(step)

    def _prune(self, step: int) -> None:
        """Remove all up to `step` but the newest whole ones; later ones are damaged, and replaced
        when the run comes there."""
        past = [s for s in steps_in(self.folder) if s <= step]
        kept = [s for s in past if whole(self.path(s))][-self.keep :]
        for old in past:
            if old not in kept:
                shutil.rmtree(self.path(old), ignore_errors=True)

    def _said(self, begun: Path, process: int) -> dict[str, Any]:
        """What a process said when its shards were on the disk."""
        file, until = begun / f"written-{process:05}.json", time.monotonic() + _PATIENCE
        while True:
            try:
                return json.loads(file.read_text(encoding="utf-8"))
            except (FileNotFoundError, ValueError):
                if time.monotonic() > until:
                    raise ShardwiseError(
                        f"process {process} has not written its shards to '{begun}' within "
                        f"{_PATIENCE:.0f} s; --out must be a folder that all processes share"
                    ) from None
                time.sleep(0.05)

    def _failed(self, step: int, error: OSError, size: int) -> ShardwiseError:
        last = self.newest()
        good = f"the last good one is step {last}" if last is not None else "there is none before"
        if error.errno in _ROOM:
            free = shutil.disk_usage(self.folder if self.folder.exists() else "/").free
            what = (
                f"no room for the checkpoint of step {step} in '{self.folder}': it takes "
                f"{format_bytes(size)}, {format_bytes(free)} are free ({error.strerror})"
            )
            remedy = "free space"
        else:
            what = f"cannot write the checkpoint of step {step} in '{self.folder}': {error}"
            remedy = "make the folder writable"
        return ShardwiseError(f"{what}; {good}: {remedy} and start again with --resume")


def restore(folder: Path, shapes: Any, identity: Mapping[str, Any]) -> tuple[int, Any]:
    """The step and the state of a checkpoint, laid out as `shapes` says.

    Raises BadRequest where it belongs to another run or was damaged.
    """
    check_identity(folder, identity)
    manifest = _manifest(folder)
    entries = _entries(folder, manifest)

    def one(path: tuple[Any, ...], leaf: Any) -> jax.Array:
        name = _name(path)
        found = manifest["tree"].get(name, {})
        wanted = {"shape": list(leaf.shape), "dtype": np.dtype(leaf.dtype).name}
        # Lengths may differ by padding, which depends on the mesh; it is zero.
        alike = found and len(found["shape"]) == leaf.ndim and found["dtype"] == wanted["dtype"]
        if not alike:
            raise BadRequest(
                f"'{folder}' holds {name} as {found or 'nothing'}, this run has {wanted}; resume "
                "with the stages and the optimizer that wrote it"
            )
        return _placed(entries[name], leaf)

    return manifest["step"], jax.tree_util.tree_map_with_path(one, shapes)


def read_params(folder: Path, shapes: Any) -> Any:
    """The parameters of a checkpoint alone, whole on the first device, whatever run it is of."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)
    _, state = restore(folder, {"params": placed}, _manifest(folder)["identity"])
    return state["params"]


def check_identity(folder: Path, wanted: Mapping[str, Any], but: tuple[str, ...] = ()) -> None:
    """Raise BadRequest, naming the first difference, unless a checkpoint is of the run `wanted`;
    `but` names what is not known of it yet."""
    found = _manifest(folder)["identity"]
    for key in {**wanted, **found}:
        if found.get(key) != wanted.get(key) and key not in but:
            was, now = ("nothing" if x is None else x for x in (found.get(key), wanted.get(key)))
            raise BadRequest(
                f"the checkpoint '{folder}' was made with {key} {was}, this run has {now}; give "
                "what it was made with, or start anew from weights: --init FOLDER --out ANOTHER"
            )


def steps_in(folder: Path) -> list[int]:
    """The steps that have a folder."""
    names = [p.name.removeprefix("step-") for p in folder.glob("step-*")]
    return sorted(int(name) for name in names if name.isdigit())


def whole(folder: Path) -> bool:
    """Whether a checkpoint has its manifest and every file in full length."""
    return damage(folder) is None


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, as far as it shows without reading its files."""
    try:
        manifest = _manifest(folder)
    except BadRequest:
        return f"its {MANIFEST} cannot be read"
    if folder.name != f"step-{manifest['step']:08}":
        return f"its {MANIFEST} is that of step {manifest['step']}"
    for about in manifest["files"]:
        try:
            size = (folder / about["name"]).stat().st_size
        except OSError as error:
            return f"'{about['name']}': {error.strerror}"
        if size != about["bytes"]:
            return f"'{about['name']}' has {size:,} of {about['bytes']:,} bytes"
    return None


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
                found[f"{_name(path)}@{','.join(map(str, starts))}"] = value
    return found


def _tree(state: Any) -> dict[str, Any]:
    return {
        _name(path): {"shape": list(leaf.shape), "dtype": np.dtype(leaf.dtype).name}
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        read = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if read["format"] == FORMAT and _is_sound(read):
            return read
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise BadRequest(f"'{folder}' is no checkpoint of this trainer: its {MANIFEST} cannot be read")


def _is_sound(read: Mapping[str, Any]) -> bool:
    """Whether a manifest has what is read of it; its files lie beside it."""
    files, kinds = read["files"], {"step": int, "identity": dict, "tree": dict, "files": list}
    return all(type(read[key]) is kind for key, kind in kinds.items()) and all(
        is_inside(f["name"]) and type(f["bytes"]) is int and type(f["crc32"]) is int for f in files
    )


def _entries(folder: Path, manifest: Mapping[str, Any]) -> dict[str, list[tuple[list[int], Entry]]]:
    """Every array's pieces, each with where it starts, after the files were checked."""
    found: dict[str, list[tuple[list[int], Entry]]] = defaultdict(list)
    for about in manifest["files"]:
        file = folder / about["name"]
        if not file.is_file() or _crc(file) != about["crc32"]:
            raise BadRequest(f"'{file}' is missing or damaged; remove '{folder}' and resume again")
        for name, entry in read_header(file).items():
            path, _, starts = name.rpartition("@")
            found[path].append(([int(s) for s in starts.split(",") if s], entry))
    return found


def _placed(pieces: list[tuple[list[int], Entry]], leaf: Any) -> jax.Array:
    """One array from its pieces, a device's block at a time."""
    blocks = []
    made: dict[Any, np.ndarray] = {}
    for device, index in leaf.sharding.addressable_devices_indices_map(leaf.shape).items():
        spans = tuple(p.indices(n)[:2] for p, n in zip(index, leaf.shape, strict=True))
        if spans not in made:
            made[spans] = _block(pieces, spans, leaf.dtype)
        blocks.append(jax.device_put(made[spans], device, may_alias=False))
    blocks = jax.block_until_ready(blocks)
    return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, blocks)


def _block(
    pieces: list[tuple[list[int], Entry]], spans: tuple[tuple[int, int], ...], dtype: Any
) -> np.ndarray:
    if not spans:
        return np.array(pieces[0][1].open(), dtype).reshape(())
    out = np.zeros([b - a for a, b in spans], dtype)
    for starts, entry in pieces:
        low = [max(a, s) for (a, _), s in zip(spans, starts, strict=True)]
        ends = [s + n for s, n in zip(starts, entry.shape, strict=True)]
        high = [min(b, e) for (_, b), e in zip(spans, ends, strict=True)]
        if all(a < b for a, b in zip(low, high, strict=True)):
            into = tuple(slice(a - o, b - o) for a, b, (o, _) in zip(low, high, spans, strict=True))
            out_of = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, starts, strict=True))
            out[into] = entry.open()[out_of]
    return out


def _crc(file: Path) -> int:
    value = 0
    with file.open("rb") as opened:
        while data := opened.read(1 << 24):
            value = zlib.crc32(data, value)
    return value
