"""Attention in a loop over tiles, alone: what it takes as compiled over the chip's kernel.

Forward and backward, causal by positions (`runtime/attention/flash.py`), one device: a program of
seconds where a training step is one of minutes, and the same body.
"""

import os
from pathlib import Path
from typing import Any

from shardwise.commands.program.compiling import compile_function
from shardwise.hardware import parse_slice
from shardwise.profiler.ahead import CompileCache, Limits

ON = ("v4:2x2x1", "v5e:1x1", "v5p:2x2x1", "v6e:1x1", "tpu7x:2x2x1")
STEP, ARGUMENTS = "compiled.tiles:step", "compiled.tiles:arguments"
B, T, N, K, H = 1, 4096, 8, 4, 128


def step(q: Any, k: Any, v: Any) -> Any:
    """Gradients of attention."""
    import jax
    import jax.numpy as jnp

    from shardwise.runtime.attention.best import WIDE_TILE
    from shardwise.runtime.attention.flash import flash_attention
    from shardwise.runtime.attention.scoring import Scoring

    places = jax.lax.broadcasted_iota(jnp.int32, (B, T), 1)
    scoring = Scoring(
        scale=H**-0.5,
        softcap=None,
        window=None,
        chunk=None,
        q_positions_BT=places,
        k_positions_BS=places,
    )

    def loss(q: Any, k: Any, v: Any) -> Any:
        out = flash_attention(q, k, v, scoring, block_T=WIDE_TILE, block_S=WIDE_TILE)
        return jnp.sum(out.astype(jnp.float32))

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def arguments() -> tuple[Any, ...]:
    """Queries, keys and values."""
    import jax
    import jax.numpy as jnp

    return tuple(jax.ShapeDtypeStruct((B, T, heads, H), jnp.bfloat16) for heads in (N, K, K))


def tile_rates(cache: Path) -> dict[str, float]:
    """Of each chip: seconds of the chip's kernel over those of the loop as compiled."""
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # where the child finds `step`
    limits = Limits(cache=CompileCache(root=cache))
    return {on.partition(":")[0]: _rate(on, limits) for on in ON}


def _rate(on: str, limits: Limits) -> float:
    piece = parse_slice(on)
    found = compile_function(STEP, ARGUMENTS, piece, limits=limits)
    assert found.timeline is not None
    assert not found.timeline.uncounted
    rates = piece.chip.efficiency
    # Half of the scores, four FLOPs for each of their dims forward and ten backward.
    flops = 14 * B * N * H * T * T / 2
    peak = piece.chip.peak("bf16") / piece.chip.jax_devices_per_chip
    return flops / (peak * rates.attention * rates.sustained) / found.timeline.expected
