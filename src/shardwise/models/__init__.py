"""Model nouns: ModelConfig, its layers, the parameter table, and the zoo as data.

`specs.py` holds what a layer is made of, `config.py` the whole model. `hf.py` reads a Hugging Face
config.json by the table of classes in `architectures.py` (rows of `data/architectures.toml`, which
`rows.py` reads): `reader.py` reads its keys, `patterns.py` says which kind each layer is,
`blocks.py` builds what most classes share, `families.py`, `hybrids.py` and `latents.py` what some
have of their own, `extras.py` tensors that one class alone has, `towers.py` vision towers,
`quantization.py` stored dtypes. `zoo.py` loads a model by name from `data/`,
`spelling.py` knows what people call them.

`parameters.py` makes the one table that counting, FLOPs, sharding and loading map over;
`parameter.py` is a row of it, `mixer_rows.py` has those of the mixers, `components.py` names the
parts of a step that rows, ops and named scopes belong to. `counts.py` sums up parameters,
`flops.py` (on `contraction.py`) FLOPs, `kv.py` the cache, `activations.py` what the backward pass
needs under the policies of `remat.py`, `training_state.py` gradients and moments; `facts.py` has
it all of one model, `describe.py` its decisions in words. `numerics.py` is what a forward pass
needs beyond shapes, `numerics_table.py` has it per model type (`data/numerics.toml`) and
`runnable.py` says which models have it. Nothing here knows a chip or a time. Read
`config.py` first, then `parameters.py`.
"""

from shardwise.models.config import ModelConfig
from shardwise.models.counts import (
    params_active,
    params_by_component,
    params_text,
    params_total,
    weight_bytes,
    weight_dtype,
)
from shardwise.models.hf import from_hf
from shardwise.models.kv import (
    index_bytes,
    kv_bytes,
    kv_bytes_per_token,
    kv_elements,
    kv_tokens,
    state_bytes,
    state_elements,
)
from shardwise.models.parameter import Parameter
from shardwise.models.parameters import parameters
from shardwise.models.specs import Attention, LatentAttention, Layer, Mlp, Moe
from shardwise.models.zoo import load_model, zoo_names

__all__ = [
    "Attention",
    "LatentAttention",
    "Layer",
    "Mlp",
    "ModelConfig",
    "Moe",
    "Parameter",
    "from_hf",
    "index_bytes",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_elements",
    "kv_tokens",
    "load_model",
    "parameters",
    "params_active",
    "params_by_component",
    "params_text",
    "params_total",
    "state_bytes",
    "state_elements",
    "weight_bytes",
    "weight_dtype",
    "zoo_names",
]
