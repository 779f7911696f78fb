"""Run by check_exports.py in MaxText's environment: its pyconfig takes every command, and its model
is built with abstract parameters."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("DECOUPLE_GCLOUD", "FALSE")

import maxtext.configs
from maxtext.configs import pyconfig

BASE = Path(maxtext.configs.__file__).with_name("base.yml")


def main(source: str, target: str) -> None:
    """Every file of `source` by name: its error, or the parameters of its model."""
    counted: dict[str, int | None] = {}
    found = {}
    for key, text in json.loads(Path(source).read_text()).items():
        try:
            found[key] = {"parameters": taken(words_of(text), counted)}
        except (SystemExit, Exception) as error:  # what the program says is the record
            found[key] = {"error": f"{type(error).__name__}: {error}"[:400]}
    Path(target).write_text(json.dumps({"files": found, "flags": flags()}))


def words_of(text: str) -> list[str]:
    """The key=value words of the command."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [w for w in shlex.split(plain.replace("\\\n", " ")) if "=" in w]


def taken(words: list[str], counted: dict[str, int | None]) -> int | None:
    """The parameters of the model of a config that pyconfig takes."""
    pyconfig.initialize(["train", str(BASE), *words, "base_output_directory=out"])
    model = [w for w in words if not w.startswith(OF_THE_PLAN)]
    at = json.dumps([w for w in model if not w.startswith("run_name")])
    if at not in counted:
        counted[at] = parameters(pyconfig.initialize(["train", str(BASE), *model, *ON_CPU]))
    return counted[at]


OF_THE_PLAN = (
    *("compile_top", "ici_", "dcn_", "per_device", "max_target", "gradient_acc", "hardware"),
    *("attention=", "sparse_matmul", "capacity_factor", "num_pipeline", "num_layers_per"),
    *("shard_opt", "pipeline_fsdp", "optimizer_memory", "quantization"),
)
ON_CPU = (
    *("per_device_batch_size=1", "max_target_length=128", "skip_jax_distributed_system=true"),
    *("base_output_directory=out", "attention=dot_product", "sparse_matmul=false"),
    "capacity_factor=-1.0",
)
"""One device, and kernels that run on a CPU: what is built has the same parameters."""


def parameters(config: Any) -> int:
    """Of the model, with abstract arrays. Without the biases of DeepSeek's routing, which no
    gradient moves and which we do not count."""
    import jax
    import jax.numpy as jnp
    from maxtext.utils import model_creation_utils

    model = model_creation_utils.from_config(config, devices=jax.devices())
    tokens = jnp.zeros((1, 128), jnp.int32)
    keys = {name: jax.random.PRNGKey(0) for name in ("params", "dropout", "aqt")}
    made = jax.eval_shape(lambda: model.init(keys, tokens, tokens, enable_dropout=False))
    leaves = jax.tree_util.tree_leaves_with_path(made["params"])
    moved = config.decoder_block.value != "deepseek"
    return sum(int(leaf.size) for path, leaf in leaves if moved or not routes(str(path)))


def routes(path: str) -> bool:
    """Whether a parameter is a bias of the router."""
    return "'gate'" in path and "bias" in path


def flags() -> list[str]:
    """The keys that pyconfig knows."""
    from maxtext.configs import types

    return sorted(types.MaxTextConfig.model_fields)


if __name__ == "__main__":
    main(*sys.argv[1:3])
