"""Checkpoints of a run: sharded, written in the background, whole or not there at all.

A save copies the shards of this process to the host and returns; a thread writes them to a hidden
folder, forces them to the disk, and says so with a small file. When every process has said so,
process 0 adds the manifest (`manifest.py`) and renames the folder: only then does `step-00000100`
exist, so a kill at any moment leaves the last good checkpoint as it was. Older ones are removed
after that. Shards carry their place, so that another mesh can read them, once they are proved to
cover their arrays (`pieces.py`).
"""

import errno
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shardwise.boundary.outputs import flush
from shardwise.errors import BadRequest, ShardwiseError, shown
from shardwise.runtime.tensor_file import write_file
from shardwise.runtime.trainer.disk import write_text
from shardwise.runtime.trainer.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    SavedArray,
    SavedFile,
    check_identity,
    damage,
    read_manifest,
    shard_file,
    step_folder,
    steps_in,
    whole,
)
from shardwise.runtime.trainer.pieces import (
    Saved,
    SavedPiece,
    Shards,
    header_crc,
    held,
    metadata,
    name_of,
    planned,
    proved,
)
from shardwise.units import format_bytes

_PATIENCE = 1800.0
_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        return self.folder / step_folder(step)

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

    def _write(self, step: int, shards: Shards, tree: dict[str, SavedArray]) -> None:
        begun = self.folder / f".step-{step:08}"
        try:
            begun.mkdir(parents=True, exist_ok=True)
            self._write_own(begun, step, shards)
            if self.process == 0:
                self._finish(begun, step, tree)
        except OSError as error:
            if self.processes == 1:
                shutil.rmtree(begun, ignore_errors=True)
            self._error = self._failed(step, error, sum(x.nbytes for x in shards.values()))
        except Exception as error:  # raised where the loop asks; a thread's own would be lost
            self._error = error

    def _write_own(self, begun: Path, step: int, shards: Shards) -> None:
        """This process's shards, on the disk, and a file that says so."""
        file = begun / shard_file(self.process, self.processes)
        more = metadata(step, self.identity, shards)
        write_file(file, planned(shards), shards.__getitem__, more)
        flush(file)
        about = SavedFile(name=file.name, bytes=file.stat().st_size, crc32=header_crc(file))
        write_text(begun / f"written-{self.process:05}.json", about.model_dump_json())

    def _finish(self, begun: Path, step: int, tree: dict[str, SavedArray]) -> None:
        """The manifest, the rename, and the end of older checkpoints."""
        manifest = Manifest(
            format=FORMAT,
            step=step,
            identity=dict(self.identity),
            tree=tree,
            files=[self._said(begun, process) for process in range(self.processes)],
        )
        write_text(begun / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
        for said in begun.glob("written-*.json"):
            said.unlink()
        flush(begun)
        final = self.path(step)
        if final.exists():  # of a run that went further and then was rolled back
            shutil.rmtree(final)
        begun.rename(final)
        flush(self.folder)
        self._prune(step)

    def _prune(self, step: int) -> None:
        """Remove all up to `step` but the newest whole ones; later ones are damaged, and replaced
        when the run comes there."""
        past = [s for s in steps_in(self.folder) if s <= step]
        kept = [s for s in past if whole(self.path(s))][-self.keep :]
        for old in past:
            if old not in kept:
                shutil.rmtree(self.path(old), ignore_errors=True)

    def _said(self, begun: Path, process: int) -> SavedFile:
        """What a process said when its shards were on the disk."""
        file, until = begun / f"written-{process:05}.json", time.monotonic() + _PATIENCE
        while True:
            try:
                return SavedFile.model_validate_json(file.read_text(encoding="utf-8"))
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

    Raises BadRequest, before any array is made, where it belongs to another run, was damaged, or
    does not hold the whole of each array.
    """
    manifest = check_identity(folder, identity)
    return manifest.step, laid_out(folder, manifest, proved(folder, manifest), shapes)


def laid_out(
    folder: Path, manifest: Manifest, saved: Saved, shapes: Any, unpadded: Any = None
) -> Any:
    """The state of pieces that are proved, as `restore` gives it. `unpadded` has the shapes without
    what a mesh adds (None: `shapes` are those)."""
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    least = jax.tree.leaves(shapes if unpadded is None else unpadded)
    for (path, leaf), real in zip(leaves, least, strict=True):
        _check_array(folder, manifest.tree.get(name_of(path)), name_of(path), leaf, real.shape)
    names = {name_of(path) for path, _ in leaves}
    more = next((name for name in manifest.tree if name not in names), None)
    if more is not None:
        raise _other_state(folder, more, _about(manifest.tree[more]), "nothing")
    return jax.tree_util.tree_map_with_path(lambda p, x: _placed(saved[name_of(p)], x), shapes)


def _check_array(
    folder: Path, found: SavedArray | None, name: str, leaf: Any, least: tuple[int, ...]
) -> None:
    """Lengths may differ by padding, which depends on the mesh and is zero: none is below that of
    the array itself."""
    wanted = SavedArray(shape=list(leaf.shape), dtype=np.dtype(leaf.dtype).name)
    if (
        found is None
        or found.dtype != wanted.dtype
        or len(found.shape) != leaf.ndim
        or any(n < real for n, real in zip(found.shape, least, strict=True))
    ):
        raise _other_state(
            folder, name, "nothing" if found is None else _about(found), _about(wanted)
        )


def _about(array: SavedArray) -> str:
    return f"{array.dtype} {array.shape}"


def _other_state(folder: Path, name: str, was: str, now: str) -> BadRequest:
    return BadRequest(
        f"'{folder}' holds {shown(name, 200)[1:-1]} as {was} and this run has {now}; resume with "
        "the stages and optimizer that wrote it"
    )


def read_params(folder: Path, shapes: Any) -> Any:
    """The parameters of a checkpoint alone, whole on the first device, whatever run it is of."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)
    manifest = read_manifest(folder)
    saved = proved(folder, manifest)
    kept = {name: array for name, array in manifest.tree.items() if name.startswith("params/")}
    params = manifest.model_copy(update={"tree": kept})
    return laid_out(folder, params, saved, {"params": placed})["params"]


def _tree(state: Any) -> dict[str, SavedArray]:
    return {
        name_of(path): SavedArray(shape=list(leaf.shape), dtype=np.dtype(leaf.dtype).name)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def _placed(pieces: list[SavedPiece], leaf: Any) -> jax.Array:
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


def _block(pieces: list[SavedPiece], spans: tuple[tuple[int, int], ...], dtype: Any) -> np.ndarray:
    if not spans:
        return np.array(pieces[0].entry.open(), dtype).reshape(())
    out = np.zeros([b - a for a, b in spans], dtype)
    for piece in pieces:
        starts, sizes = piece.box
        low = [max(a, s) for (a, _), s in zip(spans, starts, strict=True)]
        ends = [s + n for s, n in zip(starts, sizes, strict=True)]
        high = [min(b, e) for (_, b), e in zip(spans, ends, strict=True)]
        if all(a < b for a, b in zip(low, high, strict=True)):
            into = tuple(slice(a - o, b - o) for a, b, (o, _) in zip(low, high, spans, strict=True))
            out_of = tuple(slice(a - s, b - s) for a, b, s in zip(low, high, starts, strict=True))
            out[into] = piece.entry.open()[out_of]
    return out
