"""From a Hugging Face checkpoint into training, and back into one that is whole or not there."""

import json
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

TOKENIZER = "tokenizer.json"
GENERATION = "generation_config.json"


def check_target(folder: Path) -> None:
    """Raise BadRequest where a checkpoint would be written over something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "a checkpoint" if _holds_one(folder) else "something"
        raise BadRequest(f"--save-hf '{folder}' holds {what} already; give a folder that is new")


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
    """Write the parameters as `transformers` reads them, with config.json, the tokenizer and the
    generation_config.json of `init`. The config names the parameters' dtype as `config` did, by
    `dtype` (transformers 5) or `torch_dtype`, which 4 and 5 read.

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
