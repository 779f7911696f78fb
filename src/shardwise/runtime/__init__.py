"""Running in JAX: one transformer for every model that has numerics, on real devices.

`model.py` is the forward pass and the loss, `stack.py` the loop over layers, `layer.py` one layer.
Its parts: `attention_block.py` (kernels in `attention/`, positions in `rope.py`), `mla.py` (latent
attention), `short_conv.py` and `delta_net.py` on the states of `recurrence.py`, `mlp.py`, `moe.py`
(experts' products in `grouped.py`), `norms.py`, and the products of `linear.py`, on quantised
weights of `quant.py`. `call.py` is what the layers of one pass share, `cache.py` what decoding
keeps row by row, `paged_cache.py` in pages that all sequences share, `cache_entry.py` a token's
part of either, `precision.py` dtypes.
`init.py` makes the parameter tree from the parameter table of `models`, `checkpoint.py` loads and
saves it by the names of `names.py` in files that `tensor_file.py` reads, `sharding.py` lays it out
as a plan says, `processes.py` joins several processes, `generate.py` prefills and decodes.
`options.py` holds dtypes, remat and the hooks of strategies; `collective_matmul/` matmuls that
overlap their own communication, `parallel/` the strategies of a plan, `trainer/` runs many steps,
`programs/` makes what is compiled ahead of time, `engine/` serves requests, `text/` has tokenizers
and chat templates. Nothing is predicted and nothing measured here. Read `model.py` first.
"""

from shardwise.runtime.cache import Cache, empty_cache
from shardwise.runtime.checkpoint import load, save
from shardwise.runtime.generate import decode, generate, prefill
from shardwise.runtime.init import initialise, parameter_count, shapes
from shardwise.runtime.model import cross_entropy, forward, loss
from shardwise.runtime.options import Options
from shardwise.runtime.quant import Quantized, quantise_params
from shardwise.runtime.sharding import batch_sharding, mesh_of, parameter_shardings

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
    "parameter_count",
    "parameter_shardings",
    "prefill",
    "quantise_params",
    "save",
    "shapes",
]
