"""The step of tunix's PeftTrainer on its Llama, all parameters trained, for `explain`."""

import types
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import optax
import states
from flax import nnx
from tunix.models.llama3.model import Llama3, ModelConfig, RematConfig
from tunix.sft import peft_trainer


def _make() -> Any:
    config = replace(ModelConfig.llama3p2_1b(), num_layers=2, remat_config=RematConfig.BLOCK)
    model = Llama3(config, rngs=nnx.Rngs(params=0))
    return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


@cache
def _split() -> tuple[Any, Any]:
    return states.split(_make)


def args(mesh: Any) -> Any:
    """State, and a batch with its masks."""
    tokens, mask = states.batch(mesh), states.batch(mesh, jnp.bool)
    given = {"input_tokens": tokens, "input_mask": mask, "positions": tokens}
    return states.laid(_split()[1], mesh), {
        **given,
        "attention_mask": states.batch(mesh, jnp.bool, states.TOKENS),
    }


def _step(values: Any, batch: Any) -> Any:
    model, optimizer = states.merged(*_split(), values)
    trainer = types.SimpleNamespace(
        gen_model_input_fn=lambda given: given,
        loss_fn=peft_trainer._default_loss_fn,
        _lora_enabled=False,
        _has_aux=False,
    )
    peft_trainer.PeftTrainer._train_step(trainer, model, optimizer, batch)
    return nnx.to_pure_dict(nnx.state((model, optimizer)))


step = jax.jit(_step, donate_argnums=0)
