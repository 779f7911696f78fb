"""Runtime tests run in this process on 8 virtual CPU devices, with strict promotion."""

import os

import jax

# Two fifths of the compile time on CPUs: the same HLO, other machine code (measured,
# docs/lab/log.md).
FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_disable_most_optimizations", True)  # half the compile time, the same HLO
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
