"""A plan as `trtllm-serve`: one server of TensorRT-LLM's PyTorch backend, on the GPUs of one host.

Names and meanings are as read in NVIDIA/TensorRT-LLM tensorrt_llm/commands/serve.py@4c05a748 and
llmapi/llm_args.py of 1.2; no server was started with them. What the command has no flag for stands
in the YAML that `--extra_llm_api_options` reads, which the script hands it on its standard input. A
`kv_cache_config` there takes the place of the flags' whole one, so the memory share stands in it.
With `enable_attention_dp` the ranks of `--tp_size` keep their own sequences and `--ep_size` cuts
the experts over them: our `expert`; limits are then each rank's. Weights are served as the
checkpoint stores them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.boundary import parse_yaml, whole
from shardwise.errors import BadRequest, shown
from shardwise.models import ModelConfig
from shardwise.planner.export.flags import Flags
from shardwise.planner.export.notes import Fields, meant, mesh_of, number
from shardwise.planner.export.server_flags import (
    DTYPES,
    LENGTHS,
    longest,
    no_word,
    on_mesh,
    server_obstacles,
)
from shardwise.planner.export.server_program import ALONE, ServerPool, ServerProgram
from shardwise.plans.serve import CHECKPOINT
from shardwise.plans.servers import TRTLLM as ROW
from shardwise.plans.software import Obstacle

TARGET, VERSION = ROW.name, "1.2.0"
TENSOR, STAGES, EXPERT = "--tp_size", "--pp_size", "--ep_size"
SEQUENCES, TOKENS, CHUNKED = "--max_batch_size", "--max_num_tokens", "--enable_chunked_prefill"
SHARE, OPTIONS = "--kv_cache_free_gpu_memory_fraction", "--extra_llm_api_options"
CACHES = {"bf16": "auto", "fp8": "fp8"}
ADMISSIONS = {"optimistic": "MAX_UTILIZATION", "reserve": "GUARANTEED_NO_EVICT"}
_KNOWN = (LENGTHS[TARGET], TENSOR, STAGES, EXPERT, SEQUENCES, TOKENS, CHUNKED, SHARE, OPTIONS)


def obstacles(pool: ServerPool, cfg: ModelConfig) -> Iterator[Obstacle]:
    """What it would run otherwise than the plan says."""
    plan, wanted = pool.plan, pool.plan.scheduling
    yield from server_obstacles(plan, cfg, says=("admission", "weights"))
    if not ROW.runs_on(pool.piece.chip):
        rule = f"it runs on chips of {', '.join(ROW.vendors)}"
        yield Obstacle(field="slice", value=plan.slice, rule=rule, remedy="export to vllm")
    if pool.hosts > 1:
        rule = "a server of several hosts is started by mpirun or srun, not by this script"
        yield on_mesh(plan, rule, f"plan on {pool.piece.chip.chips_per_host} chips or fewer")
    if pool.role != ALONE:
        yield Obstacle(
            field="prefill_replicas",
            value=plan.prefill_replicas,
            rule="the script starts servers that both prefill and decode",
            remedy="plan with --pools one, or export to vllm or sglang",
        )
    if plan.degree("data") > 1:
        yield on_mesh(plan, "it has no replicas in one server", "set data to 1")
    if wanted.admission not in ADMISSIONS:
        yield no_word("scheduling.admission", wanted.admission, tuple(ADMISSIONS))
    if wanted.policy != "chunked":
        yield no_word("scheduling.policy", wanted.policy, ("chunked",))
    if wanted.order != "fcfs":
        yield no_word("scheduling.order", wanted.order, ("fcfs",))
    if wanted.page_size & (wanted.page_size - 1):
        yield no_word("scheduling.page_size", wanted.page_size, (32, 64, 128))


def flags(pool: ServerPool, cfg: ModelConfig) -> dict[str, Any]:
    """The flags of one server."""
    plan = pool.plan
    experts, stages = plan.degree("expert"), plan.degree("stage")
    values: dict[str, Any] = {TENSOR: plan.degree("tensor") * experts}
    if stages > 1:
        values[STAGES] = stages
    if experts > 1:
        values[EXPERT] = experts
    values |= {
        SEQUENCES: -(-plan.batch // experts),
        TOKENS: -(-plan.prefill_chunk // (experts * stages)),
    }
    if length := longest(pool, cfg):
        values[LENGTHS[TARGET]] = length
    return values | {CHUNKED: ""}


def options(pool: ServerPool) -> dict[str, Any]:
    """What stands in the YAML."""
    plan, wanted = pool.plan, pool.plan.scheduling
    found: dict[str, Any] = {
        "dtype": DTYPES[plan.dtypes.activations],
        "kv_cache_config": {
            "free_gpu_memory_fraction": wanted.memory_share,
            "dtype": CACHES[plan.dtypes.kv],
            "enable_block_reuse": wanted.prefix_cache,
            "tokens_per_block": wanted.page_size,
        },
        "scheduler_config": {"capacity_scheduler_policy": ADMISSIONS[wanted.admission]},
    }
    if plan.degree("expert") > 1:
        found["enable_attention_dp"] = True
    if not wanted.graphs:
        found["cuda_graph_config"] = None
    if wanted.guesses:
        found["speculative_config"] = {"decoding_type": "NGram", "max_draft_len": wanted.guesses}
    return found


def read(flags: Flags) -> Fields:
    """The fields that the flags and the YAML say."""
    said = _options(flags)
    cache, order = (_table(said, key) for key in ("kv_cache_config", "scheduler_config"))
    experts, tensor = flags.number(EXPERT, "1"), flags.number(TENSOR, "1")
    stages = flags.number(STAGES, "1")
    apart = bool(said.get("enable_attention_dp"))
    if apart != (experts > 1) or (apart and experts != tensor):
        raise BadRequest(
            f"{TARGET}: {TENSOR} {tensor}, {EXPERT} {experts} and enable_attention_dp "
            f"{str(apart).lower()} cannot be combined; a plan shards sequences and experts over "
            "the same ranks"
        )
    policy = str(order.get("capacity_scheduler_policy", "GUARANTEED_NO_EVICT"))
    share = cache.get("free_gpu_memory_fraction", flags.get(SHARE, "0.9"))
    return {
        "engine": TARGET,
        "kv_sharding": "heads",
        "mesh": mesh_of({"stage": stages, "expert": experts, "tensor": tensor // experts}),
        "batch": experts * flags.number(SEQUENCES, "2048"),
        "prefill_chunk": experts * stages * flags.number(TOKENS, "8192"),
        "dtypes.kv": meant(TARGET, "dtype", str(cache.get("dtype", "auto")), CACHES),
        "dtypes.matmuls": "stored",
        "dtypes.activations": meant(TARGET, "dtype", str(said.get("dtype", "bfloat16")), DTYPES),
        "scheduling.page_size": whole(
            cache.get("tokens_per_block", 32), f"{TARGET}: tokens_per_block", least=1, most=2**20
        ),
        "scheduling.memory_share": number(TARGET, "free_gpu_memory_fraction", str(share), float),
        "scheduling.prefix_cache": cache.get("enable_block_reuse", True) is not False,
        "scheduling.admission": meant(TARGET, "capacity_scheduler_policy", policy, ADMISSIONS),
        "scheduling.policy": "chunked",
        "scheduling.graphs": said.get("cuda_graph_config", {}) is not None,
        "scheduling.guesses": _guesses(said),
    }


def _options(flags: Flags) -> Mapping[str, Any]:
    """The YAML, which the reader of a script puts in the place of its file's name."""
    text = flags.get(OPTIONS)
    found = parse_yaml(text, f"{TARGET}: {OPTIONS}") if "\n" in text else {}
    if text and not (found and isinstance(found, dict)):
        raise BadRequest(
            f"{TARGET}: {OPTIONS} is {shown(text)}, and the text does not hold that file; write "
            f"{OPTIONS}=/dev/stdin <<'OPTIONS', the file's lines below it, and OPTIONS at the end"
        )
    return found


def _table(said: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping of the YAML; BadRequest where it is none."""
    found = said.get(key) or {}
    if not isinstance(found, dict):
        raise BadRequest(f"{TARGET}: {key} is {shown(found)}; it is a mapping of keys to values")
    return found


def _guesses(said: Mapping[str, Any]) -> int:
    guess = _table(said, "speculative_config")
    if guess and guess.get("decoding_type") != "NGram":
        raise BadRequest(
            f"{TARGET}: speculative_config is {shown(guess)}; a plan can express decoding_type "
            "NGram with max_draft_len"
        )
    what = f"{TARGET}: max_draft_len"
    return whole(guess.get("max_draft_len"), what, least=1, most=1024) if guess else 0


TRTLLM = ServerProgram(
    name=TARGET,
    title=ROW.title,
    command=lambda _, model: ["trtllm-serve", model, "--host=0.0.0.0", "--port=8000"],
    marks=("trtllm-serve",),
    obstacles=obstacles,
    flags=flags,
    read=read,
    known=_KNOWN,
    passed_over=("--host", "--port", "--backend", "--log_level", "--trust_remote_code"),
    hosts=lambda pool, words: [],
    environment=lambda _: {},
    router="",
    two_pools="",
    policies={},
    sidecar="",
    package=lambda _: f"tensorrt-llm=={VERSION}",
    image=lambda _: f"nvcr.io/nvidia/tensorrt-llm/release:{VERSION}",
    options_flag=OPTIONS,
    options=options,
    lost={
        "dtypes.weights": f"MODEL must be a checkpoint that stores them so; it serves {CHECKPOINT}s"
    },
)
"""TensorRT-LLM; its own router wants two pools, so several servers get any that there is."""
