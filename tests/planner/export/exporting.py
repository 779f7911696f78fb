"""Plans to export: two small models of known shape, and plans over them by hypothesis."""

from hypothesis import strategies as st
from tests.models.cases import llama

from shardwise.hardware import Slice, parse_slice
from shardwise.models import ModelConfig, from_hf
from shardwise.plans import MESH_AXES, TrainDtypes, TrainPlan, model_hash
from shardwise.scheduling import schedule_row

DENSE_CONFIG = llama(
    num_hidden_layers=24,
    num_attention_heads=16,
    num_key_value_heads=16,
    hidden_size=1024,
    intermediate_size=1024,
    vocab_size=1024,
)
DENSE = from_hf(DENSE_CONFIG, name="dense")
MOE = from_hf(
    llama(
        architectures=["MixtralForCausalLM"],
        model_type="mixtral",
        num_hidden_layers=4,
        intermediate_size=96,
        num_local_experts=8,
        num_experts_per_tok=2,
    ),
    name="moe",
)
MODELS = {"dense": DENSE, "moe": MOE}
"""A model of 24 layers, which stages divide in many ways, and one of experts, of 4."""

TPU = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8"}
GPUS_PER_HOST = 8

MIXED = TrainDtypes()
STORED_F32 = TrainDtypes(param="f32", compute="bf16", grad="f32", master="none")


def a_plan(model: str, slice_text: str, mesh: dict[str, int], **choices):
    """(plan, model, slice) of the whole slice: 512 sequences unless said, layers spread evenly."""
    cfg, piece = MODELS[model], parse_slice(slice_text)
    whole, more = divmod(cfg.layers, mesh.get("stage", 1))
    values = {
        "model": model,
        "model_hash": model_hash(cfg),
        "slice": str(piece),
        "slices": piece.count,
        "box": piece.shape,
        "mesh": mesh,
        "global_batch_sequences": 512,
        "sequence_length": 256,
        "microbatches": 1,
        "layers_per_stage": (*[whole + 1] * more, *[whole] * (mesh.get("stage", 1) - more)),
    }
    return TrainPlan(**(values | choices)), cfg, piece


def ordered(mesh: dict[str, int]) -> dict[str, int]:
    """Axes outermost first, without those of degree 1."""
    return {axis: mesh[axis] for axis in MESH_AXES if mesh.get(axis, 1) > 1}


def slice_for(devices: int, slices: int, tpu: bool) -> str | None:
    """A slice with exactly these devices, or None."""
    each = devices // slices
    if devices % slices or (tpu and each not in TPU):
        return None
    if tpu:
        return f"{slices}*v5e:{TPU[each]}"
    hosts, rest = divmod(devices, GPUS_PER_HOST)
    return f"{hosts}*h100:8" if hosts and not rest else f"h100:{devices}"


@st.composite
def plans(draw, tpu: bool, **allowed) -> tuple[TrainPlan, ModelConfig, Slice]:
    """A plan over any mesh; `allowed` maps a field to the values to draw, else it is the default.

    Keys besides the fields: `schedules` for plans with stages, `uneven` stages, and the `axes` that
    are cut.
    """
    model = draw(st.sampled_from(allowed.pop("models", sorted(MODELS))))
    most = {"expert": 8, "stage": 4} if model == "moe" else {"expert": 1, "stage": 8}
    cut = allowed.pop("axes", MESH_AXES)
    axes = {a: draw(st.sampled_from([1, 1, 2, 4, 8])) for a in cut}
    mesh = ordered({a: min(d, most.get(a, 8)) for a, d in axes.items()})
    devices = 1
    for degree in mesh.values():
        devices *= degree
    slices = draw(st.sampled_from([1, 2, 4])) if tpu else 1
    text = slice_for(devices, slices, tpu)
    if text is None:
        mesh, text = {"fsdp": 16}, slice_for(16, 1, tpu)
    stages, layers = mesh.get("stage", 1), MODELS[model].layers
    choices = _pipeline(draw, stages, layers, allowed)
    choices |= {field: draw(st.sampled_from(values)) for field, values in allowed.items()}
    if choices.get("expert_dispatch") == "dense":
        choices["expert_capacity"] = draw(st.sampled_from([1.0, 1.25]))
    shards = 1
    for axis in ("replica", "data", "fsdp", "expert"):
        shards *= mesh.get(axis, 1)
    flow = draw(st.sampled_from([1, 2, 3])) * stages
    choices["microbatches"] = flow
    choices["global_batch_sequences"] = shards * flow * draw(st.sampled_from([1, 2, 3]))
    return a_plan(model, text, mesh, **choices)


def _pipeline(draw, stages: int, layers: int, allowed: dict) -> dict:
    schedules, uneven = allowed.pop("schedules", ["1f1b"]), allowed.pop("uneven", False)
    if stages == 1:
        return {}
    schedule = draw(st.sampled_from(schedules))
    virtual = min(schedule_row(schedule).chunks)
    if layers // stages < virtual:
        schedule, virtual = schedules[0], 1
    whole, more = divmod(layers, stages)
    per_stage = [*[whole + 1] * more, *[whole] * (stages - more)]
    if uneven and whole > virtual:
        per_stage[0] -= 1
        per_stage[-1] += 1
    return {
        "pipeline_schedule": schedule,
        "virtual_stages": virtual,
        "layers_per_stage": tuple(per_stage),
    }
