"""The contiguous cache: per layer group the keys and values of `length` places per sequence.

Softmax layers keep k [L, B, S, K H] and v [L, B, S, K U], latent ones c [L, B, S, C] and the
rotated r [L, B, S, R] (`models.kv` counts the same elements). Place s of a row holds the token at
position s; what lies beyond a row's length is garbage that no query sees. Heads have no dim of
their own: 10 of them fill a tile of 16 on TPUs, and XLA copied the whole cache into such tiles.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.errors import BadRequest
from shardwise.models import Attention, LatentAttention, ModelConfig
from shardwise.runtime.call import Past


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Cache:
    """One dict of arrays per layer group, and how many tokens each row holds."""

    groups: tuple[dict[str, jax.Array], ...]
    lengths_B: jax.Array

    @property
    def places(self) -> int:
        """S, the tokens that a row can hold."""
        return next(iter(self.groups[0].values())).shape[2]


def empty_cache(cfg: ModelConfig, batch: int, places: int, dtype: Any) -> Cache:
    """A cache of zeros. Windowed layers keep all places here; the paged engine is where they do
    not. Raises BadRequest where the model cannot take that many positions."""
    if cfg.position_rows and places > cfg.position_rows:
        raise BadRequest(
            f"a cache of {places} places is more than the {cfg.position_rows} learned positions "
            f"of model '{cfg.name}'; ask for at most that many tokens"
        )
    groups = []
    for layer, count in cfg.layer_groups():
        m = layer.mixer
        if isinstance(m, LatentAttention):
            widths = {"c": m.kv_lora_rank, "r": m.rope_head_dim}
        else:
            assert isinstance(m, Attention)
            widths = {"k": m.kv_heads * m.head_dim, "v": m.kv_heads * m.v_head_dim}
        shape = (count, batch, places)
        groups.append({name: jnp.zeros((*shape, width), dtype) for name, width in widths.items()})
    return Cache(tuple(groups), jnp.zeros(batch, jnp.int32))


def extend(
    past: Past, positions_BT: jax.Array, new: dict[str, jax.Array]
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Write [B, T, ...] of each array at its positions; the group's arrays after it, and what the
    layer attends to: the new tokens where the past was empty, else all places."""
    rows_B1 = jnp.arange(positions_BT.shape[0])[:, None]
    arrays = {
        name: past.arrays[name]
        .at[past.layer, rows_B1, positions_BT]
        .set(value.reshape(*value.shape[:2], -1).astype(past.arrays[name].dtype))
        for name, value in new.items()
    }
    if past.fresh:
        return arrays, new
    held = {name: array[past.layer] for name, array in arrays.items()}
    return arrays, {n: x.reshape(*x.shape[:2], *new[n].shape[2:]) for n, x in held.items()}
