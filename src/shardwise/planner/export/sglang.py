"""A plan as an SGLang server, on TPUs as one of sglang-jax: one replica, on its own devices.

Names and meanings of the flags are as read in docs.sglang.io (server arguments) and, for TPUs,
sgl-project/sglang-jax python/sgl_jax/srt/server_args.py@ccda285a; tests parse back what is written
here, no server was started with it. With `--enable-dp-attention` the ranks of `--tp-size`
each keep their own sequences and `--ep-size` cuts the experts over them: our `expert`; limits are
then the server's. Without it `--dp-size` copies the whole server; limits are each copy's.
`--mem-fraction-static` counts weights and cache, not the working memory. Disaggregated, the role is
a variable of the user's.
"""

from typing import Any

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export.hardware import is_tpu
from shardwise.planner.export.notes import Fields, mesh_of, named, refused
from shardwise.planner.export.server_flags import (
    DTYPES,
    LENGTHS,
    MODEL,
    ROLE,
    check_plan,
    dtype_fields,
    flags_of,
    longest,
    script,
)
from shardwise.plans import ServePlan

TARGET = "sglang"
GPU, TPU = "python -m sglang.launch_server", "python -m sgl_jax.launch_server"
CACHES = {"bf16": "auto", "fp8": "fp8_e4m3"}
ORDERS = {"fcfs": "fcfs"}

TENSOR, DATA, EXPERT, ATTENTION = "--tp-size", "--dp-size", "--ep-size", "--enable-dp-attention"
_KNOWN = (
    LENGTHS[TARGET],
    *(TENSOR, DATA, EXPERT, ATTENTION, "--model-path", "--device", "--max-running-requests"),
    *("--chunked-prefill-size", "--page-size", "--mem-fraction-static", "--kv-cache-dtype"),
    *("--quantization", "--dtype", "--disable-radix-cache", "--schedule-policy"),
    *("--enable-mixed-chunk", "--speculative-algorithm", "--speculative-num-draft-tokens"),
    "--disaggregation-mode",
)


def write(plan: ServePlan, cfg: ModelConfig, piece: Slice) -> str:
    """A script that starts one replica."""
    check_plan(TARGET, plan, cfg)
    wanted, tpu = plan.scheduling, is_tpu(piece)
    if wanted.policy == "static":
        raise refused(TARGET, "scheduling.policy", wanted.policy, "its batches are continuous")
    if tpu:
        _check_tpu(plan)
    copies, experts = plan.degree("data"), plan.degree("expert")
    values: dict[str, Any] = {"--model-path": MODEL}
    if tpu:
        values["--device"] = "tpu"
    values[TENSOR] = plan.degree("tensor") * experts
    if copies * experts > 1:
        values[DATA] = copies * experts
    if experts > 1:
        values |= {ATTENTION: "", EXPERT: experts}
    values |= {
        "--max-running-requests": -(-plan.batch // copies),
        "--chunked-prefill-size": -(-plan.prefill_chunk // copies),
        "--page-size": wanted.page_size,
        "--mem-fraction-static": wanted.memory_share,
        "--kv-cache-dtype": CACHES[plan.dtypes.kv],
        "--dtype": DTYPES[plan.dtypes.activations],
        "--schedule-policy": named(TARGET, "scheduling.order", wanted.order, ORDERS),
    }
    if length := longest(plan, cfg, piece):
        values[LENGTHS[TARGET]] = length
    values |= _switches(plan)
    return script(TPU if tpu else GPU, values)


def _check_tpu(plan: ServePlan) -> None:
    """Raise BadRequest for what sglang-jax has no flag for."""
    if plan.degree("data") * plan.degree("expert") > 1:
        raise refused(TARGET, "mesh", dict(plan.mesh), "sglang-jax is exported with tensor alone")
    if plan.prefill_replicas:
        raise refused(TARGET, "prefill_replicas", plan.prefill_replicas, "sglang-jax has no roles")
    if plan.scheduling.guesses:
        guesses = plan.scheduling.guesses
        raise refused(TARGET, "scheduling.guesses", guesses, "sglang-jax guesses by models alone")
    if plan.prefill_chunk % plan.scheduling.page_size:
        size = plan.scheduling.page_size
        raise refused(TARGET, "prefill_chunk", plan.prefill_chunk, f"pages of {size} must fill it")


def _switches(plan: ServePlan) -> dict[str, Any]:
    """Flags that are there or not."""
    wanted, found = plan.scheduling, {}
    if wanted.policy == "chunked":
        found["--enable-mixed-chunk"] = ""
    if not wanted.prefix_cache:
        found["--disable-radix-cache"] = ""
    if plan.dtypes.weights == "fp8":
        found["--quantization"] = "fp8"
    if wanted.guesses:
        found["--speculative-algorithm"] = "NGRAM"
        # The draft tokens count the one that is sampled anyway.
        found["--speculative-num-draft-tokens"] = wanted.guesses + 1
    if plan.prefill_replicas:
        found["--disaggregation-mode"] = ROLE
    return found


def read(text: str) -> Fields:
    """The fields that the flags say."""
    flags = flags_of(TARGET, text, TPU if "sgl_jax" in text else GPU, _KNOWN)
    ranks, experts = flags.number(DATA, "1"), flags.number(EXPERT, "1")
    if (ATTENTION in flags) != (experts > 1) or (experts > 1 and ranks != experts):
        raise BadRequest(
            f"{TARGET}: {ATTENTION}, {DATA} {ranks} and {EXPERT} {experts} do not go together; a "
            "plan cuts sequences and experts over the same ranks"
        )
    copies = 1 if experts > 1 else ranks
    if flags.get("--speculative-algorithm", "NGRAM") != "NGRAM":
        raise BadRequest(f"{TARGET}: a plan can say --speculative-algorithm NGRAM alone")
    return dtype_fields(flags, CACHES) | {
        "mesh": mesh_of(
            {"data": copies, "expert": experts, "tensor": flags.number(TENSOR, "1") // experts}
        ),
        "batch": copies * flags.number("--max-running-requests", "256"),
        "prefill_chunk": copies * flags.number("--chunked-prefill-size", "8192"),
        "prefill_replicas": int("--disaggregation-mode" in flags),
        "scheduling.page_size": flags.number("--page-size", "1"),
        "scheduling.memory_share": flags.number("--mem-fraction-static", "0.9", float),
        "scheduling.order": flags.word("--schedule-policy", ORDERS, "fcfs"),
        "scheduling.prefix_cache": "--disable-radix-cache" not in flags,
        "scheduling.policy": "chunked" if "--enable-mixed-chunk" in flags else "interleaved",
        "scheduling.guesses": flags.number("--speculative-num-draft-tokens", "1") - 1,
    }
