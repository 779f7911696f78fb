"""Which model a plan or a checkpoint is of: a short hash of what both depend on."""

import hashlib
import json
import re
from dataclasses import fields
from fractions import Fraction
from typing import Any

from shardwise.models import ModelConfig
from shardwise.models.parameter import Parameter
from shardwise.models.parameters import parameters


def model_hash(cfg: ModelConfig) -> str:
    """A short hash of the layers and the parameter table.

    It is made of JSON without the fields that have their default: a field that is added later
    changes the hash of only those models that use it.
    """
    return _short(json.dumps(_hashed(cfg), default=_given, sort_keys=True))


def is_of(known: str, cfg: ModelConfig) -> bool:
    """Whether a plan with the hash `known`, of today or the former one, was made for a model."""
    return known in (model_hash(cfg), former_hash(cfg))


def former_hash(cfg: ModelConfig) -> str:
    """The hash in plans and checkpoints that were written when it was made of `repr`."""
    written = _COMPONENT.sub(r"\1, dtype_role='\2'", repr(_hashed(cfg)))
    return _short(_LATER.sub("", written))


_LATER = re.compile(
    r", query_experts=\d+, indexer=None"
    "|, "
    "(gate_bias|head_gate|out_norm|inner_norm|activation_scalars|selection_bias|input_copies|query_experts|head_sinks|idle_experts|scores_shared|router_dim|streams_mixed|extras|reused|differential|chosen_keys|product_keys|beside|mixing|laurel_rank|gated_norms|norm_gate_rank"
    r"|residual_scales)=(\(\)|[^,)]+)"
    "|, window=None, rope_norm=False, query_gate=False|, out_bias=None, norm=True"
)
"""Fields of layers that the former hash left out."""
_COMPONENT = re.compile(r"(component='(\w+)', role=.*?active=Fraction\(\d+, \d+\))")
"""Where a row of parameters said its component once more, as both hashes still have it."""


def _hashed(cfg: ModelConfig) -> tuple[Any, ...]:
    return cfg.groups, cfg.pattern, parameters(cfg)


def _given(value: Any) -> str | dict[str, Any]:
    """A dataclass by its name, as two may have the same fields, and what is not its default."""
    if isinstance(value, Fraction):
        return str(value)
    values = {f.name: (getattr(value, f.name), f.default) for f in fields(value)}
    again = {"dtype_role": value.component} if isinstance(value, Parameter) else {}
    given = {k: v for k, (v, usual) in values.items() if v != usual}
    return {"": type(value).__name__} | given | again


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
