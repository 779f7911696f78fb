"""Fields of a plan from what transformers' Trainer is given, by TRL, axolotl or a script.

What nobody says is the program's default: TRL's and transformers' own, or axolotl's. How the model
is cut is said by `fsdp` or `deepspeed` of the arguments or of `accelerate launch`; without either
each process has a copy (DDP).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from shardwise.errors import BadRequest, Gives, Lacking, shown
from shardwise.planner.export.notes import Fields, meant, mesh_of, whole
from shardwise.planner.export.trainer.dialects import CANNOT
from shardwise.planner.export.trainer.given import MODEL, Given, given_of
from shardwise.plans.adapters import parse_targets
from shardwise.plans.software.trainer import OPTIM_WORDS, stored_dtypes
from shardwise.plans.train import STORAGE_AXES

LENGTH = ("max_length", "max_seq_length", "sequence_len", "model_max_length", "block_size")
_LENGTH, _AXOLOTL_LENGTH = 1024, 512
"""Tokens of a sequence where nobody says them: TRL's SFTConfig, axolotl's schema."""
EACH = (
    *("per_device_train_batch_size", "micro_batch_size"),
    "deepspeed.train_micro_batch_size_per_gpu",
)
_FILES = ("deepspeed_config", "deepspeed")
_ROUNDS = (
    *("gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps"),
    "deepspeed.gradient_accumulation_steps",
)
_STAGE = ("deepspeed_config.zero_stage", "deepspeed.zero_optimization.stage")
_KERNELS = {
    "flash_attention_2": "fa2",
    "kernels-community/flash-attn2": "fa2",
    "flash_attention_3": "fa3",
    "kernels-community/flash-attn3": "fa3",
    "kernels-community/vllm-flash-attn3": "fa3",
    "sdpa": "flash",
    "eager": "scores",
}
_DTYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "f16", "fp16": "f16", "float32": "f32"}
_SHARDING = {
    "1": "full",
    "full_shard": "full",
    "true": "full",
    "2": "grad",
    "shard_grad_op": "grad",
    "false": "grad",
    "3": "none",
    "no_shard": "none",
    "4": "hybrid",
    "hybrid_shard": "hybrid",
    "5": "hybrid_grad",
    "hybrid_shard_zero2": "hybrid_grad",
}
"""FSDP's strategies; those of its second version are whether it reshards after forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How processes share the model: `kind` is "ddp", "fsdp" or "deepspeed"."""

    kind: str
    mesh: Mapping[str, int]
    zero: int = 0
    gather: str = "per_pass"

    @property
    def experts(self) -> int:
        """How many devices a layer's experts are spread over: by axolotl beside those that store
        other parameters (src/axolotl/integrations/expert_parallel/plugin.py)."""
        return self.mesh.get("expert", 1)


def read(text: str, devices: int | None = None, *, target: str = "trl") -> Fields:
    """The fields that a text says; `devices` is how many there are where it does not say it,
    `target` what errors call the program."""
    return fields_of(given_of(text, target), devices)


def fields_of(given: Given, devices: int | None) -> Fields:
    """As `read`, of the keys of a text."""
    _refuse_other_jobs(given)
    given.take(*MODEL, *given.shape)
    cut = _cut(given, devices)
    rounds = _rounds(given, cut)
    said: Fields = {
        "software": "any",
        "stack": "fsdp",
        "mesh": mesh_of(cut.mesh),
        "storage_axes": [axis for axis in STORAGE_AXES if axis != "expert" or cut.experts == 1],
        "zero": cut.zero,
        "weight_gather": cut.gather,
        "gradient_reduce": "per_step" if cut.kind == "fsdp" and rounds > 1 else "per_microbatch",
        "sequence_parallel": False,
        "virtual_stages": 1,
        "expert_dispatch": "ragged",
        "expert_over_tensor": False,
        "mtp_layers": 0,
        "frozen": [],
        "offload_optimizer": _offloads(given, cut),
        "lora_rank": (rank := _rank(given)),
        "library": "transformers",
        **_adapters(given, rank),
    }
    said |= _batch(given, cut, rounds) | _memory(given) | _kernels(given)
    said |= _dtypes(given, cut) | _optimizer(given)
    if cut.mesh.get("context", 1) > 1:
        ulysses = any(name in given for name in _sizes("sp"))
        said["context_method"] = "ulysses" if ulysses else _context(given)
    return said | _overlap(given, cut)


_JOBS = ("dpo", "grpo", "kto", "orpo", "rloo", "reward", "ppo", "ipo", "simpo", "gkd", "ebft")


def _refuse_other_jobs(given: Given) -> None:
    """Raise BadRequest for what trains otherwise than on the next token: such a step has passes of
    another model, or of pairs."""
    if (word := given.values.get(CANNOT)) is not None:
        raise BadRequest(
            f"{given.target}: {given.called(CANNOT)} is {shown(str(word))}, which changes the "
            f"step and which a plan for {given.row.title} cannot express; write "
            f"{given.row.words_of(given.called(CANNOT))}, or make the plan with `shardwise plan "
            "train`"
        )
    job = str(given.take("rl", default="")).lower()
    launch = given.launch
    if launch is not None:
        words = {*launch.words, *launch.arguments[:1]}
        job = job or next((j for j in _JOBS if j in words), "")
    if job:
        raise BadRequest(
            f"{given.target}: rl is {shown(job)}, whose step has passes that a plan does not "
            "count; a plan trains on the next token (sft)"
        )


_KINDS = ("FSDP", "DEEPSPEED", "MULTI_GPU", "NO", "MULTI_XPU", "MULTI_NPU")
"""Of `accelerate launch`."""


def _cut(given: Given, devices: int | None) -> Cut:
    kind = str(given.take("distributed_type", default="NO")).upper()
    meant(given.target, "distributed_type", kind, {kind: kind for kind in _KINDS})
    tensor = given.same("tensor parallelism", *_sizes("tp"), "tensor_parallel_size", default=1)
    context = given.same(
        "context parallelism",
        *(*_sizes("cp"), *_sizes("sp"), "context_parallel_size", "sequence_parallel_degree"),
        default=1,
    )
    copies = given.same("copies", *_sizes("dp_replicate"), "dp_replicate_size", default=1)
    shard = given.same("shards", *_sizes("dp_shard"), "dp_shard_size", default=0)
    experts = given.same("expert parallelism", "expert_parallel_size", default=1)  # axolotl's
    world = _world(given, devices)
    inner = {"tensor": tensor, "context": context, "expert": experts}
    others = tensor * context * experts
    left = whole(given.target, f"data parallelism of {world} devices", world / others)
    stage = _stage(given)
    if stage is not None:
        pieces = {"fsdp": left} if stage == 3 else {"data": left}
        return Cut(kind="deepspeed", mesh=inner | pieces, zero=stage % 3)
    how = _sharded(given)
    if how is None and not shard:
        return Cut(kind="ddp", mesh=inner | {"data": left})
    if how == "none":
        return Cut(kind="fsdp", mesh=inner | {"data": left})
    if how is not None and how.startswith("hybrid") and copies == 1:
        copies = whole(given.target, "the nodes of hybrid sharding", left / _per_node(given))
    gather = "per_microbatch" if how is not None and how.endswith("grad") else "per_pass"
    fsdp = shard or whole(given.target, "the shards of each copy", left / copies)
    if fsdp * copies != left:
        raise BadRequest(
            f"{given.target}: {copies} copies of {fsdp} shards are not the {left} devices left"
        )
    return Cut(kind="fsdp", mesh=inner | {"data": copies, "fsdp": fsdp}, gather=gather)


def _sizes(name: str) -> tuple[str, ...]:
    return (f"parallelism_config.parallelism_config_{name}_size", f"parallelism_config.{name}_size")


def _stage(given: Given) -> int | None:
    """DeepSpeed's stage of ZeRO, None where it does not run."""
    file = next((str(v) for n in _FILES if str(v := given.take(n)).endswith(".json")), "")
    if file:
        raise BadRequest(
            f"{given.target}: the text names the file {shown(file)}, whose keys count, through a "
            "shell expression; write its name, and put it beside this one"
        )
    stages = {str(value) for name in _STAGE if (value := given.take(name)) is not None}
    for name in _FILES:
        if str(given.take(name)) not in ("None", "True", "False", ""):
            given.read.discard(name)  # no file of keys, which is told
    runs = given.take("use_deepspeed")
    if not stages:
        return 0 if runs else None
    return meant(
        given.target,
        "zero_stage",
        stages.pop() if len(stages) == 1 else ", ".join(stages),
        {number: str(number) for number in range(4)},
    )


def _sharded(given: Given) -> str | None:
    """What FSDP shards, None where it does not run."""
    kind = str(given.take("distributed_type", default="")).upper().replace("NO", "")
    words = given.take("fsdp", "use_fsdp", default=None)
    version = _version(given, "fsdp_version")
    config = any(name.startswith("fsdp_config.") for name in given.values)
    if kind not in ("FSDP", "") or not (kind == "FSDP" or words or version):
        return None
    _version(given, "fsdp_config.fsdp_version", "fsdp_config.version")
    listed = words if isinstance(words, list) else str(words or "").split()
    found = [str(word).lower() for word in listed if str(word).lower() in _SHARDING]
    keys = ("fsdp_reshard_after_forward", "reshard_after_forward")
    again = given.take(*(f"fsdp_config.{key}" for key in keys)) if config else None
    keys = ("fsdp_config.fsdp_sharding_strategy", "fsdp_config.sharding_strategy")
    said = again if again is not None else given.take(*keys)
    if again is True:
        given.known({"full_shard": ""}, *keys)
    word = str(said).lower() if said is not None else next(iter(found), "full_shard")
    return meant(given.target, "the sharding of FSDP", word, _inverse()) and _SHARDING[word]


def _version(given: Given, *names: str) -> int | None:
    """Which FSDP runs: they store and send alike, so that it is not read."""
    said = next((given.values[name] for name in names if name in given), None)
    known = {number: str(number) for number in (1, 2)}
    return None if said is None else meant(given.target, names[0], str(said), known)


def _inverse() -> dict[str, str]:
    return {word: word for word in _SHARDING}


def _per_node(given: Given) -> int:
    each = given.launch.each if given.launch is not None else ""
    nodes = given.take("num_machines")
    if each.isdigit():
        return int(each)
    if nodes is not None and (total := given.take("num_processes")) is not None:
        return whole(given.target, "the processes of a node", int(total) / int(nodes))
    raise BadRequest(
        f"{given.target}: fsdp_sharding_strategy is HYBRID_SHARD, which shards within a node, and "
        "the text does not give the number of GPUs per node; give num_machines and num_processes"
    )


def _world(given: Given, devices: int | None) -> int:
    told = given.take("num_processes", "world_size")
    if str(each := given.take("devices_per_node")).isdigit():
        nodes = given.take("num_machines", default=1)
        told = int(each) * given.count_of("num_machines", nodes)
    launch = given.launch
    if launch is not None and launch.each.isdigit() and (launch.nodes or "1").isdigit():
        told = int(launch.nodes or "1") * int(launch.each)
    if devices is not None:
        if told is not None and str(told).isdigit() and int(told) != devices:
            raise BadRequest(
                f"{given.target}: num_processes is {told} in the text, the slice has {devices} "
                "devices; make them equal"
            )
        return devices
    if told is None:
        raise Lacking(
            f"{given.target}: the text does not give the number of processes",
            "give the slice with --on",
            Gives.SLICE,
        )
    return given.count_of("num_processes", told)


def _each(given: Given) -> int:
    usual = given.take(*EACH, default=1 if "base_model" in given else 8)
    return given.same("the sequences of a device", *EACH, default=given.count_of(EACH[0], usual))


def _shards(cut: Cut) -> int:
    return prod(cut.mesh.get(axis, 1) for axis in ("data", "fsdp", "expert"))


def _rounds(given: Given, cut: Cut) -> int:
    """Microbatches of a step, as told or by the sequences of a whole step."""
    rounds = given.same("the number of microbatches", *_ROUNDS, default=0)
    if rounds or (total := given.take(_TOTAL)) is None:
        return rounds or 1
    most, key = _each(given) * _shards(cut), given.called(_TOTAL)
    made = f"microbatches, {key} {total} over {most} sequences at once,"
    return whole(given.target, made, given.count_of(_TOTAL, total) / most)


_TOTAL = "global_batch_size"


def _batch(given: Given, cut: Cut, rounds: int) -> Fields:
    axolotl = "base_model" in given
    each, shards, told = _each(given), _shards(cut), given.take("deepspeed.train_batch_size")
    own = [given.called(key) for key in EACH if given.take(key) is not None]
    if isinstance(told, int) and own in ([], ["batch_size"]):  # a script's own is its loader's
        each = whole(given.target, "train_batch_size over the ranks", told / (rounds * shards))
    total = each * rounds * shards
    if told not in (None, total):
        raise BadRequest(
            f"{given.target}: train_batch_size is {told}, and {each} sequences x {rounds} x "
            f"{shards} ranks make {total}; make them equal"
        )
    length = given.take(*LENGTH, default=_AXOLOTL_LENGTH if axolotl else _LENGTH)
    return {
        "global_batch_sequences": total,
        "microbatches": rounds,
        "sequence_length": given.count_of("max_length", length),
    }


def _memory(given: Given) -> Fields:
    """Checkpointing of blocks, whose inputs may go to the host."""
    trl = "base_model" not in given and is_trl(given)
    how = str(given.take("gradient_checkpointing", "activation_checkpointing", default=trl)).lower()
    section = "fsdp_config."
    inner = given.on(
        f"{section}fsdp_activation_checkpointing", f"{section}activation_checkpointing"
    )
    on = how in ("true", "offload", "offload_disk", "unsloth") or inner
    sent = how in ("offload", "unsloth")
    if on and "activation_offloading" in given:
        sent = given.on("activation_offloading") or sent
    return {"remat": "offload" if sent else "block" if on else "none", "remat_kinds": {}}


def is_trl(given: Given) -> bool:
    """Whether TRL's defaults hold: its command line or scripts, or a YAML of it alone."""
    launch = given.launch
    if given.dialect is not None:
        return False
    if launch is None:
        return "model_name_or_path" in given
    return bool(launch.words & _OF_TRL)


_OF_TRL = frozenset({"trl", "sft"})
"""Words of which TRL's command and scripts have one."""


def _kernels(given: Given) -> Fields:
    """The attention kernel, what is compiled, and how the loss is made."""
    named = given.known(_KERNELS, "attn_implementation", "attn_impl")
    switches = {"flash_attention": "fa2", "sdp_attention": "flash", "eager_attention": "scores"}
    chosen = [kernel for key, kernel in switches.items() if key in given and given.on(key)]
    if "use_flash_attention_2" in given and given.on("use_flash_attention_2"):
        chosen.append("fa2")
    dynamo = given.known({"inductor": True, "no": False}, "dynamo_config.dynamo_backend")
    compiled = given.on("torch_compile") if "torch_compile" in given else bool(dynamo)
    fused = [
        key
        for key in ("use_liger_kernel", "use_liger", "liger_fused_linear_cross_entropy")
        if key in given and given.on(key)
    ]
    return {
        "attention_kernel": named or next(iter(chosen), "flash"),
        "compiled": compiled,
        "fused_loss": True if fused else None,
    }


_PRECISED = {"no": None, "bf16": "bf16", "fp16": "f16", "fp8": "bf16"}
_PRECISION = {word: word for word in _PRECISED}
"""Of accelerate's mixed_precision, the dtype of autocast."""


def _mixed(given: Given) -> str | None:
    """The dtype of autocast, None without it."""
    named = str(given.take("mixed_precision", default="no"))
    autocast = _PRECISED[meant(given.target, "mixed_precision", named, _PRECISION)]
    asked = {"bf16": "bf16", "fp16": "f16", "bfloat16": "bf16", "float16": "f16"}
    switch = {True: True, False: False, "true": True, "false": False, "auto": None}
    said = {key: given.known(switch, key) for key in asked if key in given}
    chosen = [asked[key] for key, on in said.items() if on]
    if chosen and autocast not in (None, chosen[0]):
        given.read.discard("mixed_precision")  # the Trainer's own goes first
    if chosen or "bf16" in said or (named == "no" and is_trl(given)):
        return next(iter(chosen), None if said.get("bf16") is False else "bf16")
    return autocast


def _dtypes(given: Given, cut: Cut) -> Fields:
    """Dtypes as they are stored: DeepSpeed keeps a master copy, FSDP stores f32 where it computes
    in less, and else the Trainer keeps parameters and moments as they were loaded."""
    mixed = _mixed(given)
    loaded = given.known(_DTYPES, "dtype", "torch_dtype")
    narrow = given.values.get("mixed_precision") == "fp8" or ("fp8" in given and given.on("fp8"))
    if is_open(given) and mixed is None:
        mixed = "bf16"
    own = [d for key, d in (("bf16", "bf16"), ("fp16", "f16")) if _enabled(given, key, mixed == d)]
    kind = (own[0] if own else "f32") if cut.kind == "deepspeed" else mixed
    grad = given.known(_DTYPES, "deepspeed.data_types.grad_accum_dtype")
    if "float32" in given and given.on("float32"):
        loaded = "f32"
    found = stored_dtypes(cut.kind, kind, loaded or ("bf16" if mixed != "f16" else "f32"))
    if grad is not None:
        found["dtypes.grad"] = grad
    return found | ({"dtypes.compute": "fp8"} if narrow else {})


def is_open(given: Given) -> bool:
    """Whether DeepSpeed leaves its dtype to a Trainer that the text has nothing of."""
    asked = any(key in given for key in ("bf16", "fp16", "mixed_precision", *MODEL))
    return not asked and given.values.get("deepspeed.bf16.enabled") == "auto"


def _enabled(given: Given, name: str, mixed: bool) -> bool:
    """Whether DeepSpeed computes in a dtype: as its JSON says, else as the Trainer."""
    return given.on(f"deepspeed.{name}.enabled", default=mixed)


def _optimizer(given: Given) -> Fields:
    own = given.take("deepspeed.optimizer.type")
    name = own if own is not None else given.take("optim", "optimizer", default="adamw_torch")
    words = {word: word for row in OPTIM_WORDS.values() for word in row}
    word = meant(given.target, given.called("optim"), str(name).lower(), words)
    return {"optimizer": next(kind for kind, row in OPTIM_WORDS.items() if word in row)}


_STORED = re.compile(r"(?<=-)(gptq|awq)(-int4)?(?=-|$)", re.IGNORECASE)
"""How the id of a checkpoint in 4 bits says its format."""
PEFT_TARGETS = ("q", "v")
"""What PEFT puts adapters beside where nobody says it, of Llama and its like (its
TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING)."""


def _adapters(given: Given, rank: int) -> Fields:
    """Which matrices have adapters, and how the frozen ones are stored."""
    if not rank:
        return {"lora_targets": [], "quantize": "none"}
    linear = "lora_target_linear" in given and given.on("lora_target_linear")
    named = given.take("lora_target_modules", default=None)
    targets = () if linear else parse_targets(named) if named else PEFT_TARGETS
    given.known({"nf4": ""}, "bnb_4bit_quant_type")
    four, eight = ((key in given and given.on(key)) for key in ("load_in_4bit", "load_in_8bit"))
    if four and eight:
        raise BadRequest(f"{given.target}: load_in_4bit and load_in_8bit are both on; give one")
    stored = _STORED.search(str(given.take(*MODEL, default="")))
    own = stored[0].lower().removesuffix("-int4") if stored else ""
    own = own if own else "gptq" if "gptq" in given and given.on("gptq") else "none"
    kind = own if own != "none" else "nf4" if four else "int8" if eight else "none"
    return {"lora_targets": list(targets), "quantize": kind}


def _rank(given: Given) -> int:
    """The rank of LoRA's adapters, 0 where all parameters train."""
    adapter = str(given.take("adapter", default="")).lower()
    adapter = "" if adapter == "none" else adapter
    if adapter not in ("", "lora", "qlora"):
        raise BadRequest(f"{given.target}: adapter is {shown(adapter)}; use lora or qlora")
    if not (adapter or given.on("use_peft", "use_lora")):
        return 0
    return given.count_of("lora_r", given.take("lora_r", "lora_rank", default=16))


def _offloads(given: Given, cut: Cut) -> bool:
    """Whether the optimizer's state lies with the host; FSDP offloads parameters with it."""
    if cut.kind == "fsdp":
        return given.on("fsdp_config.fsdp_offload_params", "fsdp_config.offload_params")
    places = (
        "deepspeed_config.offload_optimizer_device",
        "deepspeed.zero_optimization.offload_optimizer.device",
    )
    return cut.kind == "deepspeed" and bool(given.known({"none": False, "cpu": True}, *places))


def _context(given: Given) -> str:
    """How attention meets a sequence that is cut: axolotl's ring, accelerate's rotation."""
    section = "parallelism_config."
    keys = (f"{section}parallelism_config_cp_comm_strategy", f"{section}cp_comm_strategy")
    ring = "context_parallel_size" in given or "sequence_parallel_degree" in given
    return {"alltoall": "ring"}.get(given.take(*keys), "ring" if ring else "all_gather")


def _overlap(given: Given, cut: Cut) -> Fields:
    """DeepSpeed's stages 1 and 2 wait for their transfers unless the JSON says otherwise."""
    if cut.kind != "deepspeed":
        return {}
    key = "deepspeed.zero_optimization.overlap_comm"
    beside = given.on(key, default=cut.zero == 0)
    return {} if beside or prod(cut.mesh.values()) == 1 else {"overlap": ["context"]}
