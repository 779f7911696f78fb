"""Hugging Face checkpoints: safetensors straight into sharded arrays, and back.

Every device's block is cut out of memory-mapped files by itself, so the host never holds more than
one block; saving holds one tensor of the file. `names.py` says which tensor holds which row.
"""

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.runtime.adapters import AdaptedEntry, adapted
from shardwise.runtime.init import Tree, padded_shape, rows_tree, stacked_shape, stored_rows
from shardwise.runtime.names import Piece, pieces
from shardwise.runtime.quant import Quantized, quantise, summed_axes
from shardwise.runtime.tensor_file import INDEX, SINGLE, Entry, read_folder, write_file

IGNORED = re.compile(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$|attention\.(masked_)?bias$")
"""Constants that older classes stored beside the weights."""

TOWER = re.compile(r"^(model\.)?(vision_tower|multi_modal_projector|audio_tower)\.")
"""Tensors of the parts of a model that are not its text."""

Index = tuple[slice, ...]
Held = Entry | AdaptedEntry


def load(
    path: Path | str,
    cfg: ModelConfig,
    dtype: Any = None,
    shardings: Any = None,
    kept: str | None = None,
    adapter: Path | None = None,
) -> Tree:
    """The parameter tree of a checkpoint, in `dtype` (None: as stored), laid out by `shardings`;
    its matmuls' weights and tables `kept` in small numbers (`quant.NARROW`) from the first on: one
    layer's or expert's matrix at a time is there in full. An `adapter` is added (`adapters.py`).

    `path` is a file or a folder with model.safetensors or an index. Raises BadRequest, before any
    tensor is read, with the name and the shape of a tensor that is missing, left over or different.
    """
    entries: Mapping[str, Held] = read_folder(Path(path))
    found = pieces(cfg, stored_rows(cfg))
    spelt = _spelling(found, entries)
    check(cfg, found, entries, spelt)
    if adapter is not None:
        entries = adapted(entries, adapter)
    by_row = {(piece.row.group, piece.row.name): piece for piece in found}
    if shardings is None:
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shardings = jax.tree.map(lambda _: here, rows_tree(cfg))
    buffer = _HostBuffer()

    def one(row: Any, sharding: jax.sharding.Sharding) -> Any:
        piece = by_row[row.group, row.name]
        held = next(_tensors(cfg, piece))[1]
        kind = entries[spelt(held)].dtype if dtype is None else np.dtype(dtype)
        if kept is not None and summed_axes(row):
            return _place_small(piece, cfg, entries, spelt, kept, sharding)
        return _place(piece, cfg, entries, spelt, kind, sharding, buffer)

    return jax.tree.map(one, rows_tree(cfg), shardings)


def verify(path: Path | str, cfg: ModelConfig) -> None:
    """Raise BadRequest as `load` does, without reading a tensor."""
    entries, found = read_folder(Path(path)), pieces(cfg, stored_rows(cfg))
    check(cfg, found, entries, _spelling(found, entries))


def check(
    cfg: ModelConfig, found: tuple[Piece, ...], entries: Mapping[str, Held], spelt: Any
) -> None:
    """Raise BadRequest unless the checkpoint holds exactly the tensors of the model."""
    expected = {spelt(name): piece.shape() for piece in found for _, name in _tensors(cfg, piece)}
    for name, shape in expected.items():
        if name not in entries:
            raise BadRequest(
                f"the checkpoint has no tensor '{name}' {list(shape)}, which model '{cfg.name}' "
                "needs; use the checkpoint of this config"
            )
        if entries[name].shape != shape:
            raise BadRequest(
                f"tensor '{name}' is {list(entries[name].shape)} in the checkpoint; model "
                f"'{cfg.name}' has {list(shape)}; use the checkpoint of this config"
            )
    for name in sorted(set(entries) - set(expected)):
        if not (IGNORED.search(name) or _is_extra(name, cfg)):
            raise BadRequest(
                f"tensor '{name}' {list(entries[name].shape)} of the checkpoint is not in model "
                f"'{cfg.name}'; use the checkpoint of this config"
            )


def save(
    folder: Path | str,
    params: Mapping[str, Any],
    cfg: ModelConfig,
    *,
    config: Path | str | None = None,
    max_file_bytes: int = 5_000_000_000,
) -> None:
    """Write the tree as a checkpoint that `transformers` loads; `config` is a config.json to copy.

    Files hold at most `max_file_bytes` (one tensor may be larger); several get an index.
    """
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[tuple[Piece, int, int | None]]] = defaultdict(list)
    for piece in pieces(cfg, stored_rows(cfg)):
        for (layer, expert), name in _tensors(cfg, piece):
            parts[name].append((piece, layer, expert))

    def dtype_of(name: str) -> Any:
        piece = parts[name][0][0]
        return np.dtype(_array(params, piece).dtype)

    def tensor(name: str) -> np.ndarray:
        whole = np.empty(parts[name][0][0].shape(), dtype_of(name))
        for piece, at, expert in parts[name]:
            value = _array(params, piece)
            value = value if piece.row.group is None else value[at]
            value = np.asarray(value if expert is None else value[expert])
            sizes = [size for _, size in piece.row.dims][int(expert is not None) :]
            place = view(piece, whole)
            place[...] = value[tuple(map(slice, sizes))].reshape(place.shape)
        return whole

    planned = [(name, part[0][0].shape(), dtype_of(name)) for name, part in parts.items()]
    files = list(_split(planned, max_file_bytes))
    if len(files) == 1:
        write_file(out / SINGLE, files[0], tensor)
    else:
        _write_several(out, files, tensor)
    if config is not None:
        shutil.copyfile(config, out / "config.json")


def view(piece: Piece, tensor: np.ndarray) -> np.ndarray:
    """The row inside a tensor of the file, in the row's order of dims; never a copy, so that heads
    that the file has in groups have two dims."""
    sizes = piece.sizes
    letters, shape = "", []
    at: list[Any] = []
    for i, axis in enumerate(piece.axes):
        outer = axis[: piece.outer] if i == piece.fused else axis
        letters += outer
        shape += [sizes[x] for x in outer]
        at += [slice(None)] * len(outer)
        if i == piece.fused:
            shape.append(piece.total)
            letters += "." if axis[piece.outer :] else ""
            whole = slice(piece.start, piece.start + piece.size)
            at.append(whole if axis[piece.outer :] else piece.start)
    cut = tensor.reshape(shape)[tuple(at)]
    if "." in letters:
        assert piece.fused is not None
        inner = piece.axes[piece.fused][piece.outer :]
        place = letters.index(".")
        split = tuple(sizes[x] for x in inner)
        cut = cut.reshape(*cut.shape[:place], *split, *cut.shape[place + 1 :])
        letters = letters.replace(".", inner)
    if "1" in letters:
        cut, letters = cut.squeeze(letters.index("1")), letters.replace("1", "")
    return cut.transpose([letters.index(x) for x in piece.letters if x in letters])


def _whole(piece: Piece, entry: Held) -> np.ndarray:
    """The row inside a tensor of the file, with its own dims."""
    found = view(piece, entry.open())
    sizes = [size for _, size in piece.row.dims][int(piece.per_expert) :]
    return found if piece.heads is None else found.reshape(sizes)


def _tensors(cfg: ModelConfig, piece: Piece) -> Iterator[tuple[tuple[int, int | None], str]]:
    """((place in the stack, expert), name) of every tensor that holds a part of a row."""
    row = piece.row
    if row.group is None:
        yield (0, None), piece.template
        return
    places = [i for i, group in enumerate(cfg.pattern) if group == row.group]
    experts = range(dict(row.dims)["E"]) if piece.per_expert else (None,)
    for (at, layer), expert in product(enumerate(places), experts):
        yield (at, expert), piece.template.format(layer=layer, expert=expert)


_KEPT = 64
"""XLA's CPU backend keeps host arrays at multiples of so many bytes as the device's memory."""


class _HostBuffer:
    """Host memory that every block passes through on its way to a device, as large as the largest.

    JAX lets a host array go some time after it was copied, so blocks of their own would pile up.
    The buffer lies between multiples of `_KEPT`, so that a CPU copies what it is given:
    `device_put(may_alias=False)` does not ask that of NumPy's arrays (JAX 0.10.2).
    """

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array in the buffer's memory; the one before it is overwritten."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if size > self._bytes.size:
            memory = np.empty(size + 2 * _KEPT, np.uint8)
            self._bytes = memory[-memory.ctypes.data % _KEPT + _KEPT // 2 :]
        array = self._bytes[:size].view(dtype).reshape(shape)
        array[...] = 0
        return array


def _place(
    piece: Piece,
    cfg: ModelConfig,
    entries: Mapping[str, Held],
    spelt: Any,
    dtype: Any,
    sharding: jax.sharding.Sharding,
    buffer: _HostBuffer,
) -> jax.Array:
    """One sharded array, a device's block at a time; equal blocks are read once."""
    shape = padded_shape(piece.row, sharding)
    names = {key: spelt(name) for key, name in _tensors(cfg, piece)}
    devices: dict[Any, list[Any]] = defaultdict(list)
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        spans = [part.indices(size)[:2] for part, size in zip(index or (), shape, strict=True)]
        devices[tuple(spans)].append(device)
    blocks = []
    for spans, owners in devices.items():
        real = stacked_shape(piece.row)
        held = tuple(slice(min(a, n), min(b, n)) for (a, b), n in zip(spans, real, strict=True))
        block = buffer.zeros(tuple(b - a for a, b in spans), dtype)
        _fill(block, piece, names, entries, held)
        # When its copies are ready, the next block may overwrite this one.
        blocks += jax.block_until_ready([jax.device_put(block, device) for device in owners])
    return jax.make_array_from_single_device_arrays(shape, sharding, blocks)


def _place_small(
    piece: Piece,
    cfg: ModelConfig,
    entries: Mapping[str, Held],
    spelt: Any,
    kept: str,
    sharding: jax.sharding.Sharding,
) -> Quantized:
    """One array in small numbers and its scales, cut as the sharding cuts it."""
    row = piece.row
    names = {key: spelt(name) for key, name in _tensors(cfg, piece)}
    real, shape = stacked_shape(row), padded_shape(row, sharding)
    outer = (row.group is not None) + piece.per_expert
    summed = tuple(axis - outer for axis in summed_axes(row))
    found: list[list[np.ndarray]] = [[], []]
    for place in np.ndindex(real[:outer]):
        index = tuple(slice(i, i + 1) for i in place) + tuple(slice(0, n) for n in real[outer:])
        block = np.zeros(shape[outer:], np.float32)
        _fill(block.reshape((1,) * outer + block.shape), piece, names, entries, index)
        small = quantise(jnp.asarray(block), summed, kept)
        for parts, array in zip(found, small, strict=True):
            parts.append(np.asarray(array))
    values, scale = (np.stack(parts).reshape(*real[:outer], *parts[0].shape) for parts in found)
    return Quantized(
        jax.device_put(values, sharding), jax.device_put(scale, of_scale(sharding, scale.shape))
    )


def of_scale(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> jax.sharding.Sharding:
    """How the scales of an array lie that lies so: dims of size 1 are whole. Raises BadRequest
    where devices would have to share one."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    cut = [entry if n > 1 else None for entry, n in zip(sharding.spec, shape, strict=False)]
    for entry, n in zip(cut, shape, strict=False):
        names: tuple[str, ...] = entry if isinstance(entry, tuple) else (entry,) if entry else ()
        devices = prod(sharding.mesh.shape[name] for name in names)
        if n % devices:
            raise BadRequest(
                f"int4 weights have one scale per group of inputs, and {n} scales do not divide "
                f"over {devices} devices of this mesh; take fewer along {'+'.join(names)}, or "
                "int8, whose scales span all inputs"
            )
    return NamedSharding(sharding.mesh, PartitionSpec(*cut))


def _fill(
    block: np.ndarray,
    piece: Piece,
    names: Mapping[tuple[int, int | None], str],
    entries: Mapping[str, Held],
    index: Index,
) -> None:
    """Write the array's part at `index` into the first places of `block`; a padded dim has more."""
    out = block[tuple(slice(0, part.stop - part.start) for part in index)]
    if piece.row.group is None:
        out[...] = _whole(piece, entries[names[0, None]])[index]
        return
    layers, *rest = index
    for i, layer in enumerate(range(layers.start, layers.stop)):
        if not piece.per_expert:
            out[i] = _whole(piece, entries[names[layer, None]])[tuple(rest)]
            continue
        for j, expert in enumerate(range(rest[0].start, rest[0].stop)):
            out[i, j] = _whole(piece, entries[names[layer, expert]])[tuple(rest[1:])]


def _spelling(found: tuple[Piece, ...], entries: Mapping[str, Held]) -> Any:
    """GPT-2 and OPT checkpoints also come without the first part of every name; the text of a model
    with towers stands under `language_model.`, or newer under `model.language_model.`."""
    first = next(piece.template for piece in found if piece.row.name == "embedding")
    head, _, rest = first.partition(".")
    if first in entries:
        return lambda name: name
    if rest in entries:
        return lambda name: name.removeprefix(f"{head}.")
    if f"language_model.{first}" in entries:
        return lambda name: f"language_model.{name}"
    if f"model.language_model.{rest}" in entries:
        return lambda name: re.sub(r"^model\.", "model.language_model.", name)
    return lambda name: name


def _is_extra(name: str, cfg: ModelConfig) -> bool:
    """A tower, a stored copy of a tied head, or a multi-token-prediction layer beyond the stack."""
    if (cfg.towers or cfg.towers_unread) and TOWER.search(name):
        return True
    if cfg.tied_embeddings and name in ("lm_head.weight", "embed_out.weight"):
        return True
    layer = re.search(r"\.layers\.(\d+)\.", name)
    return cfg.model_type in ("deepseek_v3", "glm4_moe") and (
        layer is not None and int(layer.group(1)) >= cfg.layers
    )


def _array(params: Mapping[str, Any], piece: Piece) -> jax.Array | np.ndarray:
    row = piece.row
    value = params[row.name] if row.group is None else params["layers"][row.group][row.name]
    if not isinstance(value, jax.Array | np.ndarray):
        raise BadRequest(f"parameter '{row.name}' is quantised; dequantise it before saving")
    return value


def _split(planned: list[Any], most: int) -> Iterator[list[Any]]:
    held, size = [], 0
    for name, shape, dtype in planned:
        more = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if held and size + more > most:
            yield held
            held, size = [], 0
        held.append((name, shape, dtype))
        size += more
    yield held


def _write_several(out: Path, files: list[list[Any]], tensor: Any) -> None:
    index, total = {}, 0
    for i, planned in enumerate(files, 1):
        file = f"model-{i:05}-of-{len(files):05}.safetensors"
        write_file(out / file, planned, tensor)
        index |= dict.fromkeys((name for name, _, _ in planned), file)
        total += sum(int(np.prod(s, dtype=np.int64)) * np.dtype(d).itemsize for _, s, d in planned)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1)
    (out / INDEX).write_text(text + "\n", encoding="utf-8")
