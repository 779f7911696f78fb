"""What the flags of vLLM, SGLang and TensorRT-LLM share: obstacles, lengths and dtypes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.planner.export.flags import Flags
from shardwise.planner.export.notes import Fields, number
from shardwise.planner.export.server_program import ServerPool
from shardwise.planner.serve.server import fewest_kv_heads, server_of
from shardwise.plans import ServePlan
from shardwise.plans.serve import CHECKPOINT
from shardwise.plans.software import Obstacle
from shardwise.plans.software.limit import value_text

_NEITHER: Mapping[str, Any] = {
    "swap": False,
    "host_cache_share": 0.0,
    "max_waiting": 0,
    "refuse_late": False,
    "guess_cost": 0.0,
    "admission": "optimistic",
    "release": "",
}
"""Choices of `scheduling` that neither server has a flag for that means the same."""


def server_obstacles(
    plan: ServePlan, cfg: ModelConfig, says: Sequence[str] = ()
) -> Iterator[Obstacle]:
    """What neither vLLM nor SGLang runs as the plan says; `says` are what another does."""
    for name, only in _NEITHER.items():
        value = getattr(plan.scheduling, name)
        if value != only and name not in says:
            yield no_word(f"scheduling.{name}", value, (only,))
    if plan.degree("fsdp") > 1:
        rule = "it does not shard D of stationary weights"
        yield on_mesh(plan, rule, "set fsdp to 1")
    if plan.degree("tensor") > fewest_kv_heads(cfg) and plan.kv_sharding != "heads":
        yield Obstacle(
            field="kv_sharding",
            value=plan.kv_sharding,
            rule="with more devices than KV heads it replicates the heads",
            remedy="set kv_sharding to heads",
        )
    if plan.degree("expert") > 1 and plan.degree("data") * plan.degree("tensor") > 1:
        rule = "it shards experts over all devices or none"
        yield on_mesh(plan, rule, f"set expert to {plan.devices} and the others to 1")
    dtypes = plan.dtypes
    if dtypes.weights not in (CHECKPOINT, "fp8", "bf16") and "weights" not in says:
        rule = "it quantizes to fp8 while loading"
        yield Obstacle(
            field="dtypes.weights", value=dtypes.weights, rule=rule, remedy="set it to fp8"
        )
    if dtypes.kv not in ("bf16", "fp8"):
        yield no_word("dtypes.kv", dtypes.kv, ("bf16", "fp8"))
    if dtypes.activations not in DTYPES:
        yield no_word("dtypes.activations", dtypes.activations, tuple(DTYPES))


def no_word(field: str, value: Any, known: Sequence[Any]) -> Obstacle:
    """A choice that a server has no flag for, and what it knows, the first being the remedy."""
    words = ", ".join(map(value_text, known))
    remedy = f"set {field} to {value_text(known[0])}"
    return Obstacle(field=field, value=value, rule=f"it supports {words}", remedy=remedy)


def on_mesh(plan: ServePlan, rule: str, remedy: str) -> Obstacle:
    """An obstacle of the plan's mesh."""
    return Obstacle(field="mesh", value=dict(plan.mesh), rule=rule, remedy=remedy)


LENGTHS = {
    "vllm": "--max-model-len",
    "sglang": "--context-length",
    "trtllm": "--max_seq_len",
}
"""The flag for the longest sequence; without it a server takes the model's longest, and vLLM does
not start where its cache cannot hold that."""

_ROUND = 1024
"""Tokens. Context lengths are whole multiples of this."""


def longest(pool: ServerPool, cfg: ModelConfig) -> int:
    """Tokens of the longest sequence to allow, 0 where the cache of a rank holds the model's.

    Half of the cache, as the server counts its own otherwise than we do; the plan's sequences in
    any case; in steps of 1,024 tokens.
    """
    plan = pool.plan
    server, share = server_of(plan, cfg, pool.piece), plan.scheduling.memory_share
    counted = float(server.cache_tokens(server.shape(float(plan.batch)), share))
    cache = counted / (plan.degree("data") * plan.degree("expert"))
    most = cfg.max_context or 0
    if cache >= most:
        return 0
    asked = -(-(plan.input_length + plan.output_length) // _ROUND) * _ROUND
    return max(asked, int(cache / 2) // _ROUND * _ROUND)


def check_length(target: str, text: str, plan: ServePlan) -> None:
    """Raise BadRequest where the flags allow shorter sequences than the plan's."""
    match = re.search(rf"^[^#\n]*{LENGTHS[target]}=(\S+)", text, re.MULTILINE)
    asked = plan.input_length + plan.output_length
    if match and number(target, LENGTHS[target], match[1]) < asked:
        raise BadRequest(
            f"{target}: {LENGTHS[target]} is {match[1]}, but requests of the plan have {asked:,} "
            "tokens (input_length + output_length); raise it, or plan for shorter requests"
        )


DTYPES = {"bf16": "bfloat16", "f16": "float16"}
"""What both servers call the dtypes of activations."""


_SAID = {"auto": "bf16", "half": "f16"}
"""Further words for them: `auto` is the checkpoint's own, which is bfloat16 most often."""


def dtype_fields(flags: Flags, caches: Mapping[str, str]) -> Fields:
    """Fields of `dtypes` that the flags say; `caches` has the server's words for the cache's."""
    return {
        "dtypes.weights": flags.word("--quantization", {"fp8": "fp8", CHECKPOINT: ""}),
        "dtypes.kv": flags.word("--kv-cache-dtype", caches, "auto"),
        "dtypes.matmuls": "stored",
        "dtypes.activations": _SAID.get(flags.get("--dtype"), "")
        or flags.word("--dtype", DTYPES, "bfloat16"),
    }
