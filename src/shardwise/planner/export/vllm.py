"""A plan as `vllm serve`: one server, on its own devices.

Names and meanings of the flags are as read in docs.vllm.ai (engine arguments) and
vllm/engine/arg_utils.py of vLLM 0.32.0, whose parser takes them (docs/lab/exports_checked.json); no
server was started with them. Limits on sequences and tokens are per data-parallel rank. With
`--enable-expert-parallel` experts are cut over tensor x data ranks, attention of a rank sees its
own sequences: our `expert`. Without it data parallelism copies a dense model, and cuts the experts
of others. On TPUs one engine drives all devices: there our `expert` is `enable_dp_attention`, and
limits are of all ranks together (vllm-project/tpu-inference@011b7dbd
tpu_inference/layers/common/sharding.py). Both roles of disaggregated serving take the same flags; a
router gives them out.
"""

import json
from collections.abc import Iterator
from typing import Any

from shardwise.boundary import parse_json, whole
from shardwise.errors import BadRequest, shown
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
    DECODE,
    PREFILL,
    HostWords,
    ServerPool,
    ServerProgram,
    spread_over_hosts,
)
from shardwise.plans.software import Obstacle

TARGET, VERSION = "vllm", "0.32.0"
BLOCKS = (1, 8, 16, 32, 64, 128)
"""Page sizes that `--block-size` takes."""

ORDERS = {"fcfs": "fcfs", "priority": "priority"}
CACHES = {"bf16": "auto", "fp8": "fp8"}
TRANSFER = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
TPU_TRANSFER = json.dumps(
    {
        "kv_connector": "TPUConnector",
        "kv_connector_module_path": "tpu_inference.distributed.tpu_connector",
        "kv_role": "kv_both",
    }
)

TENSOR, STAGES, DATA, EXPERT, OF_TPUS = (
    *("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"),
    *("--enable-expert-parallel", "--additional-config"),
)
_KNOWN = (
    LENGTHS[TARGET],
    *(
        TENSOR,
        STAGES,
        DATA,
        EXPERT,
        OF_TPUS,
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--block-size",
    ),
    *("--gpu-memory-utilization", "--kv-cache-dtype", "--quantization", "--dtype"),
    *("--enable-prefix-caching", "--no-enable-prefix-caching", "--scheduling-policy"),
    *("--speculative-config", "--kv-transfer-config", "--enable-chunked-prefill"),
    "--enforce-eager",
)


def obstacles(pool: ServerPool, cfg: ModelConfig) -> Iterator[Obstacle]:
    """What it would run otherwise than the plan says."""
    plan, wanted = pool.plan, pool.plan.scheduling
    yield from server_obstacles(plan, cfg)
    yield from spread_over_hosts(pool)
    if wanted.policy != "chunked":
        yield no_word("scheduling.policy", wanted.policy, ("chunked",))
    if wanted.page_size not in BLOCKS:
        yield no_word("scheduling.page_size", wanted.page_size, BLOCKS)
    if wanted.order not in ORDERS:
        yield no_word("scheduling.order", wanted.order, tuple(ORDERS))
    if plan.degree("data") > 1 and cfg.has_experts:
        rule = "data parallelism in vLLM shards experts and does not replicate them"
        yield on_mesh(plan, rule, "set data to 1, or shard experts")
    elif plan.degree("data") > 1 and is_tpu(pool.piece):
        rule = "on TPUs its limits apply to all replicas together"
        remedy = f"set data to 1 and replicas to {plan.degree('data') * plan.replicas}"
        yield on_mesh(plan, rule, remedy)


def flags(pool: ServerPool, cfg: ModelConfig) -> dict[str, Any]:
    """The flags of one server."""
    plan, wanted = pool.plan, pool.plan.scheduling
    experts, ranks = plan.degree("expert"), plan.degree("data") * plan.degree("expert")
    values: dict[str, Any] = {TENSOR: plan.degree("tensor")}
    stages = plan.degree("stage")
    if stages > 1:
        values[STAGES] = stages
    if experts > 1 and is_tpu(pool.piece):  # one engine for all: its limits are of them together
        values[TENSOR], ranks = experts, 1
        apart = {"enable_dp_attention": True, "attn_dp_size": experts}
        values[OF_TPUS] = json.dumps({"sharding": {"sharding_strategy": apart}})
    if ranks > 1:
        values[DATA] = ranks
    if experts > 1:
        values[EXPERT] = ""
    values |= {
        "--max-num-seqs": -(-plan.batch // ranks),
        "--max-num-batched-tokens": -(-plan.prefill_chunk // (ranks * stages)),
        "--block-size": wanted.page_size,
        "--gpu-memory-utilization": wanted.memory_share,
        "--kv-cache-dtype": CACHES[plan.dtypes.kv],
        "--dtype": DTYPES[plan.dtypes.activations],
        "--scheduling-policy": ORDERS[wanted.order],
        "--enable-chunked-prefill": "",
    }
    if length := longest(pool, cfg):
        values[LENGTHS[TARGET]] = length
    if plan.dtypes.weights == "fp8":
        values["--quantization"] = "fp8"
    values["--enable-prefix-caching" if wanted.prefix_cache else "--no-enable-prefix-caching"] = ""
    if not wanted.graphs:
        values["--enforce-eager"] = ""
    if wanted.guesses:
        guess = {"method": "ngram", "num_speculative_tokens": wanted.guesses}
        values["--speculative-config"] = json.dumps(guess)
    if pool.role != ALONE:
        values["--kv-transfer-config"] = TPU_TRANSFER if is_tpu(pool.piece) else TRANSFER
    return values


def hosts(pool: ServerPool, words: HostWords) -> list[str]:
    """The flags of a server of several hosts; on TPUs Ray joins them."""
    if is_tpu(pool.piece):
        return ["--distributed-executor-backend=ray"]
    found = [f"--nnodes={pool.hosts}", f"--node-rank={words.rank}", f"--master-addr={words.leader}"]
    if pool.plan.degree("tensor") * pool.plan.degree("stage") < pool.plan.devices:
        found.append(f"--data-parallel-address={words.leader}")
    return [*found, words.others]


def environment(pool: ServerPool) -> dict[str, str]:
    """What tpu-inference reads: that Ray joins hosts, and that attention is cut by sequences."""
    if not is_tpu(pool.piece):
        return {}
    found = {"TPU_MULTIHOST_BACKEND": "ray"} if pool.hosts > 1 else {}
    return found | ({"NEW_MODEL_DESIGN": "1"} if pool.plan.degree("expert") > 1 else {})


def read(flags: Flags) -> Fields:
    """The fields that the flags say."""
    ranks, cut = flags.number(DATA, "1"), EXPERT in flags
    tensor, stages = flags.number(TENSOR, "1"), flags.number(STAGES, "1")
    mesh = {"expert": ranks * tensor} if cut else {"data": ranks, "tensor": tensor}
    mesh = {"stage": stages, **mesh}
    return dtype_fields(flags, CACHES) | {
        "engine": TARGET,
        "mesh": mesh_of(mesh),
        "kv_sharding": "heads",
        "batch": ranks * flags.number("--max-num-seqs", "256"),
        "prefill_chunk": ranks * stages * flags.number("--max-num-batched-tokens", "8192"),
        "prefill_replicas": int("--kv-transfer-config" in flags),
        "scheduling.page_size": flags.number("--block-size", "16"),
        "scheduling.memory_share": flags.number("--gpu-memory-utilization", "0.92", float),
        "scheduling.graphs": "--enforce-eager" not in flags,
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
            f"{TARGET}: --speculative-config is {shown(text)}; a plan can express method ngram "
            "with num_speculative_tokens"
        )
    what = f"{TARGET}: num_speculative_tokens"
    return whole(held["num_speculative_tokens"], what, least=1, most=1024)


VLLM = ServerProgram(
    name=TARGET,
    title="vLLM",
    command=lambda _, model: ["vllm", "serve", model],
    marks=("vllm serve", "vllm.entrypoints.openai.api_server"),
    obstacles=obstacles,
    flags=flags,
    read=read,
    known=_KNOWN,
    short={
        "-tp": TENSOR,
        "-dp": DATA,
        "-pp": STAGES,
        "-ep": EXPERT,
        "-dcp": "--decode-context-parallel-size",
        "-pcp": "--prefill-context-parallel-size",
        "-dpa": "--data-parallel-address",
        "-dpb": "--data-parallel-backend",
        "-dpl": "--data-parallel-size-local",
        "-dpn": "--data-parallel-rank",
        "-dpp": "--data-parallel-rpc-port",
        "-dpr": "--data-parallel-start-rank",
        "-n": "--nnodes",
        "-r": "--node-rank",
        "-q": "--quantization",
        "-sc": "--speculative-config",
        "-cc": "--compilation-config",
        "-ac": "--attention-config",
        "-O": "--optimization-level",
    },
    passed_over=(
        *("--port", "--host", "--nnodes", "--node-rank", "--master-addr", "--headless"),
        *("--data-parallel-address", "--distributed-executor-backend", "--model", "--tokenizer"),
        *("--served-model-name", "--trust-remote-code", "--api-key", "--chat-template"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser"),
    ),
    hosts=hosts,
    environment=environment,
    router="vllm-router",
    two_pools="--vllm-pd-disaggregation",
    policies={
        "round_robin": "round_robin",
        "shortest_queue": "power_of_two",
        "bounded_hash": "consistent_hash",
        "prefix_aware": "cache_aware",
    },
    sidecar="nixlv2",
    ports={role: {"VLLM_NIXL_SIDE_CHANNEL_PORT": 5600} for role in (PREFILL, DECODE)},
    package=lambda piece: f"{'vllm-tpu' if is_tpu(piece) else 'vllm'}=={VERSION}",
    image=lambda piece: f"vllm/{'vllm-tpu' if is_tpu(piece) else 'vllm-openai'}:v{VERSION}",
)
"""vLLM, on TPUs with tpu-inference. Its router takes the shorter of two queues."""
