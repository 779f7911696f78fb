"""Fields of a plan from MaxText's flags or YAML; what a file leaves out is MaxText's default.

A `model_name` stands for the flags of MaxText's own file of that name, a snapshot of which lies in
`plans/data/software/maxtext.json`. A degree of -1 takes the devices that the others leave.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any

from shardwise.boundary import parse_yaml
from shardwise.errors import BadRequest, Gives, Lacking, shown, unknown
from shardwise.hardware import parse_slice
from shardwise.planner.export.flags import Flags, arguments_of, launched, unset_in
from shardwise.planner.export.hardware import slice_fields, slice_of_type
from shardwise.planner.export.jax_trainers import BATCH, flags_of
from shardwise.planner.export.maxtext import AXES, CUSTOM, ON_GPUS, PLACES, WORDS, written
from shardwise.planner.export.neox import REFUSED
from shardwise.planner.export.notes import Fields, mesh_of, whole
from shardwise.planner.export.script import SLICES, TPU_TYPE, script_of
from shardwise.plans.software.maxtext import (
    DTYPES,
    FUSED,
    KEPT,
    MAXTEXT,
    NEAREST,
    OFFLOADED,
    OTHERS,
    QUANTIZED,
    TENSORS,
)
from shardwise.plans.software.maxtext_models import LAYERS_EACH, snapshot
from shardwise.plans.train import STORAGE_AXES

TARGET = "maxtext"


def own_models() -> Mapping[str, Mapping[str, Any]]:
    """The flags of every `model_name`, as its file has them."""
    return snapshot()["models"]


def given_flags(text: str) -> Flags:
    """The flags of a command, or the keys of a YAML file, with those of its `model_name`, where
    MaxText has a file of that name."""
    return with_model(own_flags(text), unset_in(text))


def with_model(given: Mapping[str, str], unset: tuple[str, ...] = ()) -> Flags:
    """As `given_flags`, of what a text says itself."""
    model = own_models().get(given.get("model_name", ""), {})
    found = {**{k: written(v) for k, v in model.items()}, **given}
    found |= _scaled(found)
    each, layers = LAYERS_EACH.get(found.get("decoder_block", "")), "base_num_decoder_layers"
    if each and found.get(layers, "").isdigit():
        found[layers] = str(each * int(found[layers]))
    return Flags(TARGET, found, unset)


BASE = {
    "base_num_decoder_layers": "16",
    "base_emb_dim": "2048",
    "base_num_query_heads": "16",
    "base_num_kv_heads": "16",
    "base_mlp_dim": "7168",
    "head_dim": "128",
    "vocab_size": "32000",
}
"""The model of MaxText's base.yml (August 2026), which a file without a model_name changes."""
_SCALE = "global_parameter_scale"


def _scaled(given: Mapping[str, str]) -> dict[str, str]:
    """The numbers of the base model times its `global_parameter_scale` of 2**n: layers, width and
    heads take a third of the n each, and of what is left heads and MLP are first (MaxText's
    get_individual_scales)."""
    text = given.get(_SCALE, "1")
    scale = int(text) if re.fullmatch(r"\d{1,9}", text) else 0
    if scale < 1 or scale & (scale - 1):
        raise BadRequest(f"{TARGET}: {_SCALE} is {shown(text)}; write a power of 2")
    if scale == 1:
        return {}
    third, rest = divmod(scale.bit_length() - 1, 3)
    wide, heads = third + (rest > 1), third + (rest > 0)
    by = {"base_num_decoder_layers": third, "base_emb_dim": wide, "base_mlp_dim": heads}
    by |= {"base_num_query_heads": heads, "base_num_kv_heads": heads}
    each = {key: given.get(key, BASE[key]) for key in by}
    return {key: str(int(value) << by[key]) for key, value in each.items() if value.isdigit()}


def read_nearly(text: str) -> list[str]:
    """A line where a command names a file of keys that is not MaxText's own of defaults."""
    if not launched(TARGET, text):
        return []
    files = [
        Path(word).name for word in arguments_of(TARGET, text) if word.endswith((".yml", ".yaml"))
    ]
    return [
        f"the keys of {file}, which the command names, are not in the text and were not read; "
        "append them to it"
        for file in files
        if "=" not in file and file != "base.yml"
    ]


def unknown_model(text: str) -> BadRequest | None:
    """What to say of a `model_name` that MaxText has no file of; None where there is no such."""
    name = own_flags(text).get("model_name", "default")
    if name == "default" or name in own_models():
        return None
    return unknown("model_name of MaxText", name, own_models())


def own_flags(text: str) -> dict[str, str]:
    """What the text itself says, without the flags of its model_name."""
    if (said := flags_of(text)) is not None:
        return said
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    keys = re.search(r"^[a-z_0-9]+:( |$)", plain, re.M) and not script_of(text)
    if re.search(r"(^|\s)[a-z_0-9]+=", plain) and not keys:
        words = arguments_of(TARGET, text)
        said = dict(w.split("=", 1) for w in words if re.match(r"[a-z_0-9]+=", w))
        return _machines(text) | said
    table = parse_yaml(plain, f"{TARGET}: the file")
    if not isinstance(table, dict) or not table:
        raise BadRequest(f"{TARGET}: the file holds no flag; write key=value words, or YAML")
    return {str(k): written(v) for k, v in table.items()}


def _machines(text: str) -> dict[str, str]:
    """The slices on which XPK starts the command, as MaxText's flags have them."""
    launch = launched(TARGET, text)
    kind = launch.environment.get(TPU_TYPE, "") if launch else ""
    if launch is None or not kind or "$" in kind:
        return {}
    slices = launch.environment.get(SLICES, "1")
    piece = str(slice_of_type(kind, 1))
    return {"compile_topology": piece, "compile_topology_num_slices": slices}


def read(text: str, devices: int | None = None) -> Fields:
    """The fields that the flags say; BadRequest where they contradict each other. `devices` is how
    many there are, where the file does not say it."""
    return fields_of(given_flags(text), devices)


def fields_of(given: Flags, devices: int | None) -> Fields:
    """As `read`, of the flags of a text and of its model."""
    if REFUSED in given:
        raise BadRequest(given.given[REFUSED])
    said: Fields = {"software": TARGET, "stack": MAXTEXT.stack}
    if given.get("compile_topology"):
        count = max(given.number("compile_topology_num_slices", "1"), 1)
        times = f"{count}*" if count > 1 else ""
        piece = parse_slice(times + given.get("compile_topology"))
        said |= slice_fields(piece)
        devices = devices or piece.chips * piece.chip.jax_devices_per_chip
    mesh = _read_mesh(given, devices)
    if said.get("slices", mesh["slices"]) != mesh["slices"]:
        raise BadRequest(
            f"{TARGET}: the dcn_* flags multiply to {mesh['slices']} slices and "
            f"compile_topology_num_slices is {said['slices']}; make them equal"
        )
    said |= mesh
    said |= _read_batch(given, said["mesh"]) | _read_memory(given) | _read_dtypes(given)
    return said | _read_methods(given, said["mesh"])


def _read_methods(given: Flags, mesh: Mapping[str, int]) -> Fields:
    kernel = given.get("attention", "autoselected")
    once = given.get("pipeline_fsdp_ag_once") == "true"
    said: Fields = {
        "storage_axes": list(STORAGE_AXES),
        "attention_kernel": "flash"
        if kernel in ("autoselected", *ON_GPUS.values())
        else given.word("attention", WORDS["attention_kernel"]),
        "optimizer": "adam"
        if given.get("opt_type") == _ADAM_OF_PAX
        else given.word("opt_type", WORDS["optimizer"], "adamw"),
        "mtp_layers": given.number("mtp_num_layers", "0"),
        "logit_chunks": given.count("num_vocab_tiling", "1", "write the pieces out, 1 or more"),
        "weight_gather": "per_microbatch" if once else "per_pass",
        "gradient_reduce": "per_microbatch",
        "expert_over_tensor": False,
        "lora_rank": 0,
        "frozen": [],
    }
    if "context" in mesh:
        strategy = WORDS["context_method"]
        said["context_method"] = given.word("context_parallel_strategy", strategy, "all_gather")
    if given.number("num_experts", "1") > 1:
        dense = given.get("sparse_matmul") == "false"
        said["expert_dispatch"] = "dense" if dense else "ragged"
        if dense:
            said["expert_capacity"] = _capacity(given)
    return said


_ADAM_OF_PAX = "adam_pax"
"""Adam as Pax writes it: the same state and update."""


def _capacity(given: Flags) -> float:
    """Slots of an expert over its mean load; with none set every expert works on all tokens."""
    factor = given.number("capacity_factor", "-1", kind=float)
    if factor >= 0:
        return factor
    return given.number("num_experts") / given.number("num_experts_per_tok", "1")


def _read_mesh(given: Flags, devices: int | None) -> Fields:
    sizes = {(net, word): _degree(given, net, word) for net in ("ici", "dcn") for word in _WORDS}
    open_ = [at for at, size in sizes.items() if size == _FILL]
    if open_:
        _fill(given, sizes, open_, devices)

    def degree(net: str, word: str) -> int:
        return sizes[net, word]

    both = {word: degree("ici", word) * degree("dcn", word) for word in _WORDS}
    if both["tensor"] > 1 and both["tensor_sequence"] > 1:
        raise BadRequest(f"{TARGET}: tensor and tensor_sequence are both above 1; keep one")
    mesh = {
        "replica": degree("dcn", "data"),
        "data": degree("ici", "data"),
        **{axis: both[AXES[axis]] for axis in ("expert", "context", "stage")},
        "fsdp": both["fsdp"] * both[_TRANSPOSED],
        "tensor": both["tensor"] * both["tensor_sequence"],
    }
    return {
        "mesh": mesh_of(mesh),
        "slices": prod(degree("dcn", word) for word in _WORDS),
        "sequence_parallel": both["tensor"] == 1,
    }


_TRANSPOSED = "fsdp_transpose"
"""The axis that stores parameters in pieces of their other dim."""
_WORDS = (*dict.fromkeys(AXES.values()), "tensor", "tensor_sequence", _TRANSPOSED)
DEGREES = tuple(f"{net}_{word}_parallelism" for net in ("ici", "dcn") for word in _WORDS)
"""The degrees that are read."""
_FILL = -1
"""The degree that MaxText replaces by the devices that the others leave."""
_USUAL = {("ici", "fsdp"): _FILL, ("dcn", "data"): _FILL}
"""Degrees that MaxText fills where nobody gives them."""


def _degree(given: Flags, net: str, word: str) -> int:
    """A degree, or -1 for what the other degrees leave."""
    name = f"{net}_{word}_parallelism"
    value = given.number(name, str(_USUAL.get((net, word), 1)))
    return value if value == _FILL else given.count(name, str(value), "write -1, or 1 or more")


def _fill(
    given: Flags,
    sizes: dict[tuple[str, str], int],
    open_: list[tuple[str, str]],
    devices: int | None,
) -> None:
    """Set the degrees of -1: across slices their number, inside one the devices that are left.
    Without a degree of -1 across them there are as many slices as those degrees make."""
    across = [size for at, size in sizes.items() if at[0] == "dcn"]
    slices = max(given.number("compile_topology_num_slices", "1"), 1)
    slices = slices if _FILL in across else prod(across)
    for net, word in open_:
        others = prod(s for at, s in sizes.items() if at[0] == net and s != _FILL)
        if net == "dcn":
            sizes[net, word] = whole(TARGET, f"dcn_{word}_parallelism of -1", slices / others)
            continue
        if devices is None:
            raise Lacking(
                f"{TARGET}: ici_{word}_parallelism is -1, the devices that remain, and the file "
                "does not give their number",
                "give the slice with --on",
                Gives.SLICE,
            )
        left = devices / (others * slices)
        sizes[net, word] = whole(TARGET, f"ici_{word}_parallelism of -1", left)


def _read_batch(given: Flags, mesh: Mapping[str, int]) -> Fields:
    each = given.number("per_device_batch_size", "12", kind=float)
    steps = given.number("gradient_accumulation_steps", "1")
    stages = mesh.get("stage", 1)
    batch = each * prod(mesh.values()) * steps
    if BATCH in given:
        batch = given.count(BATCH)
    said: Fields = {
        "global_batch_sequences": whole(TARGET, "the batch in sequences", batch),
        "sequence_length": given.number("max_target_length", "2048"),
        "microbatches": steps,
        "virtual_stages": 1,
    }
    if stages > 1:
        return said | _read_pipeline(given, stages, steps)
    layers = "base_num_decoder_layers"
    return said | ({"layers_per_stage": [given.count(layers)]} if layers in given else {})


def _read_pipeline(given: Flags, stages: int, steps: int) -> Fields:
    layers = given.number("base_num_decoder_layers", "16")
    if steps != 1:
        raise BadRequest(
            f"{TARGET}: gradient_accumulation_steps is {steps} with a pipeline; a plan's "
            "microbatches all pass through the pipeline at once, so use num_pipeline_microbatches"
        )
    inner = given.number("num_layers_per_pipeline_stage", "1")
    repeats = given.number("num_pipeline_repeats", "-1")
    if repeats == _FILL:
        repeats = whole(TARGET, "num_pipeline_repeats of -1", layers / (stages * inner))
    if inner * repeats * stages != layers:
        raise BadRequest(
            f"{TARGET}: {stages} stages x num_pipeline_repeats {repeats} x "
            f"num_layers_per_pipeline_stage {inner} are not {layers} layers"
        )
    flow = given.number("num_pipeline_microbatches", "-1")
    return {
        "microbatches": stages if flow == _FILL else flow,
        "layers_per_stage": [layers // stages] * stages,
        "virtual_stages": repeats,
        "pipeline_schedule": "interleaved" if repeats > 1 else "gpipe",
    }


def _read_memory(given: Flags) -> Fields:
    remat, kinds = _read_remat(given)
    return {
        "zero": int(given.get("shard_optimizer_over_data") == "true"),
        "offload_optimizer": given.get("optimizer_memory_host_offload") == "true",
        "remat": remat,
        "remat_kinds": kinds,
    }


def _read_remat(given: Flags) -> tuple[str, dict[str, str]]:
    """The policy, and by kind what differs from it."""
    name = given.get("remat_policy", "full")
    if name == CUSTOM:
        return _read_custom(given)
    for table, place in ((KEPT, "keep"), (OFFLOADED, "offload")):
        if name in table:
            return "block", dict.fromkeys(table[name], place)
    known = (*WORDS["remat"].values(), *KEPT, *OFFLOADED)
    if name not in known:
        close = NEAREST.get(name) or next(iter(get_close_matches(name, known, 1)), "full")
        raise BadRequest(
            f"{TARGET}: remat_policy is {shown(name)}, which a plan cannot express; the nearest "
            f"is {close}; known are {', '.join(known)}"
        )
    return given.word("remat_policy", WORDS["remat"], "full"), {}


def _read_custom(given: Flags) -> tuple[str, dict[str, str]]:
    """The policy that places tensors by name; BadRequest where it names none, or one of no kind of
    ours, or places tensors of one kind apart."""
    names = {kind: (*told, *FUSED.get(kind, ())) for kind, told in TENSORS.items()}
    known = [name for told in names.values() for name in told]
    if not any(name in given for name in known):
        raise BadRequest(
            f"{TARGET}: remat_policy is {CUSTOM}, and the file places no tensor; write device, "
            f"remat or offload for {', '.join(known)}"
        )
    for name in OTHERS:
        if given.get(name, "remat") != "remat":
            raise BadRequest(
                f"{TARGET}: {name} is {given.get(name)}; a plan can place only the tensors "
                f"{', '.join(known)}, so leave {name} at remat or choose another remat_policy"
            )
    places = {}
    for kind, told in names.items():
        usual = "device" if kind == "block_input" else "remat"
        said = [name for name in told if name in given] or [told[0]]
        at = {name: given.word(name, PLACES, usual) for name in said}
        if len(set(at.values())) > 1:
            raise BadRequest(f"{TARGET}: {', '.join(at)} are placed differently; place them alike")
        places[kind] = at[said[0]]
    inner = {kind: place for kind, place in places.items() if place != "recompute"}
    if inner == {"block_input": "offload"}:
        return given.word("remat_policy", WORDS["remat"]), {}
    if inner.get("block_input") == "keep":
        del inner["block_input"]
    return "block", inner


def _read_dtypes(given: Flags) -> Fields:
    compute = given.word("dtype", DTYPES, "bfloat16")
    if given.get("quantization"):
        compute = given.word("quantization", QUANTIZED)
    stored = given.word("weight_dtype", DTYPES, "float32")
    moments = given.get("mu_dtype") and given.word("mu_dtype", DTYPES)
    return {
        "dtypes.param": stored,
        "dtypes.master": "none",
        "dtypes.compute": compute,
        "dtypes.grad": given.word("grad_dtype", DTYPES, "float32"),
        "dtypes.moments": moments or stored,
    }
