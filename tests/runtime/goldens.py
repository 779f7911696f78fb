"""The golden models: config, prompt and outputs of transformers, and the weights they came from."""

import importlib.util
import json
from functools import lru_cache
from pathlib import Path

import jax
import numpy as np

from shardwise.models import from_hf
from shardwise.runtime.checkpoint import _tensors
from shardwise.runtime.init import is_buffer, stored_rows
from shardwise.runtime.names import pieces
from shardwise.runtime.tensor_file import write_file

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))


def _weights():
    spec = importlib.util.spec_from_file_location("weights", GOLDEN / "weights.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.tensor


tensor = _weights()


def parameter_count(tree):
    """Elements of the trained leaves of a tree; equals `params_text` where nothing is padded."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return sum(leaf.size for path, leaf in leaves if not is_buffer(path))


@lru_cache(maxsize=64)
def document(name):
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def config(name):
    return from_hf(document(name)["config"], name=name)


def logits(name):
    return np.load(GOLDEN / f"{name}.npy")


def write_checkpoint(cfg, folder):
    """A checkpoint with the weights that follow from our names and shapes."""
    shapes = {
        spelt: piece.shape()
        for piece in pieces(cfg, stored_rows(cfg))
        for _, spelt in _tensors(cfg, piece)
    }
    folder.mkdir(exist_ok=True)
    planned = [(name, shape, np.float32) for name, shape in shapes.items()]
    write_file(folder / "model.safetensors", planned, lambda name: tensor(name, shapes[name]))
    return shapes
