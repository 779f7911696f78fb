"""The step of levanter's Trainer on its Llama, for `explain`."""

from functools import cache, partial
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import jmp
import optax
from haliax.partitioning import ResourceAxis, infer_resource_partitions
from levanter.models.llama import LlamaConfig
from levanter.models.lm_model import LmExample, compute_next_token_loss
from levanter.trainer import Trainer, TrainerConfig
from levanter.trainer_state import TrainerState

MODEL = LlamaConfig(
    seq_len=1024,
    hidden_dim=2048,
    intermediate_dim=7168,
    num_layers=16,
    num_heads=16,
    num_kv_heads=8,
)
VOCAB, SEQUENCES = 32768, 32
BATCH = {"batch": (ResourceAxis.DATA,)}
TENSOR = dict.fromkeys(("mlp", "heads", "kv_head"), ResourceAxis.MODEL)
COMPUTE = {**BATCH, **TENSOR}
PARAMETERS = {**COMPUTE, "embed": ResourceAxis.DATA}
POLICY = jmp.get_policy("p=f32,c=bfloat16")


def _mean(x: Any, axis: Any = None, where: Any = None) -> Any:
    """`hax.mean`, whose mask is of bools as JAX 0.10 wants it."""
    return hax.mean(x, axis, where=where.astype(bool))


class OwnMappings(Trainer):
    """Levanter's trainer without its run: no tracker, no checkpoints, axes as above."""

    compute_axis_mapping = COMPUTE
    parameter_axis_mapping = PARAMETERS

    def __init__(self) -> None:
        self.config = TrainerConfig(mp=POLICY)
        self._raw_loss_function = partial(compute_next_token_loss, reduction=_mean)


@cache
def _split() -> Any:
    def make() -> Any:
        key = jax.random.PRNGKey(0)
        model = MODEL.build(hax.Axis("vocab", VOCAB), key=key)
        return TrainerState.init(optax.adamw(1e-3), model, key=key, mp=POLICY, is_trainable=True)

    state = eqx.filter_eval_shape(make)
    return eqx.partition(state, lambda x: isinstance(x, jax.ShapeDtypeStruct))


def args(mesh: Any) -> Any:
    """The arrays of the state, and tokens."""
    arrays = _split()[0]
    where = infer_resource_partitions(
        arrays, PARAMETERS, mesh=mesh, preserve_existing_shardings=False
    )
    laid = jax.tree.map(_laid, where, arrays)
    at = jax.NamedSharding(mesh, jax.P(ResourceAxis.DATA))
    tokens = jax.ShapeDtypeStruct((SEQUENCES, MODEL.seq_len), jnp.int32, sharding=at)
    return laid, tokens


def _laid(at: Any, named: Any) -> Any:
    """A named array, or one without names, with its sharding."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), named)


def _step(arrays: Any, tokens: Any) -> Any:
    state = eqx.combine(arrays, _split()[1])
    Batch, Pos = hax.Axis("batch", SEQUENCES), MODEL.Pos
    example = hax.vmap(LmExample.causal, Batch)(hax.named(tokens, (Batch, Pos)))
    made = OwnMappings()._train_step(state, (example,), {}, _no_hooks=True)
    return eqx.filter(made.new_state, eqx.is_array), made.loss


step = jax.jit(_step, donate_argnums=0)
