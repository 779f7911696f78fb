"""Model nouns: ModelConfig, its layers, the parameter table, and the zoo as data.

`specs.py` holds what a layer is made of, `config.py` the whole model, `hf.py` reads a Hugging Face
config.json by the table of class defaults in `architectures.py`, `parameters.py` makes the one
table that counting, FLOPs, sharding and loading map over, `kv.py` the cache. Nothing here knows a
chip or a time. Read `config.py` first, then `parameters.py`.
"""

from shardwise.models.config import ModelConfig
from shardwise.models.parameters import Parameter

__all__ = ["ModelConfig", "Parameter"]
