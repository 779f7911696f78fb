"""The train step of flax's example examples/gemma, for `explain`.

The folder of the example is on PYTHONPATH, from flax's sources of the version that is installed.
"""

import sys
import types
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax
import states
from flax import nnx
from transformer import Transformer
from transformer_cfg import ShardingConfig, TransformerConfig

UNUSED = ("clu", "clu.metric_writers", "clu.periodic_actions", "tokenizer", "input_pipeline")
"""What the example's loop imports and its step does not use: they need TensorFlow."""

LAYERS = 2

with mock.patch.dict(sys.modules, dict.fromkeys(UNUSED, mock.MagicMock())):
    from train import nnx_train_step


def _make() -> Any:
    config = TransformerConfig.gemma3_270m(
        shd_config=ShardingConfig.fsdp_tp_sharding(), dtype=jnp.bfloat16
    )
    config = replace(config, num_layers=LAYERS, attention_types=config.attention_types[:LAYERS])
    model = Transformer(config, rngs=nnx.Rngs(params=0))
    return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


@cache
def _split() -> tuple[Any, Any]:
    return states.split(_make)


def args(mesh: Any) -> Any:
    """State and batch, on a mesh of explicit axes, as the example is written."""
    kinds = (jax.sharding.AxisType.Explicit,) * len(mesh.axis_names)
    mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    words = ("inputs", "inputs_position", "inputs_segmentation", "targets")
    return states.laid(_split()[1], mesh), {word: states.batch(mesh) for word in words}


def _step(values: Any, batch: Any) -> Any:
    model, optimizer = states.merged(*_split(), values)
    metrics = types.SimpleNamespace(update=lambda **_: None)
    nnx_train_step(model, optimizer, nnx.Rngs(0), batch, metrics)
    return nnx.to_pure_dict(nnx.state((model, optimizer)))


step = jax.jit(_step, donate_argnums=0)
