"""MaxText's train step, for `explain`: its own function, state and batch, as its train_compile
makes them.

`FLAGS` are what follows `python -m maxtext.trainers.pre_train.train_compile`: write yours there.
"""

from typing import Any

import jax
from flax.linen import partitioning
from maxtext.configs import pyconfig
from maxtext.trainers.pre_train import train, train_compile
from maxtext.utils import maxtext_utils, sharding

FLAGS = (
    *("custom_mesh_and_rule=pure-fsdp", "per_device_batch_size=4", "max_target_length=2048"),
    *("base_num_decoder_layers=16", "base_emb_dim=2048", "base_mlp_dim=7168"),
    *("run_name=explained", "dataset_type=synthetic", "enable_checkpointing=false"),
    *("compile_topology=v5e-8", "compile_topology_num_slices=1"),
    *("skip_jax_distributed_system=true", "log_config=false"),
)


class MaxTextStep:
    """The jitted step; it exists once `args` knows the mesh."""

    jitted: Any = None
    rules: Any = ()

    def lower(self, *given: Any) -> Any:
        with partitioning.axis_rules(self.rules):
            return self.jitted.lower(*given)

    def trace(self, *given: Any) -> Any:
        with partitioning.axis_rules(self.rules):
            return self.jitted.trace(*given)

    def __call__(self, *given: Any) -> Any:
        return self.jitted(*given)


step = MaxTextStep()


def args(mesh: Any) -> Any:
    """Abstract state and batch on a mesh with MaxText's axes; makes the step for them."""
    config = pyconfig.initialize(["", *FLAGS])
    given, _, laid, _, model = train_compile.get_shaped_inputs(mesh, config)
    params, laid = sharding.maybe_update_params_sharding_with_opt(config, laid)
    batch = sharding.get_input_data_sharding(config, mesh)
    function, inputs, outputs, static, donated = maxtext_utils.get_functional_train_with_signature(
        train.train_step, batch, laid, model, config, params
    )
    step.rules = config.logical_axis_rules
    step.jitted = jax.jit(
        function,
        in_shardings=inputs,
        out_shardings=outputs,
        static_argnums=static,
        donate_argnums=donated,
    )
    return given
