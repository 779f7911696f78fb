"""Fields of a plan from Megatron-LM's arguments; what they leave out is Megatron's default."""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import lcm, prod

from shardwise.errors import BadRequest, Gives, Lacking
from shardwise.hardware import parse_slice
from shardwise.hardware.catalogue import chip_ids
from shardwise.models.remat import REMAT_POLICIES
from shardwise.planner.export.flags import Flags, arguments_of, launched
from shardwise.planner.export.hardware import slice_fields
from shardwise.planner.export.megatron import ITERATION, PIECES, WHOLE, WORDS
from shardwise.planner.export.megatron_former import of_today
from shardwise.planner.export.megatron_hybrid import PATTERN, with_layers
from shardwise.planner.export.megatron_shape import is_gated
from shardwise.planner.export.megatron_yaml import (
    around,
    in_full,
    is_override,
    overrides_of,
    recipe_of,
)
from shardwise.planner.export.neox import REFUSED
from shardwise.planner.export.notes import Fields, meant, mesh_of, placed, whole
from shardwise.plans.software.megatron import MEGATRON, MODULES, MOMENTS, RECIPES, WHOLE_MODULES
from shardwise.plans.stacks import OVERLAPPED, stack_row
from shardwise.plans.train import STORAGE_AXES

TARGET = "megatron"
GPU = "--gpu"
"""Megatron-Bridge's flag of a chip (scripts/performance)."""


def read(text: str, devices: int | None = None) -> Fields:
    """The fields that the arguments say; `devices` is how many there are where torchrun's words do
    not say it."""
    return fields_of(parsed(text), devices)


def fields_of(given: Flags, devices: int | None) -> Fields:
    """As `read`, of the flags of a text."""
    if REFUSED in given:
        raise BadRequest(given.given[REFUSED])
    for flag in ("--tuner-type", "--train-type"):
        given.word(flag, {"full": "full"}, "full")
    said: Fields = {"software": TARGET, "stack": MEGATRON.stack}
    said |= _read_mesh(given, _world(given, devices))
    said |= _read_batch(given, said["mesh"]) | _read_stages(given, said["mesh"].get("stage", 1))
    said |= _read_memory(given) | _read_dtypes(given)
    said |= {
        "sequence_parallel": "--sequence-parallel" in given,
        "attention_kernel": kernel_of(given),
        "optimizer": given.word("--optimizer", WORDS["optimizer"], "adam"),
        "cuda_graph": _read_graphs(given),
        "offload_optimizer": "--optimizer-cpu-offload" in given,
        "mtp_layers": given.number("--mtp-num-layers", "0"),
        "weight_gather": "per_pass",
        "gradient_reduce": "per_microbatch",
        "lora_rank": 0,
        "frozen": [],
    }
    said |= _read_overlap(given, said) | _machines(given)
    if "--no-gradient-accumulation-fusion" in given:
        said["gradient_accumulation"] = "separate"
    if "context" in said["mesh"]:
        word = given.get("--cp-comm-type", "p2p").replace("allgather", "all_gather")
        said["context_method"] = meant(TARGET, "--cp-comm-type", word, WORDS["context_method"])
    if "--num-experts" in given:
        capacity = "--moe-expert-capacity-factor"
        said["expert_dispatch"] = "dense" if capacity in given else "ragged"
        if capacity in given:
            said["expert_capacity"] = given.number(capacity, kind=float)
        said |= _read_dispatcher(given, ragged=said["expert_dispatch"] == "ragged")
    return said


def _machines(given: Flags) -> Fields:
    """The slice of Megatron-Bridge's `--gpu` and how many there are, where both are known."""
    kind, many = given.given.get(GPU, ""), given.given.get("--nproc-per-node", "")
    known = kind.lower() in chip_ids() and many.isdigit() and "--nnodes" not in given
    return slice_fields(parse_slice(f"{kind.lower()}:{many}")) if known else {}


def _read_overlap(given: Flags, said: Fields) -> Fields:
    """Whose transfers run beside compute, where the flags say less than Megatron's row has: those
    of gradients and of tensor wait unless a flag says otherwise, those of chunks do not."""
    mesh: Mapping[str, int] = said["mesh"]
    waits = set()
    copied = any(mesh.get(axis, 1) > 1 for axis in ("data", *STORAGE_AXES))
    if copied and "--overlap-grad-reduce" not in given:
        waits.add("data")
    if "tensor" in mesh and said["sequence_parallel"] and "--tp-comm-overlap" not in given:
        waits.add("tensor")
    if said["virtual_stages"] > 1 and "--no-overlap-p2p-communication" in given:
        waits.add("pipeline")
    beside = [name for name in OVERLAPPED if name in stack_row(MEGATRON.stack).overlap - waits]
    return {"overlap": beside} if waits else {}


def _read_dispatcher(given: Flags, *, ragged: bool) -> Fields:
    """What sends tokens to experts: nothing where no flag says it, or slots are filled."""
    kind = "--moe-token-dispatcher-type"
    if given.word(kind, {"alltoall": "alltoall", "flex": "flex"}, "alltoall") == "flex":
        flag, words = "--moe-flex-dispatcher-backend", WORDS["dispatcher"]
        return {"dispatcher": given.word(flag, words, "deepep")}
    return {"dispatcher": "alltoall"} if ragged and kind in given else {}


def _read_graphs(given: Flags) -> list[str]:
    """What CUDA graphs capture; nothing without an implementation of them."""
    known = {word: word for word in ("none", "local", "transformer_engine", "full_iteration")}
    if given.word("--cuda-graph-impl", known, "none") == "none":
        return []
    scopes = given.get("--cuda-graph-scope", WHOLE).split()
    return [WHOLE if scope == ITERATION else scope for scope in scopes]


def _world(given: Flags, devices: int | None) -> int:
    """How many devices there are, as told or by the launcher; BadRequest where neither says it, or
    they differ. A script of one node whose degrees need more is for the devices told."""
    words = [given.given.get(name, "") for name in ("--nnodes", "--nproc-per-node")]
    if devices is not None and not all(word.isdigit() for word in (words[0] or "1", words[1])):
        return devices  # variables of a launcher
    if devices is None and not all(word.isdigit() for word in (words[0] or "1", words[1])):
        raise Lacking(
            f"{TARGET}: the arguments do not give the number of devices",
            "give the slice with --on, or torchrun's --nnodes and --nproc-per-node",
            Gives.SLICE,
        )
    world = given.count("--nnodes", "1") * given.count("--nproc-per-node")
    tensor = given.count("--tensor-model-parallel-size", "1")
    experts = given.count("--expert-model-parallel-size", "1")
    experts *= _expert_tensor(given, tensor)
    dense = prod(given.count(flag, "1") for flag in _INNER)
    inner = lcm(dense, experts * given.count("--pipeline-model-parallel-size", "1"))
    if devices is None and world % inner:
        raise Lacking(
            f"{TARGET}: the script starts {world} processes, and its degrees need {inner} or a "
            "multiple",
            f"give the slice with --on, or degrees ({', '.join(_INNER)}, of experts) that fit",
            Gives.SLICE,
        )
    if devices not in (None, world) and world % inner == 0:
        raise BadRequest(
            f"{TARGET}: torchrun's --nnodes and --nproc-per-node make {world} devices and the "
            f"slice has {devices}; make them equal"
        )
    return devices or world


_INNER = (
    *("--tensor-model-parallel-size", "--pipeline-model-parallel-size"),
    "--context-parallel-size",
)
"""Degrees whose product divides the number of devices."""


def parsed(text: str) -> Flags:
    """Flags of a command: `--flag value...` or `--flag=value`; the values joined by spaces. Those
    of its launcher are torchrun's. Of a YAML recipe, its keys. Programs around Megatron write
    flags with underscores, and `section.key=value`."""
    own = as_spelt(text)
    return of_spelt(own)


_FLAT = ("--micro_batch_size", "--global_batch_size", "--model_recipe_name")
"""Flags by which a program is known that writes underscores."""


def of_spelt(own: Flags) -> Flags:
    """The arguments as Megatron-LM of today would have them said."""
    return replace(own, given=with_layers(of_today(own.given)))


def as_spelt(text: str) -> Flags:
    """As `parsed`, former spellings as they stand."""
    if (recipe := recipe_of(text)) is not None:
        return Flags(TARGET, recipe)
    launch = launched(TARGET, text)
    counts = {"--nnodes": launch.nodes, "--nproc-per-node": launch.each} if launch else {}
    given = {name: value for name, value in counts.items() if value}
    flag, arguments = "", in_full(arguments_of(TARGET, text))
    flat = any(word.startswith(_FLAT) for word in arguments)
    given |= overrides_of(arguments)
    for word in arguments:
        if is_override(word):
            flag = ""
        elif word.startswith("--"):
            flag, _, value = word.partition("=")
            flag = flag.replace("_", "-") if flat else flag
            given[flag] = value
        elif flag and not (given[flag] and word[:1] == "$" and launch and word[1:] in launch.unset):
            given[flag] = f"{given[flag]} {word}".strip()  # one without a value is none (told)
    own = around(given) if flat or any(map(is_override, arguments)) else given
    return Flags(TARGET, own, launch.unset if launch else ())


def _expert_tensor(given: Flags, tensor: int) -> int:
    """How often an expert's matrices are cut: as others where nobody says it, and not at all in
    the recipes of Megatron-Bridge, all of which say 1 (src/megatron/bridge/recipes)."""
    if "--num-experts" not in given and given.count("--expert-model-parallel-size", "1") == 1:
        return tensor  # which a dense model has no use for
    named = any(flag in given for flag in ("--recipe", "--model-recipe-name"))
    return given.count("--expert-tensor-parallel-size", "1" if named else str(tensor))


def _read_mesh(given: Flags, world: int) -> Fields:
    tensor = given.count("--tensor-model-parallel-size", "1")
    stage = given.count("--pipeline-model-parallel-size", "1")
    context = given.count("--context-parallel-size", "1")
    ep = given.count("--expert-model-parallel-size", "1")
    etp = _expert_tensor(given, tensor)
    spans = etp == 1 and tensor > 1
    expert = whole(TARGET, "EP over the tensor axis", ep / tensor) if spans else ep
    if not spans and etp != tensor:
        raise BadRequest(
            f"{TARGET}: --expert-tensor-parallel-size is {etp}; a plan has 1 or tensor={tensor}"
        )
    data = whole(
        TARGET, f"DP / EP, of {world} devices,", world / (tensor * stage * context * expert)
    )
    stored = _strategy(given) == PIECES
    outer = given.count("--num-distributed-optimizer-instances", "1") if stored else data
    fsdp = whole(TARGET, "DP / EP / optimizer instances", data / outer)
    mesh = {"stage": stage, "data": outer, "fsdp": fsdp, "expert": expert}
    mesh |= {"context": context, "tensor": tensor}
    return {
        "mesh": mesh_of(mesh),
        "expert_over_tensor": spans,
        "storage_axes": list(STORAGE_AXES) if stored else ["fsdp"],
        "zero": _read_zero(given, stored),
    }


def _read_zero(given: Flags, stored: bool) -> int:
    if stored:
        return given.word("--outer-dp-sharding-strategy", WORDS["zero"], "no_shard")
    if _strategy(given) == WORDS["zero"][2]:
        return 2
    return int("--use-distributed-optimizer" in given)


def _strategy(given: Flags) -> str:
    """What Megatron-FSDP, or PyTorch's, stores in pieces; "" where neither runs."""
    if "--use-torch-fsdp2" in given:
        return PIECES
    if "--use-megatron-fsdp" not in given:
        return ""
    return given.get("--data-parallel-sharding-strategy", PIECES)


def kernel_of(given: Flags) -> str:
    """The attention kernel; what Megatron chooses itself, fused or flash, is flash here."""
    word = given.get("--attention-backend", "auto")
    if word in ("auto", "fused"):
        return "flash"
    return given.word("--attention-backend", WORDS["attention_kernel"])


def _read_batch(given: Flags, mesh: Mapping[str, int]) -> Fields:
    shards = prod(mesh.get(axis, 1) for axis in ("data", "fsdp", "expert"))
    micro = given.count("--micro-batch-size")
    each = micro * shards
    usual = each * given.count("--gradient-accumulation-steps", "1")  # of GPT-NeoX
    batch = given.count("--global-batch-size", str(usual))
    rounds = f"--global-batch-size {batch} / (--micro-batch-size {micro} x {shards} data ranks),"
    return {
        "global_batch_sequences": batch,
        "sequence_length": given.count("--seq-length"),
        "microbatches": whole(TARGET, f"the number of microbatches, {rounds}", batch / each),
    }


def _read_stages(given: Flags, stages: int) -> Fields:
    virtual = given.count("--num-virtual-stages-per-pipeline-rank", "1")
    schedule = "interleaved" if virtual > 1 else "1f1b"
    if "--num-layers" not in given and not any(flag in given for flag in _SPLITS):
        piped = {"pipeline_schedule": schedule} if stages > 1 else {}
        return {"virtual_stages": virtual, **piped}  # of the layers that the model has
    layers = given.count("--num-layers")
    if max(layers, stages * virtual) > MOST_LAYERS:
        raise BadRequest(f"{TARGET}: more than {MOST_LAYERS:,} layers or chunks; correct the flags")
    ends = [int(f"--account-for-{end}-in-pipeline-split" in given) for end in ("embedding", "loss")]
    first, last = (given.number(f"--decoder-{end}-pipeline-num-layers", "0") for end in _ENDS)
    if "--num-layers-per-virtual-pipeline-stage" in given:
        inner = given.count("--num-layers-per-virtual-pipeline-stage")
        inside, own = layers - first - last, stages - bool(first) - bool(last)
        counted = (inside + sum(ends)) / (max(own, 1) * inner)
        virtual = whole(TARGET, "the number of virtual stages", counted)
    if "--pipeline-model-parallel-layout" in given:
        sizes = _read_layout(given.get("--pipeline-model-parallel-layout"))
        virtual = whole(TARGET, "the layout's chunks per stage", len(sizes) / stages)
        per_stage = [sum(sizes[stage::stages]) for stage in range(stages)]  # chunks in turn
    else:
        inside, own = layers - first - last, max(stages - bool(first) - bool(last), 1)
        if (inside + sum(ends)) % (own * virtual):
            raise BadRequest(_uneven(layers, stages, virtual, (inside + sum(ends)) / own))
        each = (inside + sum(ends)) // own
        per_stage = [*[first] * bool(first), *[each] * own, *[last] * bool(last)]
        per_stage[0] -= ends[0]
        per_stage[-1] -= ends[1]
    if sum(per_stage) != layers:
        total = sum(per_stage)
        raise BadRequest(
            f"{TARGET}: the stages have {total} layers, --num-layers {layers}; make them equal"
        )
    said: Fields = {"layers_per_stage": per_stage, "virtual_stages": virtual}
    if stages > 1:
        said["pipeline_schedule"] = "interleaved" if virtual > 1 else "1f1b"
    return said


def _uneven(layers: int, stages: int, virtual: int, each: float) -> str:
    """The sentence for layers that do not come out even, which Megatron-LM refuses, too."""
    chunks = f" of {virtual} chunks" if virtual > 1 else ""
    return (
        f"{TARGET}: --num-layers {layers} over --pipeline-model-parallel-size {stages} makes "
        f"{each:g} layers a stage{chunks}, which must be a whole number; give stages that divide "
        "the layers, or say which have fewer: --decoder-first-pipeline-num-layers, "
        "--decoder-last-pipeline-num-layers, --account-for-embedding-in-pipeline-split, "
        "--account-for-loss-in-pipeline-split, or a --pipeline-model-parallel-layout"
    )


_ENDS = ("first", "last")
_SPLITS = (
    *("--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-layout"),
    *(f"--decoder-{end}-pipeline-num-layers" for end in _ENDS),
    *("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"),
)
"""Arguments about how many layers a stage holds."""
MOST_LAYERS = 10_000
"""As a config.json may say (`models/reader.py`)."""


def _read_layout(text: str) -> list[int]:
    """Layers of every chunk of a layout such as `Et*3|t*2|t*2L` or `Et|(tt|)*30L`."""
    sizes = []
    whole_text = re.sub(r"\(([^()]{1,40})\)\*(\d{1,3})", lambda m: m[1] * int(m[2]), text)
    for chunk in whole_text.split("|"):
        found = re.findall(r"t(?:\*(\d{1,6}))?", chunk)
        sizes.append(sum(int(times or 1) for times in found))
    return sizes


def _read_memory(given: Flags) -> Fields:
    granularity = given.get("--recompute-granularity", "none")
    whole_layers = {"none": "none", "full": "block"}
    words = {word: word for word in (*whole_layers, "selective")}
    if meant(TARGET, "--recompute-granularity", granularity, words) in whole_layers:
        return {"remat": whole_layers[granularity], "remat_kinds": {}}
    modules = given.get("--recompute-modules", "core_attn").split()
    again = [kind for module in modules for kind in _recomputed(given, module)]
    kinds = dict.fromkeys(again, "recompute")
    whole_policy = {policy: placed(policy, {}) for policy in REMAT_POLICIES}
    for policy, places in whole_policy.items():
        if places == placed("none", kinds):
            return {"remat": policy, "remat_kinds": {}}
    return {"remat": "none", "remat_kinds": kinds}


def _recomputed(given: Flags, module: str) -> tuple[str, ...]:
    """Kinds of activations that go with a module."""
    if module in _few(given):
        return ()
    words = {word: (kind,) for kind, word in MODULES.items()} | WHOLE_MODULES
    return words[meant(TARGET, "--recompute-modules", module, {word: word for word in words})]


def _few(given: Flags) -> tuple[str, ...]:
    """Modules that hold little, as few layers have them, or all tokens share them."""
    return ("mlp", "shared_experts") if "--num-experts" in given else ("shared_experts",)


def read_nearly(given: Flags) -> list[str]:
    """A line for each argument that is read as something near it."""
    said = []
    if "--recompute-method" in given and given.given["--recompute-method"] == "block":
        layers = given.given.get("--recompute-num-layers", "some")
        said.append(
            f"--recompute-method block recomputes {layers} layers of each stage and keeps the "
            "others whole; read as all of them, which takes less memory and more time"
        )
    if "--use-torch-fsdp2" in given:
        said.append(
            "--use-torch-fsdp2 is read as --use-megatron-fsdp, which sends and stores alike"
        )
    said += [
        f"{flag}: the batch grows; a step is read at its largest, --global-batch-size"
        for flag in ("--rampup-batch-size", "--step-batch-size-schedule")
        if flag in given
    ]
    square = given.given.get("--exp-avg-sq-dtype", moments := given.get("--exp-avg-dtype", "fp32"))
    if square != moments:
        said.append(f"--exp-avg-sq-dtype {square}: both moments are read as {moments}")
    built = "--num-experts" in given and "--num-layers" in given and PATTERN not in given
    if built and not is_gated(given):
        said.append("neither --swiglu nor --quick-geglu is given: experts are read as with a gate")
    modules = given.given.get("--recompute-modules", "").split()
    if few := [module for module in modules if module in _few(given)]:
        said.append(f"--recompute-modules {' '.join(few)}: read as kept, as it holds little")
    gathers, reduces = (f"--overlap-{what}" in given for what in ("param-gather", "grad-reduce"))
    if reduces and not gathers and "--use-distributed-optimizer" in given:
        said.append("--overlap-param-gather is not given; weights are read as gathered beside math")
    return said


def _read_dtypes(given: Flags) -> Fields:
    mixed = {"--bf16": "bf16", "--fp16": "f16"}
    kind = next((dtype for flag, dtype in mixed.items() if flag in given), "f32")
    compute, param = kind, kind
    if "--fp8-format" in given:
        given.word("--fp8-format", {"hybrid": "hybrid", "e4m3": "e4m3"})
        recipe = given.get("--fp8-recipe", "delayed")
        scaled = recipe in ("tensorwise", "blockwise")  # by the tensor as it is, or by blocks
        compute = "fp8" if scaled else given.word("--fp8-recipe", RECIPES, "delayed")
        param = compute if "--fp8-param-gather" in given else kind
    if "--fp4-format" in given:
        compute = given.word("--fp4-recipe", {"nvfp4": "nvfp4"}, "nvfp4")
    moments = given.word("--exp-avg-dtype", MOMENTS, "fp32")
    return {
        "dtypes.param": param,
        "dtypes.compute": compute,
        "dtypes.grad": "bf16" if "--grad-reduce-in-bf16" in given else "f32",
        "dtypes.master": "none" if kind == "f32" else "f32",
        "dtypes.moments": moments,
    }
