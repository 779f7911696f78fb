"""Model nouns: ModelConfig, its layers, the parameter table, and the zoo as data.

`specs.py` holds what a layer is made of, `config.py` the whole model, `hf.py` reads a Hugging Face
config.json by the table of class defaults in `architectures.py` (with `patterns`, `blocks` and
`families` for the layers, `towers` for vision), `parameters.py` makes the one table that counting,
FLOPs, sharding and loading map over, `counts.py` and `kv.py` sum it up, `zoo.py` loads by name;
`numerics.py` is what a forward pass needs beyond shapes, `runnable.py` says which models have it.
Nothing here knows a chip or a time. Read `config.py` first, then `parameters.py`.
"""

from shardwise.models.config import ModelConfig, Tower, TowerTensor
from shardwise.models.counts import (
    params_active,
    params_by_component,
    params_text,
    params_total,
    weight_bytes,
    weight_dtype,
)
from shardwise.models.hf import from_hf, read_config
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
from shardwise.models.specs import (
    Attention,
    CompressedAttention,
    DeltaNet,
    Indexer,
    LatentAttention,
    Layer,
    Lightning,
    Mamba,
    Mixer,
    Mlp,
    Moe,
    ShortConv,
)
from shardwise.models.zoo import load_model, zoo_names

__all__ = [
    "Attention",
    "CompressedAttention",
    "DeltaNet",
    "Indexer",
    "LatentAttention",
    "Layer",
    "Lightning",
    "Mamba",
    "Mixer",
    "Mlp",
    "ModelConfig",
    "Moe",
    "Parameter",
    "ShortConv",
    "Tower",
    "TowerTensor",
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
    "read_config",
    "state_bytes",
    "state_elements",
    "weight_bytes",
    "weight_dtype",
    "zoo_names",
]
