"""Running in JAX: one transformer for every model that has numerics, on real devices.

`model.py` is the forward pass and the loss, `stack.py` the loop over layers, `layer.py` one layer.
Its parts: `attention_block.py` (kernels in `attention/`, positions in `rope.py`), `mla.py` (latent
attention), `short_conv.py` and `delta_net.py` on the states of `recurrence.py`, `mlp.py`, `moe.py`
(experts' products in `grouped.py`), `norms.py`, and the products of `linear.py`, on quantised
weights of `quant.py`. `call.py` is what the layers of one pass share, `cache.py` what decoding
keeps row by row, `paged_cache.py` in pages that all sequences share, `cache_entry.py` a token's
part of either, `precision.py` dtypes.
`init.py` makes the parameter tree from the parameter table of `models`, `checkpoint.py` loads and
saves it by the names of `names.py` (a table in `data/`) in files that `tensor_file.py` reads, with
what `adapters.py` adds, `sharding.py` lays it out as a plan says, `processes.py` joins several
processes, `generate.py` prefills and decodes.
`options.py` holds dtypes, remat and the hooks of strategies; `collective_matmul.py` matmuls that
overlap their own communication, `parallel/` the strategies of a plan, `trainer/` runs many steps,
`programs/` makes what is compiled ahead of time, `engine/` serves requests, `text/` has tokenizers
and chat templates. Nothing here predicts or measures. Read `model.py` first.

Every name loads its file on first use, so that code that needs only `text/` runs without JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.runtime.cache import Cache, empty_cache
    from shardwise.runtime.checkpoint import load, save
    from shardwise.runtime.generate import decode, generate, prefill
    from shardwise.runtime.init import initialise, shapes
    from shardwise.runtime.model import cross_entropy, forward, loss
    from shardwise.runtime.options import Options
    from shardwise.runtime.quant import Quantized, quantise_params
    from shardwise.runtime.sharding import batch_sharding, mesh_of, parameter_shardings

_HOMES = {
    name: file
    for file, names in {
        "cache": ("Cache", "empty_cache"),
        "checkpoint": ("load", "save"),
        "generate": ("decode", "generate", "prefill"),
        "init": ("initialise", "shapes"),
        "model": ("cross_entropy", "forward", "loss"),
        "options": ("Options",),
        "quant": ("Quantized", "quantise_params"),
        "sharding": ("batch_sharding", "mesh_of", "parameter_shardings"),
    }.items()
    for name in names
}
"""Name -> the file that has it."""

__all__ = [
    "Cache",
    "Options",
    "Quantized",
    "batch_sharding",
    "cross_entropy",
    "decode",
    "empty_cache",
    "forward",
    "generate",
    "initialise",
    "load",
    "loss",
    "mesh_of",
    "parameter_shardings",
    "prefill",
    "quantise_params",
    "save",
    "shapes",
]


def __getattr__(name: str) -> Any:
    """Load a name on first use (PEP 562), with all of its file: one is named like its file."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    globals().update({n: getattr(module, n) for n, home in _HOMES.items() if home == _HOMES[name]})
    return globals()[name]
