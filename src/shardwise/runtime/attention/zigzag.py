"""Zig-zag: dealing the tokens of a row so that a causal mask costs every device the same.

A row is cut into 2 |c| parts, and device d holds parts d and 2|c| - 1 - d: one that sees little and
one that sees much. Each then computes (2|c| + 1) / (4|c|) of the T/|c| x S scores, where with
blocks in order the first computes 1 / (2|c|) of them and the last (2|c| - 1) / (2|c|).

Only the order of the tokens changes. Tokens, targets, positions and segments are all dealt alike;
attention goes by positions, everything else in a model is token by token.
Source: zhuzilin/ring-flash-attention, issue 2 (2024), and Llama 3, arXiv 2407.21783, 3.3.2; the
striped order of Brandon et al., arXiv 2311.09431, balances too but leaves no tile to skip.
"""

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.errors import BadRequest


def zigzag_order(tokens: int, places: int) -> np.ndarray:
    """The token at each place of a row that is then cut into `places` blocks, [T].

    >>> zigzag_order(8, 2)
    array([0, 1, 6, 7, 2, 3, 4, 5])

    Raises BadRequest unless T divides by twice the number of devices.
    """
    if tokens % (2 * places):
        rule = f"it must divide by 2 x {places} devices"
        raise BadRequest(f"rows of {tokens} tokens cannot be sharded zig-zag; {rule}, so pad them")
    parts = np.arange(tokens).reshape(2 * places, -1)
    pairs = [(d, 2 * places - 1 - d) for d in range(places)]
    return parts[np.array(pairs)].reshape(-1)


def to_zigzag(x: jax.Array, places: int) -> jax.Array:
    """Tokens in order -> dealt, along dim 1 of the whole array."""
    return jnp.take(x, zigzag_order(x.shape[1], places), axis=1)


def from_zigzag(x: jax.Array, places: int) -> jax.Array:
    """Tokens dealt -> in order: the inverse of `to_zigzag`."""
    return jnp.take(x, np.argsort(zigzag_order(x.shape[1], places)), axis=1)
