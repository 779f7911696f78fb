"""Names of rows that options take. scripts/options.py writes this file of the rows, so
that `--help` shows them and imports none."""

from collections.abc import Mapping

CHOICES: Mapping[str, tuple[str, ...]] = {
    "remat": ("none", "matmul_outputs", "block", "offload"),
    "schedule": ("gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe"),
    "context_method": ("all_gather", "ring", "ulysses"),
    "for": ("maxtext", "megatron", "torchtitan", "jax", "any"),
    "optimizer": ("adam", "adam8bit", "adafactor", "muon", "sgd"),
    "objective": ("time", "cost", "chips"),
    "weights": ("f32", "bf16", "f16", "int8", "fp8", "int4"),
    "kv": ("f32", "bf16", "f16", "int8", "fp8"),
}
