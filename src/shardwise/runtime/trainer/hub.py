"""From a Hugging Face checkpoint into training, and back into one that is whole or not there."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from shardwise.errors import BadRequest, ShardwiseError
from shardwise.models import ModelConfig
from shardwise.runtime.checkpoint import save
from shardwise.runtime.tensor_file import INDEX, SINGLE
from shardwise.runtime.text.tokenizer import Bytes, bytes_document

TOKENIZER = "tokenizer.json"
GENERATION = "generation_config.json"


OWN = ("checkpoints", "data", "processes", "profile", "tensorboard")
"""Folders that a run keeps in --out."""


def check_target(folder: Path, out: Path, config: Mapping[str, Any]) -> None:
    """Raise BadRequest, before a run, for what would stop its checkpoint from being written after
    it: something there already, a place that is the run's own or cannot be written, a `config` that
    is not JSON."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "a checkpoint" if _holds_one(folder) else "something"
        raise BadRequest(f"--save-hf '{folder}' already holds {what}; give a new folder")
    place, own = folder.resolve(), out.resolve()
    if own.is_relative_to(place) or any(place.is_relative_to(own / name) for name in OWN):
        raise BadRequest(
            f"--save-hf '{folder}' overlaps --out '{out}', which holds the run; give another folder"
        )
    try:
        json.dumps(config, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise BadRequest(f"--save-hf cannot write the model's config.json: {error}") from None
    above = next(p for p in place.parents if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise BadRequest(f"cannot write --save-hf '{folder}': '{above}' is no writable folder")


def _holds_one(folder: Path) -> bool:
    return any((folder / name).exists() for name in (SINGLE, INDEX))


def tokenizer_beside(folder: Path | None) -> Path | None:
    """The tokenizer of a checkpoint, if it brings one."""
    found = None if folder is None else folder / TOKENIZER
    return found if found is not None and found.is_file() else None


def export(
    folder: Path,
    params: Mapping[str, Any],
    cfg: ModelConfig,
    config: Mapping[str, Any],
    tokenizer: Path | None,
    init: Path | None = None,
) -> None:
    """Write the parameters as `transformers` reads them, with config.json, the tokenizer (that of
    bytes where there is none) and the generation_config.json of `init`. The config names the
    parameters' dtype as `config` did, by `dtype` (transformers 5) or `torch_dtype`, which 4 and 5
    read.

    Of several processes every one gathers the model on its host, and the first writes. Raises
    ShardwiseError where the disk fails.
    """
    if jax.process_count() > 1:
        params = jax.tree.map(lambda x: multihost_utils.process_allgather(x, tiled=True), params)
    if jax.process_index():
        return
    begun = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(begun, ignore_errors=True)
        save(begun, params, cfg)
        dtype = jax.tree.leaves(params)[0].dtype.name
        key = "dtype" if "dtype" in config else "torch_dtype"
        others = {k: v for k, v in config.items() if k not in ("dtype", "torch_dtype")}
        text = json.dumps({**others, key: dtype}, indent=2)
        (begun / "config.json").write_text(text + "\n", encoding="utf-8")
        if tokenizer is not None:
            shutil.copyfile(tokenizer, begun / TOKENIZER)
        else:
            _write_bytes(begun)
        if init is not None and (init / GENERATION).is_file():
            shutil.copyfile(init / GENERATION, begun / GENERATION)
        folder.parent.mkdir(parents=True, exist_ok=True)
        begun.rename(folder)
    except OSError as error:
        shutil.rmtree(begun, ignore_errors=True)
        raise ShardwiseError(
            f"cannot write the checkpoint to --save-hf '{folder}': {error.strerror}; the training "
            "checkpoint is kept: free space and start again with --resume"
        ) from None


def _write_bytes(folder: Path) -> None:
    """The tokenizer of a model that was trained on bytes, and the token that ends its answers."""
    files = {TOKENIZER: bytes_document(), GENERATION: {"eos_token_id": Bytes.end}}
    for name, document in files.items():
        (folder / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
