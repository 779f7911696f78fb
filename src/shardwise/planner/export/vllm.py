"""A plan as `vllm serve`: one replica, on its own devices.

Names and meanings of the flags are as read in docs.vllm.ai (engine arguments) and
vllm/engine/arg_utils.py@99d7eb5d; tests parse back what is written here, no server was started with
it. Limits on sequences and tokens are per data-parallel rank. With `--enable-expert-parallel`
experts are cut over tensor x data ranks, attention of a rank sees its own sequences: our `expert`.
Without it data parallelism copies a dense model, and cuts the experts of others. Both roles of
disaggregated serving take the same flags (NixlConnector); a proxy gives them out.
"""

import json
from typing import Any

from shardwise.boundary import parse_json, whole
from shardwise.errors import BadRequest, shown
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export.notes import Fields, mesh_of, named, refused
from shardwise.planner.export.server_flags import (
    DTYPES,
    LENGTHS,
    MODEL,
    check_plan,
    dtype_fields,
    flags_of,
    longest,
    script,
)
from shardwise.plans import ServePlan

TARGET, COMMAND = "vllm", "vllm serve"
BLOCKS = (1, 8, 16, 32, 64, 128)
"""Page sizes that `--block-size` takes."""

ORDERS = {"fcfs": "fcfs", "priority": "priority"}
CACHES = {"bf16": "auto", "fp8": "fp8"}
TRANSFER = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})

TENSOR, DATA, EXPERT = (
    *("--tensor-parallel-size", "--data-parallel-size"),
    "--enable-expert-parallel",
)
_KNOWN = (
    LENGTHS[TARGET],
    *(TENSOR, DATA, EXPERT, "--max-num-seqs", "--max-num-batched-tokens", "--block-size"),
    *("--gpu-memory-utilization", "--kv-cache-dtype", "--quantization", "--dtype"),
    *("--enable-prefix-caching", "--no-enable-prefix-caching", "--scheduling-policy"),
    *("--speculative-config", "--kv-transfer-config", "--enable-chunked-prefill"),
)


def write(plan: ServePlan, cfg: ModelConfig, piece: Slice) -> str:
    """A script that starts one replica."""
    check_plan(TARGET, plan, cfg)
    wanted = plan.scheduling
    if wanted.policy != "chunked":
        raise refused(TARGET, "scheduling.policy", wanted.policy, "it mixes chunks with decodes")
    if wanted.page_size not in BLOCKS:
        sizes = ", ".join(map(str, BLOCKS))
        raise refused(TARGET, "scheduling.page_size", wanted.page_size, f"it takes {sizes}")
    if plan.degree("data") > 1 and cfg.has_experts:
        raise refused(
            TARGET, "mesh", dict(plan.mesh), "data parallelism cuts the experts there, not copies"
        )
    ranks = plan.degree("data") * plan.degree("expert")
    values: dict[str, Any] = {TENSOR: plan.degree("tensor")}
    if ranks > 1:
        values[DATA] = ranks
    if plan.degree("expert") > 1:
        values[EXPERT] = ""
    values |= {
        "--max-num-seqs": -(-plan.batch // ranks),
        "--max-num-batched-tokens": -(-plan.prefill_chunk // ranks),
        "--block-size": wanted.page_size,
        "--gpu-memory-utilization": wanted.memory_share,
        "--kv-cache-dtype": CACHES[plan.dtypes.kv],
        "--dtype": DTYPES[plan.dtypes.activations],
        "--scheduling-policy": named(TARGET, "scheduling.order", wanted.order, ORDERS),
        "--enable-chunked-prefill": "",
    }
    if length := longest(plan, cfg, piece):
        values[LENGTHS[TARGET]] = length
    if plan.dtypes.weights == "fp8":
        values["--quantization"] = "fp8"
    values["--enable-prefix-caching" if wanted.prefix_cache else "--no-enable-prefix-caching"] = ""
    if wanted.guesses:
        guess = {"method": "ngram", "num_speculative_tokens": wanted.guesses}
        values["--speculative-config"] = json.dumps(guess)
    if plan.prefill_replicas:
        values["--kv-transfer-config"] = TRANSFER
    return script(f"{COMMAND} {MODEL}", values)


def read(text: str) -> Fields:
    """The fields that the flags say."""
    flags = flags_of(TARGET, text, COMMAND, _KNOWN)
    ranks, cut = flags.number(DATA, "1"), EXPERT in flags
    tensor = flags.number(TENSOR, "1")
    mesh = {"expert": ranks * tensor} if cut else {"data": ranks, "tensor": tensor}
    return dtype_fields(flags, CACHES) | {
        "mesh": mesh_of(mesh),
        "batch": ranks * flags.number("--max-num-seqs", "256"),
        "prefill_chunk": ranks * flags.number("--max-num-batched-tokens", "8192"),
        "prefill_replicas": int("--kv-transfer-config" in flags),
        "scheduling.page_size": flags.number("--block-size", "16"),
        "scheduling.memory_share": flags.number("--gpu-memory-utilization", "0.9", float),
        "scheduling.order": flags.word("--scheduling-policy", ORDERS, "fcfs"),
        "scheduling.prefix_cache": "--no-enable-prefix-caching" not in flags,
        "scheduling.policy": "chunked",
        "scheduling.guesses": _guesses(flags.get("--speculative-config")),
    }


def _guesses(text: str) -> int:
    """Tokens guessed per step; n-grams alone are read."""
    if not text:
        return 0
    remedy = "a plan can say method ngram with num_speculative_tokens"
    held = parse_json(text, f"{TARGET}: --speculative-config", remedy=remedy)
    method = held.get("method") if isinstance(held, dict) else None
    if method != "ngram" or "num_speculative_tokens" not in held:
        raise BadRequest(
            f"{TARGET}: --speculative-config is {shown(text)}; a plan can say method ngram with "
            "num_speculative_tokens"
        )
    what = f"{TARGET}: num_speculative_tokens"
    return whole(held["num_speculative_tokens"], what, least=1, most=1024)
