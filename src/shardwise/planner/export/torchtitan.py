"""A plan as a TorchTitan config: a Python module whose function `plan` makes a `Trainer.Config`.

    torchrun --nnodes N --nproc-per-node P -m torchtitan.train --module FILE --config plan

Names are those of torchtitan/config/configs.py of TorchTitan 0.3.0, whose own ConfigManager takes
what is written here (docs/lab/exports_checked.json). Dims: `pp`, `dp_replicate`, `dp_shard`, `cp`,
`tp` and `ep`; EP is no dim of its own but carved out of dp_shard x cp x tp, innermost first, so our
`expert` is a factor of dp_shard, and ep is expert x tensor, as experts are never cut by `tp`. What
TorchTitan cannot run: `plans/software/torchtitan.py`. `torchtitan_read.py` reads modules and flags.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.numerics import Rope
from shardwise.models.specs import LatentAttention
from shardwise.planner.export.hardware import nodes
from shardwise.planner.export.notes import stored_dtype
from shardwise.planner.export.python_text import within_docstring
from shardwise.plans import TrainPlan
from shardwise.plans.software.torchtitan import DTYPES, TORCHTITAN, flavor_of

LOST = {
    "dtypes.param": "parameters are stored once, in training.dtype, and cast when gathered",
    "dtypes.master": "the stored parameters are the master copy",
}
WORDS = TORCHTITAN.words
NO_POLICY = WORDS["remat"]["none"]

_HEAD = '''"""MODEL, trained by a plan: torchrun --nnodes N --nproc-per-node P \\\\
    -m torchtitan.train --module FILE --config plan

Add what a plan does not choose: config.hf_assets_path (tokenizer), config.dataloader,
config.training.steps, config.optimizer and config.lr_scheduler (learning rate).
"""

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.MODULE import model_registry
from torchtitan.trainer import Trainer


def plan() -> Trainer.Config:
    """The plan's config."""
    model_spec = model_registry("FLAVOR"CONVERTED)
'''


def write(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A Python module with `plan()`, the config of the model trained by the plan."""
    flavor = flavor_of(cfg)
    assert flavor is not None, "TorchTitan's row takes models of its registry alone"
    count, each = nodes(plan, piece)
    head = _HEAD.replace("MODEL,", within_docstring(cfg.name) + ",")
    head = head.replace("nnodes N", f"nnodes {count}").replace("node P", f"node {each}")
    head = head.replace("MODULE", flavor.module).replace("FLAVOR", flavor.name)
    made = _converters(plan, cfg)
    given = "".join(f"\n            {one}.Config({how})," for one, how in made.items())
    head = head.replace("CONVERTED", f", converters=[{given}\n        ]" if given else "")
    after = "from torchtitan.distributed"
    imported = f"from torchtitan.components.quantization import {', '.join(made)}\n" if made else ""
    head = head.replace(after, imported + after, 1)
    return head + "\n".join([*_body(plan, cfg), "    return config"]) + "\n"


def _body(plan: TrainPlan, cfg: ModelConfig) -> Iterator[str]:
    yield from _rotation(cfg)
    yield from _loss(plan)
    sections = {
        "training": _training(plan, cfg),
        "parallelism": _degrees(plan, cfg) | _pipeline(plan),
        "compile": _compiled(plan),
    }
    for section, values in sections.items():
        for name, value in values.items():
            yield f"    config.{section}.{name} = {_literal(value)}"
    policy = "SelectiveAC" if plan.remat_kinds else WORDS["remat"][plan.remat]
    call = "" if policy == NO_POLICY else ".Config()"
    yield f"    config.activation_checkpoint = {policy}{call}"


def _converters(plan: TrainPlan, cfg: ModelConfig) -> dict[str, str]:
    """The converters of linear layers and experts with their arguments; the head stays as it is."""
    kind = NARROW.get(plan.dtypes.compute)
    if kind is None:
        return {}
    compiled = f"model_compile_enabled={plan.fuses_elementwise}"
    layers = 'filter_fqns=["lm_head"]' if kind == "Float8" else 'fqns=["layers"]'
    linear = {f"{kind}LinearConverter": f"{layers}, {compiled}"}
    experts = {f"{kind}GroupedExpertsConverter": compiled} if cfg.has_experts else {}
    return linear | experts


NARROW = {"fp8": "Float8", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}
"""What its converters are called, by the dtype of matmuls (components/quantization)."""
COMPILED = ["model", "loss"]
"""What TorchTitan compiles where its config says nothing else."""


def _compiled(plan: TrainPlan) -> dict[str, Any]:
    """Whether layers and loss are compiled, and which of them where it is one alone."""
    chosen = (plan.fuses_elementwise, plan.fuses_loss)
    parts = [part for part, wanted in zip(COMPILED, chosen, strict=True) if wanted]
    enable = {"enable": bool(parts)}
    return enable if parts in ([], COMPILED) else enable | {"components": parts}


SCALINGS = {"none": "none", "llama3": "llama", "yarn": "yarn"}


def _rotation(cfg: ModelConfig) -> Iterator[str]:
    """Rotations of the registry's model that this one has otherwise; those of one are shared."""
    rope = cfg.numerics.rope(0) if cfg.numerics else None
    if rope is None or isinstance(cfg.groups[-1].mixer, LatentAttention) or len(cfg.groups) > 1:
        return
    yield "    for layer in model_spec.model.layers:"
    yield "        rope = layer.attention.rope"
    for name, value in _rotation_fields(rope).items():
        yield f"        rope.{name} = {value!r}"


def _rotation_fields(rope: Rope) -> dict[str, Any]:
    values: dict[str, Any] = {"theta": rope.theta, "scaling": SCALINGS[rope.scaling]}
    if rope.scaling == "llama3":
        values |= {"scaling_factor": rope.factor, "low_freq_factor": rope.low}
        values["high_freq_factor"] = rope.high
        values["original_max_position_embeddings"] = rope.original_context
    return values


def _loss(plan: TrainPlan) -> Iterator[str]:
    yield "    loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))"
    if plan.logit_chunks > 1:
        yield f"    loss = ChunkedLossWrapper.Config(loss_fn=loss, num_chunks={plan.logit_chunks})"
    yield "    config = Trainer.Config(model_spec=model_spec, loss=loss)"


def _literal(value: Any) -> str:
    """A value as Python; a list of lists with one of them per line."""
    if not isinstance(value, list):
        return repr(value)
    return "\n        ".join(["[", *(f"{part!r}," for part in value)]) + "\n    ]"


def _training(plan: TrainPlan, cfg: ModelConfig) -> dict[str, Any]:
    """Sequences of a rank and of a step, and the dtypes of FSDP. A pipeline takes all microbatches
    of a rank at once."""
    piped = plan.degree("stage") > 1
    each = plan.global_batch_sequences // (plan.batch_shards * plan.microbatches)
    d = plan.dtypes
    return {
        "local_batch_size": each * (plan.microbatches if piped else 1),
        "global_batch_size": plan.global_batch_sequences,
        "seq_len": plan.sequence_length,
        "dtype": DTYPES[stored_dtype(d)],
        "mixed_precision_param": DTYPES.get(d.compute, "bfloat16"),
        "mixed_precision_reduce": DTYPES[d.grad],
        "disable_cuda_graphs": piped or cfg.has_experts,
    }


def _degrees(plan: TrainPlan, cfg: ModelConfig) -> dict[str, Any]:
    kept = plan.weight_gather == "per_pass"
    return {
        "pipeline_parallel_degree": plan.degree("stage"),
        "data_parallel_replicate_degree": plan.degree("replica") * plan.degree("data"),
        "data_parallel_shard_degree": plan.degree("fsdp") * plan.degree("expert"),
        "context_parallel_degree": plan.degree("context"),
        "tensor_parallel_degree": plan.degree("tensor"),
        "expert_parallel_degree": plan.degree("expert") * plan.degree("tensor")
        if cfg.has_experts
        else 1,
        "enable_sequence_parallel": plan.sequence_parallel,
        "fsdp_reshard_after_forward": WORDS["weight_gather"][
            "per_pass" if kept else "per_microbatch"
        ],
    }


def _pipeline(plan: TrainPlan) -> dict[str, Any]:
    """The schedule and every chunk's layers by name; nothing where there are no stages."""
    if plan.degree("stage") == 1:
        return {}
    sizes = chunk_sizes(plan)
    ends = list(accumulate(sizes))
    parts = [
        [f"layers.{i}" for i in range(end - size, end)]
        for size, end in zip(sizes, ends, strict=True)
    ]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    each = plan.global_batch_sequences // (plan.batch_shards * plan.microbatches)
    return {
        "pipeline_parallel_schedule": WORDS["pipeline_schedule"][plan.pipeline_schedule],
        "pipeline_parallel_microbatch_size": each,
        "module_fqns_per_model_part": parts,
    }


def reduces(stages: int) -> str:
    """How often it reduces gradients."""
    return "per_step" if stages > 1 else "per_microbatch"


def chunk_sizes(plan: TrainPlan) -> list[int]:
    """Layers of every model chunk in the order of the layers; a stage's larger chunks first."""
    sizes, stages = [], plan.degree("stage")
    for part in range(stages * plan.virtual_stages):
        stage, turn = plan.schedule.place_of(part, stages)
        size, more = divmod(plan.layers_per_stage[stage], plan.virtual_stages)
        sizes.append(size + (turn < more))
    return sizes
