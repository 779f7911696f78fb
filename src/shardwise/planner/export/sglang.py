"""A plan as an SGLang server, on TPUs as one of sglang-jax: one server, on its own devices.

Names and meanings of the flags are as read in docs.sglang.io (server arguments) and, for TPUs,
sgl-project/sglang-jax python/sgl_jax/srt/server_args.py@ccda285a; SGLang's parser takes them
(docs/lab/exports_checked.json), no server was started with them. With `--enable-dp-attention` the
ranks of `--tp-size` each keep their own sequences and `--ep-size` cuts the experts over them: our
`expert`; limits are then the server's. Without it `--dp-size` copies the server, limits are each's.
`--mem-fraction-static` counts weights and cache, not the working memory.
"""

from collections.abc import Iterator
from typing import Any

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export.flags import Flags
from shardwise.planner.export.hardware import is_tpu
from shardwise.planner.export.notes import Fields, mesh_of
from shardwise.planner.export.server_flags import (
    DTYPES,
    LENGTHS,
    dtype_fields,
    longest,
    no_word,
    on_mesh,
    server_obstacles,
)
from shardwise.planner.export.server_program import (
    ALONE,
    PREFILL,
    HostWords,
    ServerPool,
    ServerProgram,
    spread_over_hosts,
)
from shardwise.plans.software import Obstacle

TARGET, VERSION = "sglang", "0.5.23"
ROLE = "--disaggregation-mode"
CACHES = {"bf16": "auto", "fp8": "fp8_e4m3"}
ORDERS = {"fcfs": "fcfs"}

STAGES = "--pp-size"
TENSOR, DATA, EXPERT, ATTENTION = "--tp-size", "--dp-size", "--ep-size", "--enable-dp-attention"
_KNOWN = (
    LENGTHS[TARGET],
    *(TENSOR, STAGES, DATA, EXPERT, ATTENTION, "--max-running-requests"),
    *("--chunked-prefill-size", "--page-size", "--mem-fraction-static", "--kv-cache-dtype"),
    *("--quantization", "--dtype", "--disable-radix-cache", "--schedule-policy"),
    *("--enable-mixed-chunk", "--speculative-algorithm", "--speculative-num-draft-tokens"),
    *("--disable-cuda-graph", ROLE),
)


def obstacles(pool: ServerPool, cfg: ModelConfig) -> Iterator[Obstacle]:
    """What it would run otherwise than the plan says."""
    plan, wanted = pool.plan, pool.plan.scheduling
    yield from server_obstacles(plan, cfg)
    yield from spread_over_hosts(pool)
    if wanted.policy == "static":
        yield no_word("scheduling.policy", wanted.policy, ("chunked", "interleaved"))
    if wanted.order not in ORDERS:
        yield no_word("scheduling.order", wanted.order, tuple(ORDERS))
    if is_tpu(pool.piece):
        yield from _on_tpus(pool)


def _on_tpus(pool: ServerPool) -> Iterator[Obstacle]:
    plan, wanted = pool.plan, pool.plan.scheduling
    if plan.degree("data") * plan.degree("expert") > 1:
        rule = "sglang-jax is exported with tensor alone"
        yield on_mesh(plan, rule, "plan with --for sglang, or export to vllm")
    if pool.role != ALONE:
        yield Obstacle(
            field="prefill_replicas",
            value=plan.prefill_replicas,
            rule="sglang-jax has no roles",
            remedy="plan with --pools one, or export to vllm",
        )
    if wanted.guesses:
        yield no_word("scheduling.guesses", wanted.guesses, (0,))
    if plan.prefill_chunk % wanted.page_size:
        size = wanted.page_size
        yield Obstacle(
            field="prefill_chunk",
            value=plan.prefill_chunk,
            rule=f"pages of {size} must fill it",
            remedy=f"set it to {-(-plan.prefill_chunk // size) * size}",
        )


def flags(pool: ServerPool, cfg: ModelConfig) -> dict[str, Any]:
    """The flags of one server."""
    plan, wanted = pool.plan, pool.plan.scheduling
    copies, experts = plan.degree("data"), plan.degree("expert")
    values: dict[str, Any] = {"--device": "tpu"} if is_tpu(pool.piece) else {}
    values[TENSOR] = plan.degree("tensor") * experts
    stages = plan.degree("stage")
    if stages > 1:
        values[STAGES] = stages
    if copies * experts > 1:
        values[DATA] = copies * experts
    if experts > 1:
        values |= {ATTENTION: "", EXPERT: experts}
    values |= {
        "--max-running-requests": -(-plan.batch // copies),
        "--chunked-prefill-size": -(-plan.prefill_chunk // (copies * stages)),
        "--page-size": wanted.page_size,
        "--mem-fraction-static": wanted.memory_share,
        "--kv-cache-dtype": CACHES[plan.dtypes.kv],
        "--dtype": DTYPES[plan.dtypes.activations],
        "--schedule-policy": ORDERS[wanted.order],
    }
    if length := longest(pool, cfg):
        values[LENGTHS[TARGET]] = length
    return values | _switches(pool)


def hosts(pool: ServerPool, words: HostWords) -> list[str]:
    """The flags of a server of several hosts."""
    where = f"--dist-init-addr={words.leader}:20000"
    return [f"--nnodes={pool.hosts}", f"--node-rank={words.rank}", where]


def _switches(pool: ServerPool) -> dict[str, Any]:
    plan, wanted, found = pool.plan, pool.plan.scheduling, {}
    if wanted.policy == "chunked":
        found["--enable-mixed-chunk"] = ""
    if not wanted.prefix_cache:
        found["--disable-radix-cache"] = ""
    if not wanted.graphs:
        found["--disable-cuda-graph"] = ""
    if plan.dtypes.weights == "fp8":
        found["--quantization"] = "fp8"
    if wanted.guesses:
        found["--speculative-algorithm"] = "NGRAM"
        # The draft tokens count the one that is sampled anyway.
        found["--speculative-num-draft-tokens"] = wanted.guesses + 1
    if pool.role != ALONE:
        found[ROLE] = pool.role
        found["--disaggregation-transfer-backend"] = "nixl"
    return found


def read(flags: Flags) -> Fields:
    """The fields that the flags say."""
    ranks, experts = flags.number(DATA, "1"), flags.number(EXPERT, "1")
    if (ATTENTION in flags) != (experts > 1) or (experts > 1 and ranks != experts):
        raise BadRequest(
            f"{TARGET}: {ATTENTION}, {DATA} {ranks} and {EXPERT} {experts} cannot be combined; a "
            "plan shards sequences and experts over the same ranks"
        )
    copies = 1 if experts > 1 else ranks
    if flags.get("--speculative-algorithm", "NGRAM") != "NGRAM":
        raise BadRequest(f"{TARGET}: a plan can express --speculative-algorithm NGRAM alone")
    return dtype_fields(flags, CACHES) | {
        "engine": TARGET,
        "kv_sharding": "heads",
        "mesh": mesh_of(
            {
                "stage": (stages := flags.number(STAGES, "1")),
                "data": copies,
                "expert": experts,
                "tensor": flags.number(TENSOR, "1") // experts,
            }
        ),
        "batch": copies * flags.number("--max-running-requests", "256"),
        "prefill_chunk": copies * stages * flags.number("--chunked-prefill-size", "8192"),
        "prefill_replicas": int(ROLE in flags),
        "scheduling.page_size": flags.number("--page-size", "1"),
        "scheduling.memory_share": flags.number("--mem-fraction-static", "0.9", float),
        "scheduling.graphs": "--disable-cuda-graph" not in flags,
        "scheduling.order": flags.word("--schedule-policy", ORDERS, "fcfs"),
        "scheduling.prefix_cache": "--disable-radix-cache" not in flags,
        "scheduling.policy": "chunked" if "--enable-mixed-chunk" in flags else "interleaved",
        "scheduling.guesses": flags.number("--speculative-num-draft-tokens", "1") - 1,
    }


def _command(piece: Slice, model: str) -> list[str]:
    """How it is started, and that it answers other hosts."""
    module = "sgl_jax.launch_server" if is_tpu(piece) else "sglang.launch_server"
    where = ["--host=0.0.0.0", "--port=8000", "--enable-metrics"]
    return ["python3", "-m", module, f"--model-path={model}", *where]


SGLANG = ServerProgram(
    name=TARGET,
    title="SGLang",
    command=_command,
    marks=("sglang.launch_server", "sgl_jax.launch_server"),
    obstacles=obstacles,
    flags=flags,
    read=read,
    known=_KNOWN,
    passed_over=(
        *("--model-path", "--device", "--host", "--port", "--nnodes", "--node-rank"),
        *("--dist-init-addr", "--disaggregation-transfer-backend"),
        "--disaggregation-bootstrap-port",
        *("--enable-metrics", "--trust-remote-code", "--served-model-name", "--api-key"),
        *("--tool-call-parser", "--reasoning-parser", "--chat-template", "--tokenizer-path"),
    ),
    # Spellings of sglang/srt/server_args.py, and the beginnings of them that people write.
    short={
        **dict.fromkeys(("--tp", "--tensor-parallel-size"), "--tp-size"),
        **dict.fromkeys(("--pp", "--pipeline-parallel-size"), "--pp-size"),
        **dict.fromkeys(("--dp", "--data-parallel-size"), "--dp-size"),
        **dict.fromkeys(("--ep", "--expert-parallel-size"), "--ep-size"),
    },
    hosts=hosts,
    environment=lambda _: {},
    router="python3 -m sglang_router.launch_router",
    two_pools="--pd-disaggregation",
    policies={
        "round_robin": "round_robin",
        "shortest_queue": "power_of_two",
        "prefix_aware": "cache_aware",
    },
    sidecar="sglang",
    bootstrap=8998,
    ports={PREFILL: {"--disaggregation-bootstrap-port": 8998}},
    package=lambda piece: None if is_tpu(piece) else f"sglang[all]=={VERSION}",
    image=lambda piece: None if is_tpu(piece) else f"lmsysorg/sglang:v{VERSION}",
)
"""SGLang; sglang-jax on TPUs has no release of its own to bring. Its router takes the shorter of
two queues."""
