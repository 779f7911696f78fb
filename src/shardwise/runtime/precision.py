"""Dtypes: names as plans use them, and the one that sums and statistics are made in."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.errors import BadRequest
from shardwise.plans.software.jax import DTYPES as WORDS

DTYPES: Mapping[str, Any] = {name: getattr(jnp, word) for name, word in WORDS.items()}
"""JAX dtypes by the names that plans use: those that a plan "for jax" may name."""


def dtype_of(name: str) -> Any:
    """The JAX dtype of a plan's dtype; raises BadRequest for one that cannot compute."""
    if name not in DTYPES:
        raise BadRequest(f"dtype '{name}' is not supported by the runtime; use {', '.join(DTYPES)}")
    return DTYPES[name]


def wide(x: jax.Array) -> Any:
    """The dtype that products add up in and statistics are kept in: f32, or f64 for f64 (strict
    promotion has no rule for bf16 with f32)."""
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32
